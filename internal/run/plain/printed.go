package plain

import (
	"fmt"
	"os"
	"sync"
)

// Printed writes to a file and keeps the first error, so that a command completes even if its output cannot be written.
type Printed struct {
	File *os.File
	mu   sync.Mutex // guards err
	err  error
}

func (p *Printed) Write(b []byte) (int, error) {
	n, err := p.File.Write(b)
	if err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.err == nil {
			p.err = err
		}
	}
	return n, err
}

// Fd returns the file's descriptor.
func (p *Printed) Fd() uintptr { return p.File.Fd() }

// Lost returns an error if some output was lost.
func (p *Printed) Lost() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		return nil
	}
	return fmt.Errorf("cannot write to standard output: %w; the output is incomplete", Cause(p.err))
}

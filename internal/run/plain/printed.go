package plain

import (
	"fmt"
	"os"
	"sync"
)

// Printed writes to a file, and keeps the first error: what was asked for is done
// all the same.
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

// Fd is the file's descriptor.
func (p *Printed) Fd() uintptr { return p.File.Fd() }

// Lost says that something that was printed is lost; nil: nothing is.
func (p *Printed) Lost() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		return nil
	}
	return fmt.Errorf("cannot write to standard output: %w; what is printed there is not whole", Cause(p.err))
}

package humanize

import (
	"fmt"
	"os"
	"sync"
)

// StickyFile writes to a file and keeps the first error, so that a command completes even if its output cannot be
// written.
type StickyFile struct {
	File *os.File
	mu   sync.Mutex // guards err
	err  error
}

func (p *StickyFile) Write(b []byte) (int, error) {
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
func (p *StickyFile) Fd() uintptr { return p.File.Fd() }

// Err returns an error if some output was lost.
func (p *StickyFile) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		return nil
	}
	return fmt.Errorf("cannot write to standard output: %w; the output is incomplete", Cause(p.err))
}

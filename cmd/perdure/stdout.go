package main

import (
	"fmt"
	"os"
	"sync"

	"github.com/perdure/perdure/internal/run/plain"
)

// stdout is where commands print. Everything goes through it, so that a command whose
// words were lost says so in the end, and does not end with 0.
var stdout = &printed{file: os.Stdout}

// printed writes to a file, and keeps the first error: what was asked for is done
// all the same.
type printed struct {
	file *os.File
	mu   sync.Mutex // guards err
	err  error
}

func (p *printed) Write(b []byte) (int, error) {
	n, err := p.file.Write(b)
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
func (p *printed) Fd() uintptr { return p.file.Fd() }

// lost says that something that was printed is lost; nil: nothing is.
func (p *printed) lost() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		return nil
	}
	return fmt.Errorf("cannot write to standard output: %w; what is printed there is not whole", plain.Cause(p.err))
}

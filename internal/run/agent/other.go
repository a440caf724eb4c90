//go:build !linux

// Package agent is the worker of a program that is not written in Go; it needs Linux.
package agent

import (
	"context"
	"fmt"
	"os"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/worker"
)

// Options are what an agent needs.
type Options struct {
	Version string
	PID     int
	Dial    func(ctx context.Context, cfg worker.Config) (*worker.Client, error)
}

var errLinux = fmt.Errorf("%w: shared memory with a program in another language needs Linux", perdure.ErrUsage)

// Socket is none.
type Socket struct{}

// Serve fails.
func Serve(context.Context, *Socket, Options) error { return errLinux }

// Open fails.
func Open(int) (*Socket, error) { return nil, errLinux }

// WithParent fails.
func WithParent(ctx context.Context) (of context.Context, parent int, err error) {
	return ctx, os.Getppid(), errLinux
}

//go:build !linux

// Package agent runs a worker on behalf of a program that is not written in Go. It is only implemented on Linux.
package agent

import (
	"context"
	"os"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/worker"
)

// Options are the options of an agent.
type Options struct {
	Version string
	PID     int
	Dial    func(ctx context.Context, cfg worker.Config) (*worker.Client, error)
}

var errLinux = perdure.Usagef("shared memory with a program in another language is only supported on Linux")

// Socket is not implemented on this system.
type Socket struct{}

// Serve returns an error.
func Serve(context.Context, *Socket, Options) error { return errLinux }

// Open returns an error.
func Open(int) (*Socket, error) { return nil, errLinux }

// WithParent returns an error.
func WithParent(ctx context.Context) (of context.Context, parent int, err error) {
	return ctx, os.Getppid(), errLinux
}

// Announcement is not used on this system.
type Announcement struct{ Version, Coordinator, SecretFile, Keys string }

// Announcer returns an error.
func Announcer(int) (announce func(Announcement) error, err error) { return nil, errLinux }

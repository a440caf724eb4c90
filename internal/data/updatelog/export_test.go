package updatelog

import (
	"context"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// Tests of this package use package logserver, which imports this package. See serve_test.go.
type (
	Server interface {
		URL() string
		Run(ctx context.Context) error
		Close() error
		NATS() *server.Server
		Look(ctx context.Context) (ServerState, error)
	}
	ServerState struct {
		Waits                           string
		Streams, Connections            int
		Records, Stored, Received, Sent uint64
	}
	ServeOptions struct {
		Listen, Token string
		Sync          Sync
		MaxBytes      int64
	}
)

var (
	Serve         func(dir string, o ServeOptions) (Server, error)
	InspectFolder func(ctx context.Context, dir string, patience time.Duration, o DialOptions) (*Inspector, error)
	ErrRunning    error
	Unwritable    func(*server.HealthStatus, []string) bool
)

// streamsDir is the directory, within a log's directory, that has one directory per stream.
const streamsDir = "jetstream/$G/streams"

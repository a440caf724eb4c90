// Package hooks provides replacements of a worker's defaults for Perdure's own programs, tests and
// simulations. worker.Dial finds them in its context, so that worker.Config names no internal type.
// A set of hooks is a value that goroutines may read concurrently.
package hooks

import (
	"context"
	"runtime/debug"
	"sync"

	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// Worker has the hooks of one worker.
type Worker struct {
	Network transport.Network // nil: TCP
	OnOrder func(wire.Order)  // called with orders to this process, such as faults; may be nil
	// OpenLog opens the job's update log at an address, if the job has one; nil: without credentials except
	// Config.Keys. Dial calls it once.
	OpenLog func(ctx context.Context, addr string, o updatelog.Options) (updatelog.Log, error)
	// OpenStore opens the job's store at the location sent by the coordinator. nil: the store is a directory or a
	// bucket, and credentials are found as AWS tools find them. It is called when a state is saved there or must be
	// read.
	OpenStore func(ctx context.Context, where string) (store.Store, error)
	// Version is the version of Perdure; "": that of the program's dependency, if it is known.
	Version string
	// Died reports whether Leave is called for a program that has died; nil: it is not.
	Died func() bool
}

type key struct{}

// NewContext returns a context that carries the hooks of the worker that Dial creates with it.
func NewContext(ctx context.Context, w Worker) context.Context {
	return context.WithValue(ctx, key{}, w)
}

// FromContext returns the hooks that ctx carries, the zero value if it has none.
func FromContext(ctx context.Context) Worker {
	w, _ := ctx.Value(key{}).(Worker)
	return w
}

// ModuleVersion returns the version of Perdure that a program depends on; "" if it is unknown, as in a program that is
// built from a copy of the source or in Perdure's own repository.
var ModuleVersion = sync.OnceValue(func() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, m := range info.Deps {
		if m.Path == "github.com/perdure/perdure" && m.Replace == nil && m.Version != "(devel)" {
			return m.Version
		}
	}
	return ""
})

package worker_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/worker"
)

// TestDialIsHeard: a worker that is told to wait does so beyond its patience, and looks as long
// again for a coordinator that dies over it; without a word it gives up in time.
func TestDialIsHeard(t *testing.T) {
	const patience, waits = 10 * time.Second, 2 * time.Minute
	for _, told := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			mem := transport.NewMemory(1, transport.MemoryOptions{})
			l, err := mem.Host("coordinator").Listen("coordinator/1")
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			context.AfterFunc(ctx, func() { l.Close() })
			go func() {
				for lives := 1; ; lives++ {
					c, err := l.Accept()
					if err != nil {
						return
					}
					go func() {
						defer c.Close()
						if _, err := transport.Greet(c, time.Second, wire.Keys{}); err != nil {
							return
						}
						switch {
						case !told:
							var f wire.Frame
							_ = c.Recv(&f) // until it gives up
						case lives == 1:
							heard, end := context.WithTimeout(ctx, waits)
							defer end()
							transport.Reassure(heard, c) // and it dies
						default:
							_ = transport.Refuse(c, wire.Refusal{Reason: "enough"}) // which it hears
							var f wire.Frame
							_ = c.Recv(&f)
						}
					}()
				}
			}()
			began := time.Now()
			_, err = worker.Dial(ctx, worker.Config{
				Network: mem.Host("worker"), Coordinator: "coordinator/1",
				Slot: perdure.NoSlot, Patience: patience,
			})
			took := time.Since(began)
			if told && (!errors.Is(err, perdure.ErrRefused) || !strings.Contains(err.Error(), "enough") ||
				took < waits) {
				t.Errorf("told that it was heard, it ends after %v: %v", took, err)
			}
			if !told && (err == nil || took < patience || took > 2*patience) {
				t.Errorf("told nothing, it ends after %v: %v", took, err)
			}
			<-time.After(time.Second) // until its peer has noticed
		})
	}
}

package coordinator_test

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/registry"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/coordinator"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/testcluster"
)

// lateRegistry takes a while to save, and records what it saved.
type lateRegistry struct {
	registry.Registry
	took time.Duration

	mu    sync.Mutex
	saves int
	views map[uint64]protocol.View // saved views by revision
}

type lateLease struct {
	registry.Lease
	r *lateRegistry
}

func (r *lateRegistry) Acquire(ctx context.Context, holder registry.Holder) (registry.Lease, error) {
	l, err := r.Registry.Acquire(ctx, holder)
	return lateLease{l, r}, err
}

func (l lateLease) Save(ctx context.Context, doc []byte, previous uint64) (uint64, error) {
	<-time.After(l.r.took) // virtual time
	var record membership.JobRecord
	if err := json.Unmarshal(doc, &record); err != nil {
		return 0, err
	}
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	l.r.saves++
	l.r.views[record.View.Revision] = record.View
	return l.Lease.Save(ctx, doc, previous)
}

// TestGathered checks that messages which arrive while the registry is saving are saved together, so that many servers
// do not wait for each other. An observer that asks for the view meanwhile receives only a saved one.
func TestGathered(t *testing.T) {
	const many, took = 100, 50 * time.Millisecond
	r := &lateRegistry{took: took, views: map[uint64]protocol.View{}}
	inJob(t, testcluster.Job("bsp", "none", 1, many, many), func(t *testing.T, on *lone) {
		mem := on.Net
		began := time.Now()
		var servers, observers []transport.Conn
		for i := range many {
			servers = append(servers,
				peer(t, mem, wire.Hello{
					Role: wire.RoleServer, Index: i, Process: fmt.Sprint("server-", i),
					PID: i + 1,
				}))
		}
		<-time.After(took / 2) // while the first is being saved
		for i := range 3 {
			observers = append(observers,
				peer(t, mem, wire.Hello{Role: wire.RoleObserver, Process: fmt.Sprint("observer-", i)}))
		}
		for _, conn := range observers {
			var v protocol.View
			await(t, conn, wire.KindView, &v)
			r.mu.Lock()
			if recorded, there := r.views[v.Revision]; !there || !reflect.DeepEqual(v, recorded) {
				t.Errorf("an observer received %+v; saved is %+v", v, recorded)
			}
			r.mu.Unlock()
		}
		for _, conn := range servers {
			var w wire.Welcome
			await(t, conn, wire.KindWelcome, &w)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.saves > many/4 {
			t.Errorf("%d servers that came together were saved %d times, which took %v", many, r.saves,
				time.Since(began))
		}
	}, func(cfg *coordinator.Config) { r.Registry, cfg.Registry = cfg.Registry, r })
}

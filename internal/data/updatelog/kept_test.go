package updatelog

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// late is a store in which the queried server lags behind the rest of the cluster.
type late struct {
	store
	looks int // number of lookups that find no record
}

func (s *late) record(ctx context.Context, shard int, at Position) ([]byte, error) {
	if s.looks > 0 {
		s.looks--
		return nil, nil
	}
	return s.store.record(ctx, shard, at)
}

// TestLateServer checks that a record is not reported lost if the log returns it late, and is reported lost if the log
// never returns it.
func TestLateServer(t *testing.T) {
	for looks, want := range map[int]bool{0: false, maxLooks - 1: false, maxLooks: true} {
		synctest.Test(t, func(t *testing.T) {
			lost := make(chan error, 1)
			o := Options{Job: job, Shards: 2, Lost: func(_ int, err error) { lost <- err }}
			must(t, o.check())
			m := NewMemory()
			plain, err := m.Open(o)
			must(t, err)
			l := newLog(o, &late{plain.(*log).store, looks}, 1)
			put1(t, l, "last")
			l.returned()
			<-time.After(time.Minute)
			if len(lost) > 0 != want {
				t.Errorf("after %d failed lookups, reported lost: %v", looks, !want)
			}
			must(t, l.Close())
			must(t, plain.Close())
		})
	}
}

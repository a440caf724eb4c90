package updatelog

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// laggingStore is a store in which the queried server lags behind the rest of the cluster.
type laggingStore struct {
	store
	misses int // number of lookups that find no record
}

func (s *laggingStore) record(ctx context.Context, shard int, at Position) ([]byte, error) {
	if s.misses > 0 {
		s.misses--
		return nil, nil
	}
	return s.store.record(ctx, shard, at)
}

// TestLateServer checks that a record is not reported lost if the log returns it late, and is reported lost if the log
// never returns it.
func TestLateServer(t *testing.T) {
	for looks, want := range map[int]bool{0: false, maxLookups - 1: false, maxLookups: true} {
		synctest.Test(t, func(t *testing.T) {
			lost := make(chan error, 1)
			o := Options{Job: job, Shards: 2, OnLost: func(_ int, err error) { lost <- err }}
			must(t, o.check())
			m := NewMemory()
			plain, err := m.Open(o)
			must(t, err)
			l := newLog(o, &laggingStore{plain.(*log).store, looks}, 1)
			put1(t, l, "last")
			l.onAvailable()
			<-time.After(time.Minute)
			if len(lost) > 0 != want {
				t.Errorf("after %d failed lookups, reported lost: %v", looks, !want)
			}
			must(t, l.Close())
			must(t, plain.Close())
		})
	}
}

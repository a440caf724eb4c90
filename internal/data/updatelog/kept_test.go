package updatelog

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// late is a store of which one server, that is asked for records, has not heard yet what the
// others have.
type late struct {
	store
	looks int // in which it knows of no record
}

func (s *late) record(ctx context.Context, shard int, at Position) ([]byte, error) {
	if s.looks > 0 {
		s.looks--
		return nil, nil
	}
	return s.store.record(ctx, shard, at)
}

// TestLateServer: a record that the log does not show at once, though it says that it goes
// further, is not lost yet; one that it never shows is.
func TestLateServer(t *testing.T) {
	for looks, want := range map[int]bool{0: false, mostLooks - 1: false, mostLooks: true} {
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
				t.Errorf("with %d looks in vain it is said to be lost: %v", looks, !want)
			}
			must(t, l.Close())
			must(t, plain.Close())
		})
	}
}

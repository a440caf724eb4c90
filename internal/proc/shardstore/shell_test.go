package shardstore

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
)

// fakeLog collects appended entries and has records from first to next.
type fakeLog struct {
	updatelog.Log
	first, next updatelog.Position
	fails       error
	appended    chan []byte
}

func (l *fakeLog) Extent(context.Context, int) (first, next updatelog.Position, err error) {
	return l.first, l.next, nil
}

func (l *fakeLog) Append(_ context.Context, _ int, entry [][]byte, done func(updatelog.Position, error)) error {
	go func() {
		if l.fails == nil {
			l.appended <- entry[0] // before done is called, which lets the next append start
		}
		done(0, l.fails)
	}()
	return nil
}

// TestOpen checks that Open accepts positions within the log and explains others.
func TestOpen(t *testing.T) {
	st := NewStream(t.Context(),
		StreamSettings{Lock: &sync.Mutex{}, Store: store.NewDir(disk.NewMemory(), "snapshots")})
	st.SetLog(&fakeLog{first: 5, next: 9})
	for from, want := range map[updatelog.Position]string{
		4: "newer snapshots in snapshots", 5: "", 9: "", 10: "the log ends before record 9",
	} {
		next, err := st.Open(from)
		if want == "" && (err != nil || next != 9) ||
			want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("from %d: %d, %v; want %q", from, next, err, want)
		}
		if from < 5 != errors.Is(err, updatelog.ErrTrimmed) {
			t.Errorf("from %d: %v", from, err)
		}
	}
}

// TestLives checks that an epoch is started once, with a Life before its other facts, and that the shard may serve once
// that Life was read.
func TestLives(t *testing.T) {
	var mu sync.Mutex
	log := &fakeLog{appended: make(chan []byte)}
	st := NewStream(t.Context(), StreamSettings{Lock: &mu})
	st.SetLog(log)
	ended := make(chan error)
	go func() { ended <- st.AppendFacts() }()
	life := wire.Frame{Header: wire.Header{Kind: wire.KindLife, Epoch: 3}}
	mu.Lock()
	if st.ServesLocked(life, false) || st.ServesLocked(life, true) || st.ServesLocked(life, true) {
		t.Error("the shard may serve before the epoch's Life was read")
	}
	st.AddLocked(wire.Frame{Header: wire.Header{Kind: wire.KindEnd}}, 3)
	mu.Unlock()
	for i, want := range []wire.Kind{wire.KindLife, wire.KindEnd} {
		var f wire.Frame
		if _, err := wire.Decode(<-log.appended, &f); err != nil || f.Kind != want || f.Request != uint64(i) ||
			f.Epoch != 3 {
			t.Fatalf("fact %d is %+v, %v", i, f.Header, err)
		}
		mu.Lock()
		st.AcceptsLocked(&f, false)
		if !st.ServesLocked(life, true) {
			t.Error("the shard may not serve although the epoch's Life was read")
		}
		mu.Unlock()
	}
	st.Retire()
	if err := <-ended; err != nil || !st.Stopped() {
		t.Errorf("it ended with %v", err)
	}
}

// TestAppendFails checks that a failed append is reported unless the shard is retired.
func TestAppendFails(t *testing.T) {
	lost := errors.New("lost")
	st := NewStream(t.Context(), StreamSettings{Lock: &sync.Mutex{}})
	st.SetLog(&fakeLog{fails: lost})
	st.AddLocked(wire.Frame{Header: wire.Header{Kind: wire.KindEnd}}, 1)
	if err := st.AppendFacts(); !errors.Is(err, lost) {
		t.Errorf("it returned %v", err)
	}
}

// TestBehind checks that a shard is behind until it has read all entries that were in the log when it was opened, and
// whenever the log is known to have more.
func TestBehind(t *testing.T) {
	st := NewStream(t.Context(), StreamSettings{Lock: &sync.Mutex{}})
	if st.BeginLocked(3); !st.BehindLocked() || st.IsCaughtUpLocked() {
		t.Error("it is not behind before it has read any entries")
	}
	if !st.CaughtUpLocked(8) || st.CaughtUpLocked(8) {
		t.Error("CaughtUp must report the first time once")
	}
	if st.BehindLocked() || !st.IsCaughtUpLocked() || st.resume != 8 {
		t.Errorf("it is behind at %d", st.resume)
	}
	if st.CaughtUpLocked(6); st.resume != 8 {
		t.Errorf("it resumes at the older position %d", st.resume)
	}
}

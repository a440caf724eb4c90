package settings

import (
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/logserver"
	"github.com/perdure/perdure/internal/proc/shardstore"
)

// endedTestLog is a log that jobs of two shards and one slot have appended to.
type endedTestLog struct {
	*testing.T
	serves *logserver.Server
}

func newEndedLog(t *testing.T) *endedTestLog {
	s, err := logserver.Serve(t.TempDir(), logserver.ServeOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return &endedTestLog{t, s}
}

func jobOf(id, consistency string) perdure.JobSpec {
	c, err := perdure.ParseConsistency(consistency)
	if err != nil {
		panic(err)
	}
	return perdure.JobSpec{
		ID: id, Slots: 1, Shards: 2, Servers: 1, Consistency: c,
		Recovery: perdure.Recovery{Kind: perdure.RecoverStateless},
	}
}

// appends appends entries to the streams of a job's shards, one line per shard: "u0" is an update of clock 0, "t0" its
// tick.
func (l *endedTestLog) appends(job *perdure.JobSpec, lines ...string) {
	l.Helper()
	to, err := updatelog.Dial(l.Context(), l.serves.URL(),
		updatelog.DialOptions{Options: updatelog.Options{Job: job.ID, Shards: job.Shards}, MaxBytes: 1 << 20})
	must(l, err)
	spec := perdure.TableSpec{
		Name: "t", Rows: 2, Dim: 1, Rule: perdure.Rule{Kind: perdure.RuleAdd}, Consistency: job.Consistency,
		Init: perdure.Init{Kind: perdure.InitZeros},
	}
	for shard, line := range lines {
		frames := []wire.Frame{{Header: wire.Header{Kind: wire.KindAddTable}, Payload: wire.JSON(spec)}}
		for _, word := range strings.Fields(line) {
			f := wire.Frame{Header: wire.Header{Kind: wire.KindTick, Clock: perdure.Clock(word[1] - '0')}}
			if word[0] == 'u' {
				f.Kind, f.Parts = wire.KindUpdate, 1
				f.Payload = wire.AppendBlock(nil, &wire.Block{
					Rows: wire.Rows{First: perdure.RowID(shard), Count: 1}, Values: []float32{float32(f.Clock + 1)},
				})
			}
			frames = append(frames, f)
		}
		for _, f := range frames {
			f.Generation, f.Incarnation, f.Shard = 1, 3, perdure.ShardID(shard)
			done := make(chan error, 1)
			must(l, to.Append(l.Context(), shard, [][]byte{wire.Append(nil, &f)},
				func(_ updatelog.Position, err error) { done <- err }))
			must(l, <-done)
		}
	}
	must(l, to.Close())
}

func (l *endedTestLog) read(job perdure.JobSpec) (*EndedState, error) {
	l.Helper()
	looks, err := updatelog.Inspect(l.Context(), l.serves.URL(), updatelog.DialOptions{})
	must(l, err)
	defer func() { must(l, looks.Close()) }()
	start := membership.NewJobRecord(job, 1, 0, nil)
	none := store.NewDir(disk.NewMemory(), "")
	return ReadEnded(l.Context(), &EndedRun{Job: job, View: start.View, Checkpoints: none, Snapshots: none, Log: looks})
}

// TestReadEnded checks which clocks of an ended run count. With two-step clocks a clock counts on all shards or on
// none, whatever workers had started. Otherwise it counts on each shard separately. The written snapshots must have the
// same rows and no incarnation.
func TestReadEnded(t *testing.T) {
	l := newEndedLog(t)
	for i, c := range []struct {
		consistency, zero, one string
		cut                    perdure.Clock
		rows                   [2]float32
		err                    error
	}{
		{"bsp", "u0 t0 u1 t1 u2", "u0 t0 u1", 2, [2]float32{3, 3}, nil},
		{"bsp", "u0 t0", "u0 t0 u1", 1, [2]float32{1, 1}, nil},
		{"asp", "u0 u1 u2", "u0 u1", 2, [2]float32{6, 3}, nil},
		{"bsp", "u0 t0 u1 t1", "u0 t0", 0, [2]float32{}, updatelog.ErrDamaged},
		{"bsp", "u0", "u0", 0, [2]float32{}, ErrNothingToResume},
	} {
		job := jobOf(string(rune('a'+i)), c.consistency)
		l.appends(&job, c.zero, c.one)
		st, err := l.read(job)
		if !errors.Is(err, c.err) {
			t.Errorf("%s: %v, want %v", job.ID, err, c.err)
		}
		if c.err != nil || err != nil {
			continue
		}
		if furthest := c.cut + perdure.Clock(strings.Count(c.consistency, "a")); st.Furthest != furthest ||
			st.Cut != c.cut || len(st.Tables) != 1 || st.Slots != nil {
			t.Errorf("%s: the cut is clock %d, with %d tables, %v", job.ID, st.Cut, len(st.Tables), st.Slots)
		}
		to, next := store.NewDir(disk.NewMemory(), "x"), jobOf("next", c.consistency)
		must(t, st.Write(t.Context(), to, &next))
		for shard, want := range c.rows {
			id := perdure.ShardID(shard)
			in := shardstore.NewStream(t.Context(),
				shardstore.StreamSettings{Shard: id, Lock: &sync.Mutex{}, Store: to})
			got, from, err := in.Load(&next, slog.Default())
			must(t, err)
			sh := newEndedShard(&EndedRun{Job: next}, id)
			sh.rep.InstallSnapshot(got)
			s := &sh.rep.State
			if row := s.Parts()[0].Image().Planes[0][0][0]; row != want || from != 1 || got.LogProgress().Epoch != 0 ||
				len(s.Applied()) != 1 || s.MinClock() < c.cut {
				t.Errorf("%s: shard %d has %v, want %v; from record %d, %v", job.ID, id, row, want, from, s.Applied())
			}
			if s.Counts(0).Staged != s.Applied()[0] {
				t.Errorf("%s: shard %d still has started clocks: %+v", job.ID, shard, s.Counts(0))
			}
		}
		must(t, st.Remove(to))
		if left, err := to.List(""); err != nil || len(left) > 0 {
			t.Errorf("%s: files left after Remove: %v, %v", job.ID, left, err)
		}
	}
	if _, err := l.read(jobOf("other", "bsp")); err == nil || !strings.Contains(err.Error(), "perdure-other-0 is not") {
		t.Errorf("job without streams in the log: %v", err)
	}
}

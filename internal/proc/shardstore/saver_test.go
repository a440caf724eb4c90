package shardstore

import (
	"bytes"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/chain"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
)

// heard is a saver's log; told counts status reports.
type heard struct {
	bytes.Buffer
	told int
}

func saver(t *testing.T, job *perdure.JobSpec) (*Saver, *heard) {
	t.Helper()
	h := &heard{}
	return NewSaver(t.Context(), SaverSettings{
		Job: job, Shard: 3, Lock: &sync.Mutex{}, Store: store.NewDir(disk.OS(), t.TempDir()),
		ReadSem: make(chan struct{}, 1),
		Log:     slog.New(slog.NewTextHandler(h, nil)), Notify: func() { h.told++ },
	}), h
}

// TestInsist checks that a failing operation is retried until it succeeds, the tries are used up, or the saver ends,
// and that each failure is logged and reported.
func TestInsist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct{ failures, retiredAt, want, said int }{
			{0, 0, 1, 0}, {3, 0, 4, 3}, {99, 0, tries, tries}, {99, 2, 2, 1},
		} {
			s, received := saver(t, nil)
			tried := 0
			err := s.Retry("cannot do it", func() error {
				if tried++; tried == c.retiredAt {
					s.Retire()
				}
				if tried <= c.failures {
					return errors.New("broken")
				}
				return nil
			})
			if tried != c.want || received.told != c.said || (err == nil) != (c.want > c.failures) {
				t.Errorf("%+v: tried %d times, reported %d times, %v", c, tried, received.told, err)
			}
			if n := strings.Count(received.String(), `msg="cannot do it" shard=3 try=`); n != c.said {
				t.Errorf("%+v: the log has %d lines: %s", c, n, received.String())
			}
			var st protocol.ShardStatus
			if s.AddStatusLocked(&st); (st.Problem == "broken") != (c.said > 0) {
				t.Errorf("%+v: the status says %q", c, st.Problem)
			}
		}
		s, _ := saver(t, nil)
		if s.Retire(); s.Retry("", func() error { panic("it is over") }) != nil || !s.Stopped() {
			t.Error("an operation was tried after the end")
		}
	})
}

// TestCut checks that a cut is written in all three modes, and that the status reports it.
func TestCut(t *testing.T) {
	for _, c := range []struct {
		name           string
		behind, stands bool
	}{{"all of it", false, true}, {"changed rows", true, true}, {"in the background", true, false}} {
		recovery, err := perdure.ParseRecovery("checkpoint:5")
		if err != nil {
			t.Fatal(err)
		}
		job := &perdure.JobSpec{ID: "j", Slots: 2, Servers: 1, Shards: 4, Seed: 7, Recovery: recovery}
		v := &protocol.View{Generation: 7, Shards: make([]protocol.ShardView, 4), Slots: make([]protocol.SlotView, 2)}
		r := replica.New(replica.Settings{Shard: 3, Job: *job})
		r.SetView(v, replica.Role{Head: true}, false)
		r.SetContent(replica.Content{States: make([][]byte, 2), Applied: []perdure.Clock{5, 6}}, v)
		s, received := saver(t, job)
		save := &replica.Save{Cut: 5}
		if !c.stands {
			save.Image = r.State.Image(5)
		}
		cut := s.CutLocked(chain.Fence{Shard: 3, Generation: 7, Epoch: 2}, save, &r.State, c.behind)
		if cut.Clock() != 5 || cut.PausesShard() != c.stands {
			t.Errorf("%s: clock %d, stands %v", c.name, cut.Clock(), cut.PausesShard())
		}
		s.problem = "full"
		seg, err := cut.Write()
		if err != nil || seg.Cut != 5 || seg.Bytes == 0 || seg.File == "" || received.told != 0 {
			t.Fatalf("%s: %+v, %v; %s", c.name, seg, err, received)
		}
		var st protocol.ShardStatus
		if s.AddStatusLocked(&st); st.SaveBytes != seg.Bytes || st.Problem != "full" {
			t.Errorf("%s: the status says %+v", c.name, st)
		}
		if !s.ClearProblemLocked() || s.ClearProblemLocked() {
			t.Errorf("%s: Works must report one change", c.name)
		}
	}
}

// TestNoSecondTry checks that a failed cut is tried only once, and reported, if the shard continues.
func TestNoSecondTry(t *testing.T) {
	job := &perdure.JobSpec{ID: "j", Slots: 1, Shards: 4}
	v := &protocol.View{Generation: 7, Shards: make([]protocol.ShardView, 4), Slots: make([]protocol.SlotView, 1)}
	r := replica.New(replica.Settings{Shard: 3, Job: *job})
	r.SetContent(replica.Content{States: make([][]byte, 1), Applied: []perdure.Clock{5}}, v)
	s, received := saver(t, job)
	s.Store = store.NewDir(disk.OS(), t.TempDir()+"/none")
	cut := s.CutLocked(chain.Fence{Shard: 3}, &replica.Save{Image: r.State.Image(5)}, &r.State, true)
	if _, err := cut.Write(); err == nil || received.told != 1 || s.problem == "" ||
		strings.Count(received.String(), "next cut") != 1 {
		t.Errorf("%v; reported %d times: %s", err, received.told, received)
	}
}

// TestLoad checks that a shard is empty at clock 0, and that at a cut its checkpoint must exist.
func TestLoad(t *testing.T) {
	job := &perdure.JobSpec{ID: "j", Slots: 2, Shards: 1}
	v := &protocol.View{Generation: 1, Shards: make([]protocol.ShardView, 1)}
	s, _ := saver(t, job)
	s.Shard = 0
	c, err := s.Load(v)
	if err != nil || len(c.Parts) != 0 || len(c.Applied) != 2 || len(c.States) != 2 {
		t.Errorf("at clock 0: %+v, %v", c, err)
	}
	v.Generation, v.Cut = 2, 10
	if _, err := s.Load(v); !errors.Is(err, checkpoint.ErrNoCheckpoint) || !strings.Contains(err.Error(), "clock 10") {
		t.Errorf("at a cut without a checkpoint: %v", err)
	}
}

// TestBlankPart checks that a segment must contain the rows of its shard.
func TestBlankPart(t *testing.T) {
	job := &perdure.JobSpec{ID: "j", Slots: 1, Shards: 2}
	spec := perdure.TableSpec{Name: "w", Dim: 1, Rows: 4}
	v := &protocol.View{Tables: []perdure.TableSpec{spec}}
	other := spec
	other.Dim = 2
	for _, c := range []struct {
		name        string
		t           int
		spec        perdure.TableSpec
		first, rows int64
		want        string
	}{
		{"its rows", 0, spec, 2, 2, ""},
		{"another shard's", 0, spec, 0, 2, "the shard has 2 to 3"},
		{"too few", 0, spec, 2, 1, "the shard has 2 to 3"},
		{"another table", 0, other, 2, 2, "differs from"},
		{"a table too many", 1, spec, 2, 2, "differs from"},
	} {
		_, err := blankPart(job, v, 1, c.t, c.spec, c.first, c.rows)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// TestRest checks that the next round may start after 49 times the duration of the last one, and that Rest returns when
// the shard is retired.
func TestRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := saver(t, nil)
		if began := time.Now(); !s.WaitForNextRound(2*time.Second) || time.Since(began) != 98*time.Second {
			t.Errorf("it rested for %v", time.Since(began))
		}
		began := time.Now()
		go func() {
			time.Sleep(time.Second)
			s.Retire()
		}()
		if s.WaitForNextRound(time.Hour) || time.Since(began) != time.Second {
			t.Errorf("it rested for %v although the shard was retired after 1s", time.Since(began))
		}
	})
}

// TestNothingSaved checks that all rows of dense tables count as initial if nothing was saved.
func TestNothingSaved(t *testing.T) {
	by, err := perdure.ParseRecovery("scar")
	if err != nil {
		t.Fatal(err)
	}
	job := &perdure.JobSpec{ID: "j", Shards: 4, Slots: 1, Recovery: by}
	s, _ := saver(t, job) // shard 3
	v := &protocol.View{Slots: make([]protocol.SlotView, 1), Shards: make([]protocol.ShardView, 4)}
	for _, want := range [][]protocol.SavedRows{nil, {{Rows: 2 + 5}}} {
		c, err := s.Load(v)
		if err != nil || !slices.Equal(c.Kept, want) || c.RowFiles != nil {
			t.Errorf("%d tables: %+v, %v, want %+v", len(v.Tables), c, err, want)
		}
		v.Tables = []perdure.TableSpec{
			{Name: "a", Rows: 10, Dim: 1},
			{Name: "s", Sparse: true, Dim: 1},
			{Name: "b", Rows: 20, Dim: 1},
		}
	}
}

package segments

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/link"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
)

// What fails is tried again until it succeeds, is given up, or is over.
func TestInsist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		for _, c := range []struct{ failures, retiredAt, want int }{
			{0, 0, 1}, {3, 0, 4}, {99, 0, tries}, {99, 2, 2},
		} {
			s := New(t.Context(), Settings{})
			tried, heard := 0, 0
			err := s.Insist(func() error {
				if tried++; tried == c.retiredAt {
					s.Retire()
				}
				if tried <= c.failures {
					return broken
				}
				return nil
			}, func(try int, err error) {
				if heard++; try != heard || !errors.Is(err, broken) {
					t.Errorf("%+v: try %d: %v", c, try, err)
				}
			})
			if tried != c.want || heard != min(c.want, c.failures) || (err == nil) != (c.want > c.failures) {
				t.Errorf("%+v: tried %d times, heard of %d, %v", c, tried, heard, err)
			}
		}
		s := New(t.Context(), Settings{})
		if s.Retire(); s.Insist(func() error { panic("it is over") }, nil) != nil || !s.Over() {
			t.Error("what is over is tried")
		}
	})
}

// A shard's segment is written as it is described, and its status says so.
func TestWrite(t *testing.T) {
	job := &perdure.JobSpec{ID: "j", Slots: 2, Servers: 1, Shards: 4, Seed: 7}
	v := &perdure.View{Generation: 7, Shards: make([]perdure.ShardView, 4), Slots: make([]perdure.SlotView, 2)}
	r := replica.New(replica.Settings{Shard: 3, Job: *job})
	r.Follow(v, replica.Place{Head: true}, false)
	r.Fill(replica.Content{States: make([][]byte, 2), Applied: []perdure.Clock{5, 6}}, v)
	s := New(t.Context(), Settings{Job: job, Lock: &sync.Mutex{}, Disk: disk.OS(), Dir: t.TempDir()})
	whole := s.Whole(link.Name{Shard: 3, Generation: 7, Epoch: 2}, &r.State)
	if whole.Shard != 3 || whole.Cut != 5 || whole.Epoch != 2 || len(whole.Applied) != 2 {
		t.Errorf("described as %+v", whole)
	}
	s.Fails(errors.New("full"))
	seg, err := s.Write(whole, 5)
	if err != nil || seg.Cut != 5 || seg.Bytes == 0 || seg.File == "" {
		t.Fatalf("%+v, %v", seg, err)
	}
	var st perdure.ShardStatus
	if s.Status(&st); st.SaveBytes != seg.Bytes || st.Problem != "full" {
		t.Errorf("the status says %+v", st)
	}
	if !s.Works() || s.Works() {
		t.Error("it works anew once")
	}
}

// At clock 0 a shard holds nothing; at a cut, what its checkpoint says, which must be there.
func TestLoad(t *testing.T) {
	job := &perdure.JobSpec{ID: "j", Slots: 2, Shards: 1}
	v := &perdure.View{Generation: 1, Shards: make([]perdure.ShardView, 1)}
	c, err := Load(disk.OS(), t.TempDir(), job, 0, v)
	if err != nil || len(c.Parts) != 0 || len(c.Applied) != 2 || len(c.States) != 2 {
		t.Errorf("at clock 0: %+v, %v", c, err)
	}
	if _, err := manifest(disk.OS(), t.TempDir(), "j", 10, 1, false); !errors.Is(err, checkpoint.ErrNoCheckpoint) {
		t.Errorf("at a cut of which there is no checkpoint: %v", err)
	}
}

// A segment's rows must be those that the shard holds.
func TestBlankPart(t *testing.T) {
	job := &perdure.JobSpec{ID: "j", Slots: 1, Shards: 2}
	spec := perdure.TableSpec{Name: "w", Dim: 1, Rows: 4}
	v := &perdure.View{Tables: []perdure.TableSpec{spec}}
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
		{"another shard's", 0, spec, 0, 2, "the shard 2 to 3"},
		{"too few", 0, spec, 2, 1, "the shard 2 to 3"},
		{"another table", 0, other, 2, 2, "not the job's"},
		{"a table too many", 1, spec, 2, 2, "not the job's"},
	} {
		_, err := blankPart(job, v, 1, c.t, c.spec, c.first, c.rows)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

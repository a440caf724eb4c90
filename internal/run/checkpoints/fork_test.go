package checkpoints

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
)

// forked returns an empty folder for a fork, and its job.
func forked(t *testing.T) (*Location, *perdure.JobSpec) {
	t.Helper()
	fsys := disk.NewMemory()
	must(t, fsys.MkdirAll("c"))
	job := rowsJob()
	job.ID = "second"
	return &Location{Store: store.NewDir(fsys, "c"), Now: saved}, &job
}

// TestForkRows checks that a job forked from any running checkpoint starts with the same rows with the same ages, and
// that the original is unchanged.
func TestForkRows(t *testing.T) {
	f, fsys := keptRows(t, 5)
	before := held(t, fsys)
	for n := 1; n <= 5; n++ {
		clock := perdure.Clock(10*n + 3)
		f.Clock = &clock
		k, err := f.Choose()
		must(t, err)
		to, job := forked(t)
		begins, err := f.Fork(k, to, job)
		must(t, err)
		if begins.Number != 1 || len(begins.Files) != 2 || len(begins.Files[0]) != min(n, 3) {
			t.Errorf("fork of checkpoint %d starts with %+v", n, begins)
		}
		var was, is bytes.Buffer
		must(t, f.Show(&was, true))
		must(t, to.Show(&is, true))
		var a, b showResult
		must(t, json.Unmarshal(was.Bytes(), &a))
		must(t, json.Unmarshal(is.Bytes(), &b))
		if b.Job.ID != "second" || b.Clock != clock || agesOf(&a) != agesOf(&b) {
			t.Errorf("fork of checkpoint %d has %s, want %s", n, agesOf(&b), agesOf(&a))
		}
		model := filepath.Join(t.TempDir(), "model")
		must(t, to.Export(&bytes.Buffer{}, model, false, false))
		wantRows(t, model, n)
	}
	if after := held(t, fsys); !slices.Equal(after, before) {
		t.Errorf("files %v became %v", before, after)
	}
}

// TestForkSameClock checks several running checkpoints of one clock. They occur if checkpoints are published faster
// than clocks end. A fork uses the newest whole one.
func TestForkSameClock(t *testing.T) {
	f, fsys := keptRows(t, 3)
	found, err := checkpoint.List(f.Store)
	must(t, err)
	again := found.Checkpoints[0].Running
	again.Number, again.Shards = 4, slices.Clone(again.Shards)
	ref, err := checkpoint.WriteSegment(f.Store, rowsSegment(0, 4))
	must(t, err)
	again.Shards[0].Files = append(slices.Clone(again.Shards[0].Files), ref.Self())
	must(t, checkpoint.PublishRunning(f.Store, again))
	f.Clock = &again.Clock
	for _, want := range []uint64{4, 3} {
		k, err := f.Choose()
		must(t, err)
		to, job := forked(t)
		saved, err := f.Fork(k, to, job)
		if must(t, err); k.Number != want || len(saved.Files) != 2 {
			t.Errorf("forked from number %d with %d shards; want number %d", k.Number, len(saved.Files), want)
		}
		if want == 4 {
			remove(t, fsys, rowsName(4, 0))
		}
	}
}

// agesOf describes how old the rows of each shard are.
func agesOf(s *showResult) (text string) {
	for _, one := range s.Shards {
		text += fmt.Sprint(" shard ", one.Seq, *one.Initial)
		for _, file := range one.Files {
			text += fmt.Sprintf(" %d@%d", *file.Rows, *file.Clock)
		}
	}
	return text
}

// TestForkCut checks that a fork of a cut has a cut whose segments follow no others, or a running checkpoint with all
// rows.
func TestForkCut(t *testing.T) {
	f, _ := kept(t, 2)
	for _, rows := range []bool{false, true} {
		k, err := f.Choose()
		must(t, err)
		to, job := forked(t)
		if !rows {
			job.Recovery = testJob.Recovery
		}
		begins, err := f.Fork(k, to, job)
		must(t, err)
		if (begins != nil) != rows {
			t.Errorf("rows: %t; the fork starts with %+v", rows, begins)
		}
		must(t, to.Verify(&bytes.Buffer{}, false))
		found, err := checkpoint.List(to.Store)
		must(t, err)
		if k := found.Checkpoints; len(k) != 1 || len(k[0].Files()) != 2 || k[0].Manifest.Job.ID != "second" ||
			k[0].Cut != 20 || (k[0].Number > 0) != rows {
			t.Errorf("rows: %t; found %+v", rows, k)
		}
		model := filepath.Join(t.TempDir(), "model")
		must(t, to.Export(&bytes.Buffer{}, model, false, false))
		wantModel(t, model, 20)
	}
}

// TestForkGone checks the errors for checkpoints that the run deleted meanwhile, and for damaged ones.
func TestForkGone(t *testing.T) {
	f, fsys := keptRows(t, 2)
	k, err := f.Choose()
	must(t, err)
	write(t, fsys, rowsName(2, 1), flipped(-8)(read(t, fsys, rowsName(2, 1))))
	to, job := forked(t)
	if _, err := f.Fork(k, to, job); !oneLine(err, rowsName(2, 1)) {
		t.Errorf("damaged checkpoint: %v", err)
	}
	remove(t, fsys, runningName(2), rowsName(2, 0))
	_, err = f.Fork(k, to, job)
	if !oneLine(err, "the run deleted "+runningName(2)) {
		t.Errorf("deleted checkpoint: %v", err)
	}
	f.Run = ""
	if _, err := f.Choose(); !oneLine(err, "c is not in a run's directory") {
		t.Errorf("no run: %v", err)
	}
}

package segments

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/link"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/table"
)

// A running checkpoint: each row is saved by itself, some of them at a time, while training
// goes on. A shard that is lost begins with each row as it was last saved.

// Round is some rows of a shard that are to be written.
type Round struct {
	by    *Saver
	save  replica.Save
	state *replica.State
	image *writing
}

// Round takes rows that are to be written. It needs the lock.
func (s *Saver) Round(n link.Name, sv *replica.Save, st *replica.State) *Round {
	r := &Round{by: s, save: *sv, state: st, image: s.begin(n, sv.Image, st)}
	s.rounds++
	r.image.seg.Number = s.rounds
	return r
}

// Write writes the round, and tells the shard how that went. It returns how long it took: what
// could not be written goes into a later round.
func (r *Round) Write() (took time.Duration, err error) {
	w, s := r.image, r.by
	ref, err := s.write(w.seg, w.began)
	w.endTurn()
	took = time.Since(w.began)
	s.Lock.Lock()
	if err != nil {
		r.state.UnsavedRows(&r.save)
	} else {
		s.problem = ""
		r.state.SavedRows(&r.save, described(w.seg.Cut, ref))
	}
	s.Lock.Unlock()
	if err != nil && !s.Over() {
		s.Log.Error("cannot save rows; training goes on, and they are saved later", "shard", s.Shard, "err", err)
		s.Fails(err)
	}
	return took, err
}

// loadRows reads each row of the shard as it was last saved, in the files that a view names.
func (s *Saver) loadRows(v *perdure.View) (replica.Content, error) {
	job, id := s.Job, s.Shard
	saved := v.Shards[id].Saved
	c := replica.Content{States: make([][]byte, len(v.Slots)), Applied: make([]perdure.Clock, len(v.Slots))}
	if len(saved) == 0 {
		return c, nil // its tables are entries of the log
	}
	for t, spec := range v.Tables {
		first, rows := perdure.RowID(0), 0
		if !spec.Sparse {
			first, rows = placement.Range(spec.Rows, job.Shards, id)
		}
		c.Parts = append(c.Parts, table.Blank(spec, perdure.TableID(t), job.Seed, first, rows))
	}
	files := make([]checkpoint.FileRef, len(saved))
	for i, f := range saved {
		files[i] = checkpoint.FileRef(f)
	}
	layers, err := checkpoint.RestoreRows(s.Disk, s.Dir, job.ID, id, files, c.Parts)
	if err != nil {
		return c, err
	}
	newest := layers.Segments[len(files)-1]
	copy(c.States, newest.States)
	copy(c.Applied, newest.Applied)
	c.Seq = newest.Seq
	c.Saved = &replica.Saved{Files: saved, Layer: layers.Of, Kept: kept(layers)}
	return c, nil
}

// kept counts of rows of which file they are.
func kept(l *checkpoint.Layers) []words.Kept {
	out := make([]words.Kept, 1+len(l.Segments)) // the initial ones come first
	for i, s := range l.Segments {
		out[1+i].Cut, out[1+i].Seq = s.Cut, s.Seq
	}
	for _, rows := range l.Of {
		for _, layer := range rows {
			out[1+layer].Rows++
		}
	}
	return out
}

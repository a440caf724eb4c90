package shardstore

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

// SaveRound is some rows of a shard that are to be written.
type SaveRound struct {
	by    *Saver
	save  replica.Save
	state *replica.State
	image *writing
}

// SaveRound takes rows that are to be written. It needs the lock.
func (s *Saver) Round(n link.Name, sv *replica.Save, st *replica.State) *SaveRound {
	r := &SaveRound{by: s, save: *sv, state: st, image: s.begin(n, sv.Image, st)}
	s.rounds++
	r.image.seg.Number = s.rounds
	return r
}

// Write writes the round, and tells the shard how that went. It returns how long it took: what
// could not be written goes into a later round.
func (r *SaveRound) Write() (took time.Duration, err error) {
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

// roundsPart is the part of the time that is given to saving rows, where the job does not say
// how often: one fiftieth.
const roundsPart = 50

// Rest waits until the next round may come, where it is not of clocks when that is: as long after
// one that took so long that saving takes roundsPart of the time. It reports whether the shard
// still lives then.
func (s *Saver) Rest(took time.Duration) bool {
	select {
	case <-time.After((roundsPart - 1) * took):
		return true
	case <-s.ctx.Done():
		return false
	}
}

// leastRest is how long writing rows is taken to last where none were written yet.
const leastRest = 10 * time.Millisecond

// Took returns how long the last segment took to be written. It needs the lock.
func (s *Saver) Took() time.Duration { return max(s.took, leastRest) }

// loadRows reads each row of the shard as it was last saved, in the files that a view names.
func (s *Saver) loadRows(v *words.View) (replica.Content, error) {
	job, id := s.Job, s.Shard
	saved := v.Shards[id].Saved
	c := replica.Content{States: make([][]byte, len(v.Slots)), Applied: make([]perdure.Clock, len(v.Slots))}
	if len(saved) == 0 {
		c.Kept = initial(v, job, id)
		return c, nil // its tables are entries of the log
	}
	parts, layers, err := s.lay(v)
	if err != nil {
		return c, err
	}
	newest := layers.Segments[len(saved)-1]
	copy(c.States, newest.States)
	copy(c.Applied, newest.Applied)
	c.Parts, c.Seq = parts, newest.Seq
	c.Saved = &replica.Saved{Files: saved, Layer: layers.Of}
	c.Kept = keptIn(layers)
	return c, nil
}

// lay makes the shard's rows as they were last saved.
func (s *Saver) lay(v *words.View) (parts []*table.Part, l *checkpoint.Layers, err error) {
	job, id := s.Job, s.Shard
	for t, spec := range v.Tables {
		first, rows := placement.Range(&spec, job.Shards, id)
		parts = append(parts, table.Blank(spec, perdure.TableID(t), job.Seed, first, rows))
	}
	saved := v.Shards[id].Saved
	files := make([]checkpoint.FileRef, len(saved))
	for i, f := range saved {
		files[i] = checkpoint.FileRef(f)
	}
	l, err = checkpoint.RestoreRows(s.Store, job.ID, id, files, parts)
	return parts, l, err
}

// loadFork reads what the shard held at the cut from which its job goes on, and what had been saved of each row by
// then.
func (s *Saver) loadFork(v *words.View) (replica.Content, error) {
	c, err := s.loadCut(v)
	if err != nil {
		return c, err
	}
	past, layers, err := s.lay(v)
	if err == nil {
		c.Saved = &replica.Saved{Files: v.Shards[s.Shard].Saved, Layer: layers.Of, Past: past}
	}
	return c, err
}

// initial counts the rows of a shard of which nothing was saved: of a dense table all, and of a sparse
// one nobody knows of any.
func initial(v *words.View, job *perdure.JobSpec, id perdure.ShardID) []words.Kept {
	rows := 0
	for _, spec := range v.Tables {
		_, n := placement.Range(&spec, job.Shards, id)
		rows += n
	}
	if rows == 0 {
		return nil // as when the job begins
	}
	return []words.Kept{{Rows: int64(rows)}}
}

// keptIn counts of rows of which file they are.
func keptIn(l *checkpoint.Layers) []words.Kept {
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

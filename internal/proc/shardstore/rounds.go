package shardstore

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/chain"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/table"
)

// A partial checkpoint saves some rows at a time while training continues, each at its own clock. A lost shard is
// restored with the last saved version of each row.

// SaveRound is a set of a shard's rows that will be written.
type SaveRound struct {
	saver *Saver
	save  replica.Save
	state *replica.State
	image *imageWriter
}

// RoundLocked prepares writing rows. The caller must hold the lock.
func (s *Saver) RoundLocked(n chain.Fence, sv *replica.Save, st *replica.State) *SaveRound {
	r := &SaveRound{saver: s, save: *sv, state: st, image: s.newImageWriterLocked(n, sv.Image, st)}
	s.rounds++
	r.image.seg.Number = s.rounds
	return r
}

// Write writes the round, informs the state of the result, and returns how long it took. Rows that could not be written
// go into a later round.
func (r *SaveRound) Write() (took time.Duration, err error) {
	w, s := r.image, r.saver
	ref, err := s.write(w.seg, w.began)
	w.releaseRead()
	took = time.Since(w.began)
	s.Lock.Lock()
	if err != nil {
		r.state.RecordRowsNotWritten(&r.save)
	} else {
		s.problem = ""
		r.state.RecordRowsWritten(&r.save, segmentOf(w.seg.Cut, ref))
	}
	s.Lock.Unlock()
	if err != nil && !s.Stopped() {
		s.Log.Error("cannot save rows; training continues, and they will be saved later", "shard", s.Shard, "err", err)
		s.SetProblem(err)
	}
	return took, err
}

// saveShare limits saving rows to one fiftieth of the time if the job does not specify the interval.
const saveShare = 50

// WaitForNextRound waits until the next round may start, if the interval is not given in clocks. It waits so long that
// saving takes a saveShare-th of the time. It reports whether the shard still exists afterwards.
func (s *Saver) WaitForNextRound(took time.Duration) bool {
	select {
	case <-time.After((saveShare - 1) * took):
		return true
	case <-s.ctx.Done():
		return false
	}
}

// minSaveTime is the assumed time for writing rows before any were written.
const minSaveTime = 10 * time.Millisecond

// SaveTimeLocked returns how long writing the last segment took. The caller must hold the lock.
func (s *Saver) SaveTimeLocked() time.Duration { return max(s.saveTime, minSaveTime) }

// loadRows reads the last saved version of each row from the files that a view names.
func (s *Saver) loadRows(v *protocol.View) (replica.Content, error) {
	job, id := s.Job, s.Shard
	saved := v.Shards[id].Saved
	c := replica.Content{States: make([][]byte, len(v.Slots)), Applied: make([]perdure.Clock, len(v.Slots))}
	if len(saved) == 0 {
		c.Kept = initialRows(v, job, id)
		return c, nil // its tables are log entries
	}
	parts, layers, err := s.loadLayers(v)
	if err != nil {
		return c, err
	}
	newest := layers.Segments[len(saved)-1]
	copy(c.States, newest.States)
	copy(c.Applied, newest.Applied)
	c.Parts, c.Seq = parts, newest.Seq
	c.RowFiles = &replica.RowFiles{Files: saved, FileIndex: layers.FileIndex}
	c.Kept = rowsByFile(layers)
	return c, nil
}

// loadLayers returns the shard's rows as last saved.
func (s *Saver) loadLayers(v *protocol.View) (parts []*table.Part, l *checkpoint.RowOrigins, err error) {
	job, id := s.Job, s.Shard
	for t, spec := range v.Tables {
		first, rows := placement.Range(&spec, job.Shards, id)
		parts = append(parts, table.NewUninitialized(spec, perdure.TableID(t), job.Seed, first, rows))
	}
	saved := v.Shards[id].Saved
	files := make([]checkpoint.FileRef, len(saved))
	for i, f := range saved {
		files[i] = checkpoint.FileRef(f)
	}
	l, err = checkpoint.RestoreRows(s.Store, job.ID, id, files, parts)
	return parts, l, err
}

// loadFork reads the shard's content at the cut from which its job was forked, and the last saved version of each row.
func (s *Saver) loadFork(v *protocol.View) (replica.Content, error) {
	c, err := s.loadCut(v)
	if err != nil {
		return c, err
	}
	past, layers, err := s.loadLayers(v)
	if err == nil {
		c.RowFiles = &replica.RowFiles{Files: v.Shards[s.Shard].Saved, FileIndex: layers.FileIndex, SavedValues: past}
	}
	return c, err
}

// initialRows counts the rows of a shard without saved rows: all rows of dense tables. The rows of sparse tables are
// unknown.
func initialRows(v *protocol.View, job *perdure.JobSpec, id perdure.ShardID) []protocol.SavedRows {
	rows := 0
	for _, spec := range v.Tables {
		_, n := placement.Range(&spec, job.Shards, id)
		rows += n
	}
	if rows == 0 {
		return nil // as at the start of the job
	}
	return []protocol.SavedRows{{Rows: int64(rows)}}
}

// rowsByFile counts rows by the file that they come from.
func rowsByFile(l *checkpoint.RowOrigins) []protocol.SavedRows {
	out := make([]protocol.SavedRows, 1+len(l.Segments)) // the initial rows come first
	for i, s := range l.Segments {
		out[1+i].Cut, out[1+i].Seq = s.Cut, s.Seq
	}
	for _, rows := range l.FileIndex {
		for _, layer := range rows {
			out[1+layer].Rows++
		}
	}
	return out
}

package replica

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/table"
)

// Checkpoints are made of cuts. Where training goes on while one is written, every replica
// leaves a cut at once, and the head writes what the rows were, from an image of them. The
// log says nothing of that, and yet all replicas leave a cut at the same place in the log:
// when all updates of earlier clocks are applied and the log says that the cut before is
// saved. So no shard is ever more than one cut ahead of what it has saved.

// cuts are what a shard knows of its cuts: where it is to be saved, what is being written,
// and what was.
type cuts struct {
	behind  bool // training goes on while a cut is written
	saves   bool // checkpoints are kept
	rows    bool // rows are saved by themselves: there is a cut only if one is named, since the job is to end
	sparing bool // only what has changed is ever written in the background

	// Of the log, and so the same on every replica, but for segments that the view lets it
	// forget.
	schedule recovery.Schedule
	left     perdure.Clock   // the newest cut that the shard has gone on after
	unsaved  perdure.Clock   // the cut that it has left and that is not known to be saved; 0: none
	segments []words.Segment // saved, and not in a checkpoint yet

	// This replica's own.
	head   bool                // who writes what is to be saved
	writes bool                // unsaved is being written here, or the log is about to say that it is saved
	stands bool                // the shard stands at a cut while it is written
	files  []words.SegmentFile // the segments that the next one can follow; none: it has all rows
	held   []string            // states in the store that the image of unsaved refers to
}

// Image is the shard as it was at a cut, to be written while it goes on. Its rows' snapshots
// are of tables that go on changing: they are read under the lock that guards the replica.
type Image struct {
	Cut     perdure.Clock
	Seq     uint64
	Applied []perdure.Clock
	States  [][]byte
	Specs   []perdure.TableSpec
	First   []perdure.RowID     // by table: its first row here
	Rows    []*table.Snapshot   // by table
	Follows []words.SegmentFile // the earlier segments that it goes on from; none: it has all rows
}

// mostFiles is how many segments a checkpoint of a shard is made of at most.
const mostFiles = 32

// plan sets the next cut: of the interval, at the job's end, or one that was named;
// the shard may stand there already. One that it stands at is not moved.
func (c *cuts) plan(in *consistency.Intake) {
	s := c.schedule
	if c.rows {
		s.End = 0
	}
	if (c.saves || c.rows) && !in.AtCut() {
		in.SetCut(s.Next(recovery.Progress{MinClock: in.MinClock(), Left: c.left}))
	}
}

// setEnd takes over the job's end, which is a cut too.
func (c *cuts) setEnd(end perdure.Clock, in *consistency.Intake) {
	c.schedule.End = end
	in.SetEnd(end)
	c.plan(in)
}

// setNamed takes over a cut that was named.
func (c *cuts) setNamed(cut perdure.Clock, in *consistency.Intake) {
	c.schedule.Named = max(c.schedule.Named, cut)
	c.plan(in)
}

// leave goes on after a cut.
func (c *cuts) leave(cut perdure.Clock, in *consistency.Intake) {
	c.left = cut
	in.SetCut(c.schedule.After(cut))
	c.plan(in)
}

// mustStand reports whether the shard must stand at the cut where it is.
func (c *cuts) mustStand() bool { return !c.behind && !c.rows || c.unsaved > 0 }

// due reports whether the head is to write the cut at which the shard stands. Where
// checkpoints are written in the background it stands because the last one is not written:
// its head died over it, or could not write it. After the job's last clock nothing changes,
// so that that cut can be written like this, too.
func (c *cuts) due(in *consistency.Intake) bool {
	return c.head && !c.rows && !c.writes && (in.AtCut() || c.unsaved > 0 && c.unsaved == c.schedule.End)
}

// passed takes the log's word that a cut is saved.
func (c *cuts) passed(seg words.Segment, in *consistency.Intake) {
	switch {
	case seg.Cut == c.unsaved:
	case seg.Cut > c.left: // the shard stands there
		c.leave(seg.Cut, in)
	default:
		return // two heads have saved it
	}
	c.segments = append(c.segments, seg)
	c.unsaved, c.writes, c.stands, c.held = 0, false, false, nil
}

// durable forgets segments that are in a checkpoint.
func (c *cuts) durable(cut perdure.Clock) {
	c.segments = slices.DeleteFunc(c.segments, func(g words.Segment) bool { return g.Cut <= cut })
}

// image takes the rows as they are now, at a cut. It has those that have changed since the
// last one; but all where that is no more than twice the work, and where what would be
// superseded in the files came to more than a whole segment.
func (c *cuts) image(cut perdure.Clock, w *rows, in *consistency.Intake) *Image {
	changed, all := w.bytes()
	old := int64(0)
	for _, f := range c.files {
		old += f.Bytes
	}
	if len(c.files) == mostFiles || (2*changed >= all || old+changed > 2*all) && !c.sparing {
		c.files = nil
	}
	m := &Image{
		Cut: cut, Seq: w.seq, Applied: slices.Clone(in.Applied()), States: slices.Clone(w.states),
		Follows: slices.Clone(c.files),
	}
	for _, p := range w.parts {
		m.Specs, m.First = append(m.Specs, p.Spec), append(m.First, p.First)
		m.Rows = append(m.Rows, p.SnapshotChanged(len(c.files) == 0))
	}
	return m
}

// written notes that an image is in a file.
func (c *cuts) written(m *Image, file words.SegmentFile) {
	m.close(false)
	c.files = append(c.files, file)
}

func (m *Image) close(undo bool) {
	for _, rows := range m.Rows {
		if rows.Close(); undo {
			rows.Undo()
		}
	}
}

// missed reports whether the cut that the shard has left, which is no earlier than what was
// named, is being written by nobody.
func (c *cuts) missed() bool {
	return c.head && c.unsaved > 0 && c.unsaved >= c.schedule.Named && !c.writes && !c.stands
}

package replica

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/core/slotstate"
	"github.com/perdure/perdure/internal/data/table"
)

// Checkpoints consist of cuts. If training continues while a cut is written, every replica leaves the cut immediately,
// and the head writes the rows from an image of that moment. The log does not record this, yet all replicas leave a cut
// at the same position of the log: as soon as all updates of earlier clocks are applied and the log says that the
// previous cut is saved. So no shard is ever more than one cut ahead of its saved state.

// cuts tracks the cuts of a shard: the next one to save, the one being written, and those that are saved.
type cuts struct {
	background bool // training continues while a cut is written
	bySlot     bool // all cuts are cuts by slot: see cutAt
	saves      bool // checkpoints are kept
	rows       bool // rows are saved separately: the only cut is the one named when the job is about to end
	sparing    bool // background writes contain only changed rows, always

	// These follow from the log and are the same on every replica, except for segments that the view allows it to
	// forget.
	schedule recovery.Schedule
	left     perdure.Clock      // the newest cut that the shard has left
	unsaved  perdure.Clock      // the cut that it has left and that is not known to be saved; 0: none
	segments []protocol.Segment // saved, and not in a checkpoint yet

	// These are this replica's own.
	head   bool                   // this replica writes the cuts
	writes bool                   // unsaved is being written here, or the log is about to confirm it
	paused bool                   // the shard is paused at a cut while it is written
	files  []protocol.SegmentFile // segments that the next one can build on; none: it must have all rows
	held   []string               // stored states that the image of unsaved refers to
}

// Image is the shard as it was at a cut, to be written while the shard continues. Its snapshots belong to tables that
// keep changing, so they must be read under the lock that guards the replica.
type Image struct {
	Cut     perdure.Clock
	Seq     uint64
	Applied []perdure.Clock
	States  [][]byte
	Specs   []perdure.TableSpec
	First   []perdure.RowID        // by table: the shard's first row
	Rows    []*table.Snapshot      // by table
	Base    []protocol.SegmentFile // earlier segments that it builds on; none: it has all rows
}

// maxFiles is the maximum number of segments in the checkpoint of a shard.
const maxFiles = 32

// plan sets the next cut: the next multiple of the interval, the job's end, or a named clock. The shard may already be
// there. A cut at which it is paused is not moved.
func (c *cuts) plan(in *consistency.Sequencer) {
	s := c.schedule
	if c.rows {
		s.End = 0
	}
	if c.bySlot {
		return
	}
	if (c.saves || c.rows) && !in.AtCut() {
		in.SetCut(s.Next(recovery.Progress{MinClock: in.MinClock(), Left: c.left}))
	}
}

// setEnd sets the job's end, which is also a cut.
func (c *cuts) setEnd(end perdure.Clock, in *consistency.Sequencer) {
	c.schedule.End = end
	in.SetEnd(end)
	c.plan(in)
}

// setNamed sets a cut that the coordinator named.
func (c *cuts) setNamed(cut perdure.Clock, in *consistency.Sequencer) {
	c.schedule.Named = max(c.schedule.Named, cut)
	c.plan(in)
}

// leave makes the shard continue after a cut.
func (c *cuts) leave(cut perdure.Clock, in *consistency.Sequencer) {
	c.left = cut
	in.SetCut(c.schedule.After(cut))
	c.plan(in)
}

// mustPause reports whether the shard must pause at the cut that it has reached.
func (c *cuts) mustPause() bool { return !c.background && !c.rows || c.unsaved > 0 }

// due reports whether the head must write the cut at which the shard is paused. With background writes the shard is
// paused there because the last cut is not written: its head died during the write, or failed to write it. After the
// job's last clock nothing changes, so the final cut can also be written this way.
func (c *cuts) due(in *consistency.Sequencer) bool {
	return c.head && !c.rows && !c.bySlot && !c.writes && (in.AtCut() || c.unsaved > 0 && c.unsaved == c.schedule.End)
}

// recordSaved applies a log entry that says that a cut is saved.
func (c *cuts) recordSaved(seg protocol.Segment, in *consistency.Sequencer) {
	switch {
	case seg.Cut == c.unsaved:
	case seg.Cut > c.left: // the shard is paused there
		c.leave(seg.Cut, in)
	default:
		c.writes = c.writes && !c.bySlot
		return // two heads have saved it
	}
	c.segments = append(c.segments, seg)
	c.unsaved, c.writes, c.paused, c.held = 0, false, false, nil
}

// durable forgets segments that are in a checkpoint.
func (c *cuts) durable(cut perdure.Clock) {
	c.segments = slices.DeleteFunc(c.segments, func(g protocol.Segment) bool { return g.Cut <= cut })
}

// image captures the current rows at a cut. It contains the rows that have changed since the last image. It contains
// all rows if that at most doubles the work, or if the superseded rows in the files would exceed a whole segment.
func (c *cuts) image(cut perdure.Clock, w *rows, in *consistency.Sequencer) *Image {
	changed, all := w.bytes()
	old := int64(0)
	for _, f := range c.files {
		old += f.Bytes
	}
	if len(c.files) == maxFiles || (2*changed >= all || old+changed > 2*all) && !c.sparing {
		c.files = nil
	}
	m := &Image{
		Cut: cut, Seq: w.seq, Applied: slices.Clone(in.Applied()), States: slices.Clone(w.states),
		Base: slices.Clone(c.files),
	}
	for _, p := range w.parts {
		m.Specs, m.First = append(m.Specs, p.Spec), append(m.First, p.First)
		m.Rows = append(m.Rows, p.SnapshotChanged(len(c.files) == 0))
	}
	return m
}

// cutAt makes a cut by slot, at this position of the log: it applies exactly the updates up to the given clock of each
// slot, and the head takes its image. If that is impossible, the cut counts as missed. In either case the hold is over.
// A cut that was not written before is given up: the coordinator requests the next one only when no head writes.
func (c *cuts) cutAt(number perdure.Clock, clocks protocol.SlotClocks, st *State, to *ReaderSet) {
	in := st.intake
	if number <= c.schedule.Named {
		return // two heads have appended it
	}
	possible := in.Hold().CutAt(clocks)
	if possible {
		st.applyToCut(to)
	}
	c.schedule.Named, c.left, c.unsaved = number, number, number
	if possible && c.head && !c.writes {
		c.writes, c.held = true, slotstate.Names(st.rows.states)
		to.fx.Saves = append(to.fx.Saves, Save{Cut: number, Image: st.Image(number)})
	}
	in.Hold().Set(0)
}

// written records that an image is in a file.
func (c *cuts) written(m *Image, file protocol.SegmentFile) {
	m.close(false)
	c.files = append(c.files, file)
}

func (m *Image) close(undo bool) {
	for _, rows := range m.Rows {
		if rows.Close(); undo {
			rows.MarkChanged()
		}
	}
}

// missed reports whether this replica, as the head, knows of a checkpoint that will never exist: the shard has
// continued past a cut, at or after the newest one that the coordinator named, and the cut is neither saved nor being
// written.
func (c *cuts) missed() bool {
	return c.head && c.unsaved > 0 && c.unsaved >= c.schedule.Named && !c.writes && !c.paused
}

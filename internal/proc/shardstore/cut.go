package shardstore

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/chain"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/checkpoint"
)

// A checkpoint can be written in the background. At a cut, every replica continues immediately, and the head writes the
// rows of the cut from images of its tables. The log does not mark these cuts, but all replicas pass a cut at the same
// log position: when all updates of earlier clocks are applied, and the log says that the previous cut is saved. So a
// shard is never more than one cut ahead of its last saved cut.

// SegmentCut is one shard's part of a checkpoint that is about to be written: the shard's rows at a cut.
type SegmentCut struct {
	saver *Saver
	name  chain.Fence
	clock perdure.Clock
	state *replica.State
	// At most one of the two is set. If neither is, the shard is paused and only the changed rows are written.
	whole *checkpoint.Segment // all rows; the shard is paused at the cut
	image *imageWriter        // the shard continues
}

// CutLocked returns the cut that sv describes, ready for Write. n is the fence under which the segment is saved, and st
// the shard's state. If sv has an image, Write writes the image while the shard continues. Otherwise the shard is
// paused at the cut. Write then writes all rows or, if behind is true because the strategy saves in the background, the
// rows changed since the previous cut. The caller must hold s.Lock.
func (s *Saver) CutLocked(n chain.Fence, sv *replica.Save, st *replica.State, behind bool) *SegmentCut {
	c := &SegmentCut{saver: s, name: n, clock: sv.Cut, state: st}
	switch {
	case sv.Image != nil:
		c.clock, c.image = sv.Image.Cut, s.newImageWriterLocked(n, sv.Image, st)
	case !behind:
		c.whole = s.SegmentLocked(n, st)
	}
	return c
}

// PausesShard reports whether the shard is paused at the cut until it is written.
func (c *SegmentCut) PausesShard() bool { return c.image == nil }

// Clock returns the clock of the cut.
func (c *SegmentCut) Clock() perdure.Clock { return c.clock }

// Write writes the cut and returns its description for the coordinator. If the shard is paused at the cut, Write
// retries. Otherwise it tries once, because the next cut includes the changed rows.
func (c *SegmentCut) Write() (seg protocol.Segment, err error) {
	if c.image != nil {
		if seg, err = c.image.write(c.state); err != nil && !c.saver.Stopped() {
			c.saver.Log.Error("cannot write a checkpoint segment; training continues to the next cut", "shard",
				c.saver.Shard, "err", err)
			c.saver.SetProblem(err)
		}
		return seg, err
	}
	err = c.saver.Retry(
		"cannot write a checkpoint segment; training is paused until it is written",
		func() (err error) {
			if c.whole != nil {
				ref, err := c.saver.write(c.whole, time.Now())
				seg = segmentOf(c.clock, ref)
				return err
			}
			c.saver.Lock.Lock()
			w := c.saver.newImageWriterLocked(c.name, c.state.Image(c.clock), c.state)
			c.saver.Lock.Unlock()
			seg, err = w.write(c.state)
			return err
		},
	)
	return seg, err
}

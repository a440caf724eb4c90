package shardstore

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/link"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/checkpoint"
)

// A checkpoint in the background: at a cut every replica goes on at once, and the head
// writes what the rows were from images of its tables. Where the log says nothing of a
// cut, all replicas go on at the same place in it all the same: when all updates of
// earlier clocks are applied, and the cut before is known, by the log, to be saved. So no
// shard is ever more than one cut ahead of what it has saved.

// SegmentCut is a cut of a shard that is to be written.
type SegmentCut struct {
	by    *Saver
	name  link.Name
	clock perdure.Clock
	state *replica.State
	// One of both, or neither: then what has changed is written of what the shard stands at.
	whole *checkpoint.Segment // the shard stands at it
	image *writing            // it goes on
}

// SegmentCut takes a cut that is to be written. behind: where the shard stands at it, no more is written
// than what has changed since the cut before. It needs the lock.
func (s *Saver) Cut(n link.Name, sv *replica.Save, st *replica.State, behind bool) *SegmentCut {
	c := &SegmentCut{by: s, name: n, clock: sv.Cut, state: st}
	switch {
	case sv.Image != nil:
		c.clock, c.image = sv.Image.Cut, s.begin(n, sv.Image, st)
	case !behind:
		c.whole = s.Whole(n, st)
	}
	return c
}

// Stands reports whether the shard stands at the cut until it is written.
func (c *SegmentCut) Stands() bool { return c.image == nil }

// Clock is the cut's.
func (c *SegmentCut) Clock() perdure.Clock { return c.clock }

// Write writes the cut, and says what it is to the coordinator. Where the shard stands at it, it
// insists; else one try is all: the next cut takes what has changed until then with it.
func (c *SegmentCut) Write() (seg words.Segment, err error) {
	if c.image != nil {
		if seg, err = c.image.write(c.state); err != nil && !c.by.Over() {
			c.by.Log.Error("cannot write a checkpoint segment; training goes on to the next cut", "shard", c.by.Shard,
				"err", err)
			c.by.Fails(err)
		}
		return seg, err
	}
	err = c.by.Insist("cannot write a checkpoint segment; training waits", func() (err error) {
		if c.whole != nil {
			ref, err := c.by.write(c.whole, time.Now())
			seg = described(c.clock, ref)
			return err
		}
		c.by.Lock.Lock()
		w := c.by.begin(c.name, c.state.Image(c.clock), c.state)
		c.by.Lock.Unlock()
		seg, err = w.write(c.state)
		return err
	})
	return seg, err
}

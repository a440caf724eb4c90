package worker

import (
	"fmt"
	"slices"

	"github.com/perdure/perdure"
)

// An update is kept until it is safe. Under most strategies it is when it is applied (of
// vap: when all can see it). Where workers send a restored shard again what it lacks, it
// is when it is in a checkpoint: what is applied is retained until then, within a bound,
// and a cut is asked for before the bound is reached. Where that takes long, what may be
// is merged.

// retains reports whether updates are kept until they are in a checkpoint.
func (c *Client) retains() bool { return c.traits.Retains() && !c.cfg.WeakenedRetention }

// dropSafe forgets the updates that are safe. It needs c.mu.
func (c *Client) dropSafe(sh *shardLink) {
	for ; sh.acked < len(sh.kept); sh.acked++ {
		u := sh.kept[sh.acked]
		if u.until() > sh.counts.Seen || u.open || u.held || c.logs() && !u.logged {
			break
		}
		c.forgetBytes(sh, u)
		c.retain(sh, u.bytes)
	}
	safe := sh.acked
	if c.retains() {
		safe = min(safe, len(sh.kept)-len(sh.from(c.view.Durable)))
	}
	sh.most = max(sh.most, len(sh.kept))
	for _, u := range sh.kept[:safe] {
		c.retain(sh, -u.bytes)
		sh.recycle(u)
	}
	sh.kept, sh.acked = slices.Delete(sh.kept, 0, safe), sh.acked-safe
	c.condense(sh)
	c.noteRoom()
}

// retain counts n more bytes of updates that are applied, and kept until they are in a
// checkpoint. It needs c.mu.
func (c *Client) retain(sh *shardLink, n int64) {
	c.retained += n
	sh.retained += n
}

// forgetFrom forgets the updates of clocks from the given one on, none of which was
// acknowledged. It needs c.mu.
func (c *Client) forgetFrom(sh *shardLink, clock perdure.Clock) {
	late := sh.from(clock)
	for _, u := range late {
		c.forgetBytes(sh, u)
	}
	sh.kept = sh.kept[:len(sh.kept)-len(late)]
	sh.acked, sh.building = min(sh.acked, len(sh.kept)), nil
}

// noteRoom asks for a cut when half of the memory that may be retained is. It needs c.mu.
func (c *Client) noteRoom() {
	if now := c.retained > c.cfg.RetainBytes/2; now != c.crowded {
		c.crowded = now
		c.notify()
	}
}

// hasRoom reports whether one more clock's updates may be kept. Where a cut was named
// that this slot has not come to, they must be: the others wait for it. It needs c.mu.
func (c *Client) hasRoom() bool {
	return c.retained < c.cfg.RetainBytes || c.retained == 0 || c.clock < c.view.Named
}

// from returns the updates of clocks from the given one on that are kept. Those of a
// shard have clocks that follow one another, and what a shard counts, what is cut and
// where the job ends is never between two clocks of one.
func (sh *shardLink) from(clock perdure.Clock) []*update {
	at, _ := slices.BinarySearchFunc(sh.kept, clock, func(u *update, clock perdure.Clock) int {
		if u.until() <= clock {
			return -1
		}
		return 1
	})
	return sh.kept[at:]
}

// resend makes ready to leave what the shard's head has not got, by its counts. It
// needs c.mu.
func (c *Client) resend(sh *shardLink, has perdure.Counts) {
	first := c.clock // that is kept
	if len(sh.kept) > 0 {
		first = sh.kept[0].clock
	}
	if c.traits.Retains() && c.slot >= 0 && !c.rolled && has.Staged < min(first, c.clock) {
		c.err = fmt.Errorf("%w: shard %d has %d clocks of slot %d, which has kept those from clock %d on", perdure.ErrUnkept, sh.id, has.Staged, c.slot, first)
		c.broadcast()
		return
	}
	for _, u := range sh.from(has.Staged) {
		u.again = u.again || u.sent > 0
		u.sent = 0
	}
	for _, u := range sh.from(has.Ticked) {
		if u.ticked && u.clock < has.Staged {
			sh.head.batch = append(sh.head.batch, c.tickFrame(sh, u.clock))
		}
	}
	sh.fed = min(has.Staged, c.clock)
	c.feed(sh)
}

// feed makes ready to leave what is kept and has not left, in order: as much as the
// window allows beyond what is applied, since a server must have room for it. It needs
// c.mu.
func (c *Client) feed(sh *shardLink) {
	if !sh.headOpen {
		return
	}
	ahead := int64(0) // sent, and not applied
	if sh.behind {
		for _, u := range sh.from(sh.counts.Applied) {
			if u.clock < sh.fed {
				ahead += u.bytes
			}
		}
	}
	sh.behind = false
	for _, u := range sh.from(sh.fed) {
		if u.held {
			return
		}
		if ahead += u.bytes; ahead > c.cfg.WindowBytes && ahead > u.bytes {
			sh.behind = true
			return
		}
		sh.head.batch = c.addUpdate(sh, u, u.sent, sh.head.batch)
		if u.open {
			return
		}
		sh.fed = u.until()
	}
}

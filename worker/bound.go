package worker

import (
	"context"
	"math"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/data/table"
)

// sendBounded sends this clock's updates once vap allows it: when all that is in
// transit of this slot is small enough together with them, or nothing is (ESSP
// paper, section 3). It needs c.mu.
func (c *Client) sendBounded(ctx context.Context) error {
	if !c.held {
		return nil // an interrupted call of Clock has sent them
	}
	begin := time.Now()
	defer func() {
		c.waited(begin)
		if !c.stats.began.IsZero() {
			c.stats.stale += time.Since(begin)
		}
	}()
	looked := perdure.Clock(-1)
	err := c.wait(ctx, func() (bool, error) {
		if c.rolled || c.ended() {
			return true, nil
		}
		seen := c.seen()
		if seen == looked || c.view.Pause {
			return false, nil
		}
		looked = seen
		return c.maySend(), nil
	})
	if err != nil || c.rolled || c.ended() {
		return err
	}
	for _, sh := range c.shards {
		sh.kept[len(sh.kept)-1].held = false
	}
	c.held = false
	c.sendUpdates()
	return nil
}

// seen grows whenever an update comes out of transit, or it becomes known what was
// in transit before.
func (c *Client) seen() (sum perdure.Clock) {
	for _, sh := range c.shards {
		sum += sh.counts.Seen
		if sh.met {
			sum++
		}
	}
	return sum
}

// inTransit returns a shard's updates that not every slot can see, among them the
// one that waits to be sent. One that an earlier process of the slot has done is not
// this one's.
func (sh *shardLink) inTransit() []*update {
	for i, u := range sh.kept {
		if u.clock >= max(sh.counts.Seen, sh.inherited) {
			return sh.kept[i:]
		}
	}
	return nil
}

// maySend needs c.mu.
func (c *Client) maySend() bool {
	if c.cfg.WeakenedBound {
		return true
	}
	alone := true
	for _, sh := range c.shards {
		if !sh.met || sh.counts.Seen < sh.inherited {
			return false // what an earlier process of the slot sent is in transit, however large
		}
		alone = alone && len(sh.inTransit()) <= 1
	}
	beyond := false
	for _, t := range c.tables {
		if t == nil || t.spec.Consistency.Kind != perdure.VAP {
			continue
		}
		norm := t.transitNorm()
		if !consistency.MaySend(t.spec.Consistency, c.clock, norm, alone) {
			return false
		}
		beyond = beyond || !consistency.MaySend(t.spec.Consistency, c.clock, norm, false)
	}
	if beyond {
		c.stats.beyond++
	}
	return true
}

// transitNorm returns the largest absolute value of what the table's updates in
// transit, added up, do to a value.
func (t *Table) transitNorm() (norm float64) {
	dim := t.spec.Dim
	one := make([]float32, dim)
	for _, sh := range t.c.shards {
		updates := sh.inTransit()
		sums := map[perdure.RowID][]float32{}
		for _, u := range updates {
			for i := range u.blocks {
				b := &u.blocks[i]
				for j := 0; j < b.Count && b.Table == t.id; j++ {
					sum := one
					if len(updates) == 1 {
						clear(one)
					} else if sum = sums[b.ID(j)]; sum == nil {
						sum = make([]float32, dim)
						sums[b.ID(j)] = sum
					}
					table.Apply(t.spec.Rule, dim, sum, b.Values[j*dim:(j+1)*dim], u.clock)
					if len(updates) == 1 {
						norm = max(norm, largest(sum))
					}
				}
			}
		}
		for _, sum := range sums {
			norm = max(norm, largest(sum))
		}
	}
	return norm
}

// largest returns the largest absolute value; NaN counts as +Inf.
func largest(values []float32) (norm float64) {
	for _, v := range values {
		if v != v {
			return math.Inf(1)
		}
		norm = max(norm, math.Abs(float64(v)))
	}
	return norm
}

package outbox

import (
	"math"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/slotstate"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/data/wire"
)

// Updates that wait for an unavailable shard are merged. When a clock ends, its update is added to the previous one,
// which then covers both clocks, as long as neither has been sent. So a long outage costs little memory, and little
// time afterwards. Applied updates that are retained until they are in a checkpoint are also merged, if that takes
// long. A sum is equivalent to its updates only if rules add at a constant rate and no reader needs the clocks
// separately.

const (
	// maxHeldClocks is the maximum number of clocks in an update that is held back from the update log. These clocks
	// are lost if the process dies, and the slot's next process repeats them. Servers that return later have fewer
	// updates to read, by this factor.
	maxHeldClocks = 16
	// maxMergedClocks is the maximum number of clocks in any other update.
	maxMergedClocks = math.MaxUint16
	// maxBlocks limits the search for a row.
	maxBlocks = 1 << 10
)

// mayMerge reports whether updates of the current clock and later ones that wait for the shard may be merged.
func (s *Shard) mayMerge() bool {
	b := s.outbox
	return s.unavailable && (b.limits.Mutations.Merging || s.inheritedKnown && b.clock >= s.ownFrom()) && b.jobView.adds
}

// waits reports whether an update is complete and no part of it has ever been sent.
func (u *Update) waits() bool { return u.phase == Sent && !u.again && u.sent == 0 }

// merge adds the newest update, which has just ended, to the previous one, if both wait for the shard and the merge
// saves a third of the newest.
func (s *Shard) merge() {
	n := len(s.kept)
	if n-s.acked < 2 || !s.mayMerge() {
		return
	}
	into, u := s.kept[n-2], s.kept[n-1]
	before := into.bytes
	own := s.outbox.limits.Mutations.Merging || into.clock >= s.ownFrom()
	if !into.waits() || !u.waits() || !own || !s.outbox.tryMerge(into, u) {
		return
	}
	s.keep(into.bytes - before - u.bytes)
	s.kept[n-1] = nil
	s.kept = s.kept[:n-1]
	s.recycle(u)
}

// mergeRetained merges neighbors among the applied updates that are retained until they are in a checkpoint. It starts
// at three quarters of the retention limit. A cut was requested at half, so by then it is taking long. (If the cut does
// not take long, it costs less than merging.) The older update must not have more clocks than the newer one, and
// mergeRetained runs again only when a quarter has been added. So each clock is added to others only a few times,
// however many there are.
func (s *Shard) mergeRetained() {
	b := s.outbox
	s.condensed = min(s.condensed, s.retained)
	full := b.retained > b.limits.Retain-b.limits.Retain/4
	if !b.retains() || !full || 4*s.retained <= 5*s.condensed || !b.jobView.adds {
		return
	}
	n := 0
	for _, u := range s.kept[:s.acked] {
		if n > 0 && s.mergeIntoPrevious(s.kept[n-1], u) {
			s.recycle(u)
			continue
		}
		s.kept[n] = u
		n++
	}
	s.kept = slices.Delete(s.kept, n, s.acked)
	s.acked, s.condensed = n, s.retained
}

// mergeIntoPrevious adds a retained update to the previous one if that is allowed. Neither may still be queued for
// sending.
func (s *Shard) mergeIntoPrevious(into, u *Update) bool {
	before := into.bytes
	own := s.outbox.limits.Mutations.Merging || into.clock >= s.inherited
	if into.again || u.again || into.clocks > u.clocks || !own || !s.outbox.tryMerge(into, u) {
		return false
	}
	into.sent = len(into.parts)
	s.retain(into.bytes - before - u.bytes)
	return true
}

// holds reports whether the newest update is held back from the update log so that later ones can be added to it.
func (s *Shard) holds(u *Update) bool {
	return u.waits() && !u.repeats && !u.prompt && !s.outbox.last && u.clocks < maxHeldClocks && s.mayMerge()
}

// holdsBackParts reports whether parts of the current clock's update are not sent before the clock ends, so that the
// update can be merged. ready means that the shard's head accepts updates.
func (s *Shard) holdsBackParts(ready bool) bool {
	return (s.outbox.jobView.logs() || !ready) && (s.building == nil || s.building.sent == 0) && s.mayMerge()
}

// tryMerge adds an update to the previous one, and reports whether it did. It does not if a cut lies between them, if
// their sum is not equivalent for servers, or if too little is saved. (A cut that is named later is never before a
// clock that has ended by then.)
func (b *Outbox) tryMerge(into, u *Update) bool {
	if into.repeats || u.repeats || into.clocks+u.clocks > maxMergedClocks {
		return false
	}
	if b.jobView.cuts.Has(u.clock) && !b.limits.Mutations.Merging {
		return false
	}
	s := b.jobView.newSum(into, u)
	if 3*s.bytes > 2*(u.bytes+updateCost) || !s.fits() {
		return false
	}
	s.add()
	return true
}

// sum describes the addition of one update to another.
type sum struct {
	into, from *Update
	by         []float32 // by table: the factor for from, so that servers scale both equally
	maxFactor  float32   // the largest factor
	missing    []int     // by block of from: the number of rows that into lacks
	bytes      int64     // the approximate size of these rows in into
	scaled     []float32
}

func (t *jobView) newSum(into, from *Update) *sum {
	s := &sum{into: into, from: from, maxFactor: 1}
	for _, table := range t.view.Tables {
		by := float32(1)
		if t.job.StaleScale.AppliesTo(table.Rule) {
			by = from.weight / into.weight
		}
		s.by, s.maxFactor = append(s.by, by), max(s.maxFactor, by)
	}
	for i := range from.blocks {
		block, missing := &from.blocks[i], 0
		if into.findSameRows(block, i) < 0 {
			dim := len(block.Values) / block.Count
			for k := range block.Count {
				if into.newest(block.Table, block.ID(k), dim) == nil {
					missing++
				}
			}
			s.bytes += int64(missing * (4*dim + 8))
		}
		s.missing = append(s.missing, missing)
	}
	return s
}

// fits reports whether the sum may be sent: it must not be too large, and its values must be finite.
func (s *sum) fits() bool {
	parts := len(s.into.parts) + len(s.from.parts)
	return parts < math.MaxUint16/2 && len(s.into.blocks) <= maxBlocks &&
		s.into.bytes+s.bytes+s.from.bytes <= wire.MaxUpdateBytes/2 &&
		float64(s.into.maxAbs())+float64(s.maxFactor)*float64(s.from.maxAbs()) <= math.MaxFloat32
}

// maxAbs returns an upper bound of the absolute values of an update, or +Inf if one of them is NaN.
func (u *Update) maxAbs() float32 {
	if u.peak.known {
		return u.peak.abs
	}
	u.peak = peak{known: true}
	for i := range u.blocks {
		for _, v := range u.blocks[i].Values {
			if a := max(v, -v); a > u.peak.abs {
				u.peak.abs = a
			} else if a != a {
				u.peak.abs = float32(math.Inf(1))
				return u.peak.abs
			}
		}
	}
	return u.peak.abs
}

// add adds from to into.
func (s *sum) add() {
	into, from := s.into, s.from
	most := into.maxAbs() + s.maxFactor*from.maxAbs()
	for i := range from.blocks {
		b := &from.blocks[i]
		by, dim := s.by[b.Table], len(b.Values)/b.Count
		if j := into.findSameRows(b, i); j >= 0 {
			s.addTo(into.blocks[j].Values, b.Values, by)
			continue
		}
		if s.missing[i] == b.Count && b.IDs == nil {
			run := block{Block: wire.Block{Rows: b.Rows, Values: make([]float32, len(b.Values))}}
			s.addTo(run.Values, b.Values, by)
			into.blocks = append(into.blocks, run)
			continue
		}
		for k := range b.Count {
			row := b.ID(k)
			to := into.newest(b.Table, row, dim)
			if to == nil {
				to = into.grow(b.Table, row, dim)
			}
			s.addTo(to, b.Values[k*dim:(k+1)*dim], by)
		}
	}
	into.clocks += from.clocks
	into.prompt = into.prompt || from.prompt
	if from.state != nil && !slotstate.IsEmptyRef(from.state) {
		into.state = from.state // the slot's next process gets the newest
	}
	into.peak = peak{true, most}
	into.rebuild()
}

func (s *sum) addTo(to, delta []float32, by float32) {
	if by != 1 {
		s.scaled = append(s.scaled[:0], delta...)
		for i := range s.scaled {
			s.scaled[i] *= by
		}
		delta = s.scaled
	}
	table.Apply(perdure.Rule{Kind: perdure.RuleAdd}, len(to), to, delta, 0)
}

// findSameRows returns the index of a block with the same rows as another update's block, or -1. number is the other
// block's index, which is the most likely one.
func (u *Update) findSameRows(of *block, number int) int {
	same := func(b *block) bool {
		return b.Table == of.Table && b.First == of.First && b.Count == of.Count &&
			(b.IDs == nil) == (of.IDs == nil) && slices.Equal(b.IDs, of.IDs)
	}
	if number < len(u.blocks) && same(&u.blocks[number]) {
		return number
	}
	return slices.IndexFunc(u.blocks, func(b block) bool { return same(&b) })
}

// grow returns memory for the deltas of a row that an update lacks, in a block for rows that other updates have added.
func (u *Update) grow(t perdure.TableID, row perdure.RowID, dim int) []float32 {
	at, ok := u.grown[t]
	if !ok || u.blocks[at].Count >= listRows(dim) {
		if at = len(u.blocks); u.grown == nil {
			u.grown = map[perdure.TableID]int{}
		}
		u.grown[t] = at
		u.blocks = append(u.blocks, block{Block: wire.Block{Rows: wire.Rows{Table: t, IDs: []perdure.RowID{}}}})
	}
	index, b := u.index(at), &u.blocks[at]
	index.set(row, b.Count)
	b.IDs = append(b.IDs, row)
	b.Count++
	b.Values = append(b.Values, make([]float32, dim)...)
	return b.Values[len(b.Values)-dim:]
}

package outbox

import (
	"math"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/states"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/data/wire"
)

// What waits for a shard that is out is merged: the update of a clock that ends is added to
// the one before it, which then is of both clocks, as long as neither has left. So a long
// outage costs little memory, and little time when it is over. What is applied and retained
// until it is in a checkpoint is merged too, where that takes long. A sum is the same update
// only where rules add, at a constant rate, and nobody needs the clocks one by one.

const (
	// mostHeld is how many clocks an update is of at most that waits to be given to the
	// update log. They are lost with the process, and the slot's next one does them again;
	// servers, once they are there, have fewer updates to read by as many.
	mostHeld = 16
	// mostMerged is how many clocks any other update is of at most.
	mostMerged = math.MaxUint16
	// mostBlocks bounds what is looked through for a row.
	mostBlocks = 1 << 10
)

// mayMerge reports whether updates of the present clock and later ones may be merged that wait
// for the shard.
func (s *Shard) mayMerge() bool {
	b := s.box
	return s.out && (b.limits.Weak.Merging || s.met && b.clock >= s.own()) && b.terms.adds
}

// waits reports whether an update is whole and nothing of it has ever left.
func (u *Update) waits() bool { return u.phase == Sent && !u.again && u.sent == 0 }

// merge adds the newest update, which has just ended, to the one before it, if both wait for
// the shard and that saves a third of the newest.
func (s *Shard) merge() {
	n := len(s.kept)
	if n-s.acked < 2 || !s.mayMerge() {
		return
	}
	into, u := s.kept[n-2], s.kept[n-1]
	before := into.bytes
	own := s.box.limits.Weak.Merging || into.clock >= s.own()
	if !into.waits() || !u.waits() || !own || !s.box.sumUp(into, u) {
		return
	}
	s.keep(into.bytes - before - u.bytes)
	s.kept[n-1] = nil
	s.kept = s.kept[:n-1]
	s.recycle(u)
}

// condense merges neighbours among the updates that are applied, and retained until they are
// in a checkpoint, where three quarters of what may be are: a cut was asked for at half, and
// takes long (it costs less than this where it does not). The older is of no more clocks than
// the newer, and it is done again when a quarter has been added: so each clock is added to
// others a few times at most, however many there are.
func (s *Shard) condense() {
	b := s.box
	s.condensed = min(s.condensed, s.retained)
	full := b.retained > b.limits.Retain-b.limits.Retain/4
	if !b.retains() || !full || 4*s.retained <= 5*s.condensed || !b.terms.adds {
		return
	}
	n := 0
	for _, u := range s.kept[:s.acked] {
		if n > 0 && s.condenses(s.kept[n-1], u) {
			s.recycle(u)
			continue
		}
		s.kept[n] = u
		n++
	}
	s.kept = slices.Delete(s.kept, n, s.acked)
	s.acked, s.condensed = n, s.retained
}

// condenses adds a retained update to the one before it, if it may be. Neither may still be
// queued to be sent somewhere.
func (s *Shard) condenses(into, u *Update) bool {
	before := into.bytes
	own := s.box.limits.Weak.Merging || into.clock >= s.inherited
	if into.again || u.again || into.clocks > u.clocks || !own || !s.box.sumUp(into, u) {
		return false
	}
	into.sent = len(into.parts)
	s.retain(into.bytes - before - u.bytes)
	return true
}

// holds reports whether the newest update is not given to the update log yet, so that the next
// ones can be added to it.
func (s *Shard) holds(u *Update) bool {
	return u.waits() && !u.repeats && !u.prompt && !s.box.last && u.clocks < mostHeld && s.mayMerge()
}

// holdsParts reports whether parts of the present clock's update do not leave before it ends,
// so that it can be merged. ready says that the shard's head takes updates.
func (s *Shard) holdsParts(ready bool) bool {
	return (s.box.terms.logs() || !ready) && (s.building == nil || s.building.sent == 0) && s.mayMerge()
}

// sumUp adds an update to the one before it, unless a cut is between them (a cut that is named
// later is not before any clock that has ended by then), their sum is not the same to the
// servers that get it, or too little is saved.
func (b *Box) sumUp(into, u *Update) bool {
	if into.repeats || u.repeats || into.clocks+u.clocks > mostMerged {
		return false
	}
	if b.terms.cuts.Has(u.clock) && !b.limits.Weak.Merging {
		return false
	}
	s := b.newSum(into, u)
	if 3*s.bytes > 2*(u.bytes+updateCost) || !s.fits() {
		return false
	}
	s.add()
	return true
}

// sum is an update to be added to another one.
type sum struct {
	into, from *Update
	by         []float32 // by table: what from is multiplied with, so that servers weaken both alike
	most       float32   // of these
	missing    []int     // by block of from: how many of its rows the other one does not have
	bytes      int64     // that these take there, about
	scaled     []float32
}

func (b *Box) newSum(into, from *Update) *sum {
	s := &sum{into: into, from: from, most: 1}
	for _, t := range b.terms.view.Tables {
		by := float32(1)
		if b.terms.job.StaleScale.Weakens(t.Rule) {
			by = from.weight / into.weight
		}
		s.by, s.most = append(s.by, by), max(s.most, by)
	}
	for i := range from.blocks {
		block, missing := &from.blocks[i], 0
		if into.twin(block, i) < 0 {
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

// fits reports whether the sum is an update that may be sent: neither too large, nor with
// values that are none.
func (s *sum) fits() bool {
	parts := len(s.into.parts) + len(s.from.parts)
	return parts < math.MaxUint16/2 && len(s.into.blocks) <= mostBlocks &&
		s.into.bytes+s.bytes+s.from.bytes <= wire.MaxUpdate/2 &&
		float64(s.into.peak())+float64(s.most)*float64(s.from.peak()) <= math.MaxFloat32
}

// peak returns the largest absolute value of an update, or more; +Inf where one is no number.
func (u *Update) peak() float32 {
	if u.measured {
		return u.most
	}
	u.measured, u.most = true, 0
	for i := range u.blocks {
		for _, v := range u.blocks[i].Values {
			if a := max(v, -v); a > u.most {
				u.most = a
			} else if a != a {
				u.most = float32(math.Inf(1))
				return u.most
			}
		}
	}
	return u.most
}

// add makes the first update the sum of both.
func (s *sum) add() {
	into, from := s.into, s.from
	most := into.peak() + s.most*from.peak()
	for i := range from.blocks {
		b := &from.blocks[i]
		by, dim := s.by[b.Table], len(b.Values)/b.Count
		if j := into.twin(b, i); j >= 0 {
			s.addTo(into.blocks[j].Values, b.Values, by)
			continue
		}
		if s.missing[i] == b.Count && b.IDs == nil {
			run := wire.Block{Rows: b.Rows, Values: make([]float32, len(b.Values))}
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
	if from.state != nil && !states.IsVoid(from.state) {
		into.state = from.state // the slot's next process is given the newest
	}
	into.measured, into.most = true, most
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

// twin returns the block of an update that has the same rows as another update's block, most
// likely the one with the same number; -1: none has.
func (u *Update) twin(of *wire.Block, number int) int {
	same := func(b *wire.Block) bool {
		return b.Table == of.Table && b.First == of.First && b.Count == of.Count &&
			(b.IDs == nil) == (of.IDs == nil) && slices.Equal(b.IDs, of.IDs)
	}
	if number < len(u.blocks) && same(&u.blocks[number]) {
		return number
	}
	return slices.IndexFunc(u.blocks, func(b wire.Block) bool { return same(&b) })
}

// grow returns memory for the deltas of a row that an update does not have: in a block of rows
// that other updates have added.
func (u *Update) grow(t perdure.TableID, row perdure.RowID, dim int) []float32 {
	at, ok := u.grown[t]
	if !ok || u.blocks[at].Count >= listRows(dim) {
		if at = len(u.blocks); u.grown == nil {
			u.grown = map[perdure.TableID]int{}
		}
		u.grown[t] = at
		u.blocks = append(u.blocks, wire.Block{Rows: wire.Rows{Table: t, IDs: []perdure.RowID{}}})
	}
	index, b := u.index(at), &u.blocks[at]
	index[row] = int32(b.Count)
	b.IDs = append(b.IDs, row)
	b.Count++
	b.Values = append(b.Values, make([]float32, dim)...)
	return b.Values[len(b.Values)-dim:]
}

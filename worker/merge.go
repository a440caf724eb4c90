package worker

import (
	"math"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/data/wire"
)

// What waits for a shard that is out is merged: the update of a clock that ends is added
// to the one before it, which then is of both clocks, as long as none of them has left. So
// a long outage costs little memory, and little time when it is over. What is applied and
// retained until it is in a checkpoint is merged too, where that takes long. A sum is the same
// update only where rules add, at a constant rate, and nobody needs the clocks one by one.

const (
	// mostHeld is how many clocks an update is of at most that waits to be given to the
	// update log. A process that dies takes so many with it, and its next one does them
	// again; servers, once they are there, have so many fewer to read.
	mostHeld = 16
	// mostMerged is how many of any other.
	mostMerged = math.MaxUint16
	// holdsFor is for how many times Config.OutAfter the log waits for it: others, to whom
	// the shard is there, may wait for these clocks.
	holdsFor = 10
	// mostBlocks bounds what is looked through for a row.
	mostBlocks = 1 << 10
)

// merges reports whether two updates of this job do the same as their sum.
func (c *Client) merges() bool {
	if c.twoStep() || c.job.Scales(c.view.Tables) && c.job.StaleScale != perdure.ScaleAverage {
		return false // other scales follow from each clock's own age
	}
	return !slices.ContainsFunc(c.view.Tables, func(t perdure.TableSpec) bool {
		constant := t.Rule.Schedule == "" || t.Rule.Schedule == perdure.ScheduleConst
		return t.Consistency.Kind == perdure.VAP || !t.Rule.Adds() || !constant || t.Evict > 0
	})
}

// mergesFor reports whether updates of the present clock and later ones may be merged that
// wait for a shard. It needs c.mu.
func (c *Client) mergesFor(sh *shardLink) bool {
	return sh.out && (c.cfg.WeakenedMerging || sh.met && c.clock >= sh.own()) && c.merges()
}

// own returns the clock from which on a shard has nothing of this slot that it was not
// sent by this process, and sent as it is kept.
func (sh *shardLink) own() perdure.Clock {
	return max(sh.inherited, sh.headApplied, sh.counts.Applied)
}

// waits reports whether an update is whole and nothing of it has ever left.
func (u *update) waits() bool { return !u.open && !u.held && !u.ticked && !u.again && u.sent == 0 }

// atCut reports whether a cut is before a clock. Cuts that are named later are not before
// any clock that has ended by then.
func (c *Client) atCut(clock perdure.Clock) bool {
	return c.schedule().Has(clock)
}

// merge adds a shard's newest update, which has just ended, to the one before it, if both
// wait for the shard and that saves a third of the newest. It needs c.mu.
func (c *Client) merge(sh *shardLink) {
	n := len(sh.kept)
	if n-sh.acked < 2 || !c.mergesFor(sh) {
		return
	}
	into, u := sh.kept[n-2], sh.kept[n-1]
	before := into.bytes
	if !into.waits() || !u.waits() || !c.cfg.WeakenedMerging && into.clock < sh.own() || !c.sumUp(into, u) {
		return
	}
	c.keep(sh, into.bytes-before-u.bytes)
	sh.kept[n-1] = nil
	sh.kept = sh.kept[:n-1]
	sh.recycle(u)
}

// condense merges neighbours among a shard's updates that are applied, and retained until
// they are in a checkpoint, where three quarters of what may be are: a cut was asked for at
// half, and takes long (it costs less than this where it does not). The older is of no more
// clocks than the newer, and it is done again when a quarter has been added: so each clock
// is added to others a few times at most, however many there are. It needs c.mu.
func (c *Client) condense(sh *shardLink) {
	if sh.condensed = min(sh.condensed, sh.retained); !c.retains() || c.retained <= c.cfg.RetainBytes-c.cfg.RetainBytes/4 || 4*sh.retained <= 5*sh.condensed || !c.merges() {
		return
	}
	n := 0
	for _, u := range sh.kept[:sh.acked] {
		if n > 0 && c.condenses(sh, sh.kept[n-1], u) {
			sh.recycle(u)
			continue
		}
		sh.kept[n] = u
		n++
	}
	sh.kept = slices.Delete(sh.kept, n, sh.acked)
	sh.acked, sh.condensed = n, sh.retained
}

// condenses adds a retained update to the one before it, if it may be. Neither may still be
// queued to be sent somewhere. It needs c.mu.
func (c *Client) condenses(sh *shardLink, into, u *update) bool {
	before := into.bytes
	if into.again || u.again || into.clocks > u.clocks || !c.cfg.WeakenedMerging && into.clock < sh.inherited || !c.sumUp(into, u) {
		return false
	}
	into.sent = len(into.parts)
	c.retain(sh, into.bytes-before-u.bytes)
	return true
}

// sumUp adds an update to the one before it, unless a cut is between them, their sum is not
// the same to those who get it, or too little is saved. It needs c.mu.
func (c *Client) sumUp(into, u *update) bool {
	if into.repeats || u.repeats || into.clocks+u.clocks > mostMerged || !c.cfg.WeakenedMerging && c.atCut(u.clock) {
		return false
	}
	s := c.newSum(into, u)
	if 3*s.bytes > 2*(u.bytes+updateCost) || !s.fits() {
		return false
	}
	s.add()
	return true
}

// sum is an update to be added to another one.
type sum struct {
	into, from *update
	by         []float32 // by table: what the deltas of from are multiplied with, so that servers weaken both alike
	most       float32   // of these
	missing    []int     // by block of from: how many of its rows the other one does not have
	bytes      int64     // that these take there, about
	scaled     []float32
}

func (c *Client) newSum(into, from *update) *sum {
	s := &sum{into: into, from: from, most: 1}
	for _, t := range c.view.Tables {
		by := float32(1)
		if c.job.StaleScale.Weakens(t.Rule) {
			by = from.weight / into.weight
		}
		s.by, s.most = append(s.by, by), max(s.most, by)
	}
	for i := range from.blocks {
		b, missing := &from.blocks[i], 0
		if into.twin(b, i) < 0 {
			dim := len(b.Values) / b.Count
			for k := range b.Count {
				if into.newest(b.Table, b.ID(k), dim) == nil {
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
	return parts < math.MaxUint16/2 && len(s.into.blocks) <= mostBlocks && s.into.bytes+s.bytes+s.from.bytes <= wire.MaxUpdate/2 &&
		float64(s.into.peak())+float64(s.most)*float64(s.from.peak()) <= math.MaxFloat32
}

// peak returns the largest absolute value of an update, or more; +Inf where one is no
// number.
func (u *update) peak() float32 {
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
	if from.state != nil {
		into.state = from.state // LoadState gives the newest
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

// twin returns the block of an update that has the same rows as another update's block,
// most likely the one in the same place; -1: none has.
func (u *update) twin(of *wire.Block, place int) int {
	same := func(b *wire.Block) bool {
		return b.Table == of.Table && b.First == of.First && b.Count == of.Count && (b.IDs == nil) == (of.IDs == nil) && slices.Equal(b.IDs, of.IDs)
	}
	if place < len(u.blocks) && same(&u.blocks[place]) {
		return place
	}
	return slices.IndexFunc(u.blocks, func(b wire.Block) bool { return same(&b) })
}

// grow returns room for the deltas of a row that an update does not have: in a block of
// rows that other updates have added.
func (u *update) grow(t perdure.TableID, row perdure.RowID, dim int) []float32 {
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

// rebuild packs what is in an update into parts anew.
func (u *update) rebuild() {
	blocks := u.blocks
	clear(u.parts)
	u.parts, u.blocks, u.arena, u.bytes = u.parts[:0], u.blocks[:0], u.arena[:0], 0
	b := partBuilder{u: u}
	for _, block := range blocks {
		b.block(block)
	}
	if u.state != nil {
		b.state(u.state)
	}
	if u.told {
		b.origin(u.origin)
	}
	b.flush()
	if len(u.parts) == 0 {
		b.end(nil)
	}
}

// holds reports whether a shard's newest update is not given to the update log yet, so
// that the next ones can be added to it. It needs c.mu.
func (c *Client) holds(sh *shardLink, u *update) bool {
	return c.logs() && u.waits() && !u.repeats && !u.prompt && !c.finished && u.clocks < mostHeld && c.mergesFor(sh)
}

// holdsParts reports whether parts of the present clock's update do not leave before it
// ends, so that it can be merged. It needs c.mu.
func (c *Client) holdsParts(sh *shardLink) bool {
	return (c.logs() || !sh.headOpen) && (sh.building == nil || sh.building.sent == 0) && c.mergesFor(sh)
}

// hold keeps a shard's newest update back from the update log, but nothing before it. It
// needs c.mu.
func (c *Client) hold(sh *shardLink) {
	if c.appendTo(sh, len(sh.kept)-1); sh.heldSince.IsZero() {
		sh.heldSince = time.Now()
	}
}

// appendTo gives the first n of a shard's updates to the update log, as far as it does not
// have them. It needs c.mu.
func (c *Client) appendTo(sh *shardLink, n int) {
	first := n
	for first > 0 && (sh.kept[first-1].open || sh.kept[first-1].sent < len(sh.kept[first-1].parts)) {
		first--
	}
	for _, u := range sh.kept[first:n] {
		c.appendUpdate(sh, u, u.sent)
		sh.heldSince = time.Time{}
	}
}

// letGo gives the update log what is held back from it for a shard. It needs c.mu.
func (c *Client) letGo(sh *shardLink) {
	if !sh.heldSince.IsZero() {
		c.appendTo(sh, len(sh.kept))
		sh.heldSince = time.Time{}
	}
}

// letAllGo is letGo for all shards.
func (c *Client) letAllGo() {
	for _, sh := range c.shards {
		c.letGo(sh)
	}
}

// letOldGo is letGo where somebody may wait for it: where this process itself waits, maybe
// for who waits for these clocks, and where it takes long over them. It needs c.mu.
func (c *Client) letOldGo(now time.Time) {
	waits := len(c.waiting) > 0 && now.Sub(c.waitsSince) >= c.cfg.OutAfter/4
	for _, sh := range c.shards {
		if waits || now.Sub(sh.heldSince) >= holdsFor*c.cfg.OutAfter {
			c.letGo(sh)
		}
	}
}

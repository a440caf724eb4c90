package outbox

import (
	"fmt"
	"math"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/data/wire"
)

// Update is one of this slot's updates to one shard, kept until it is safe.
type Update struct {
	clock  perdure.Clock // the first that it is of
	clocks perdure.Clock // how many it is of
	phase  Phase         // of its clock: Open, Built, Sent or Ticked
	parts  []piece
	blocks []wire.Block // what is in the parts
	bytes  int64        // of these, as if none were packed: about what it takes here
	saved  int64        // by how many of these the parts are less, since blocks are packed
	sent   int          // parts that have left
	again  bool         // some may still be queued in a connection when it is safe
	logged bool         // the update log has all of it
	// What servers will multiply its deltas with, as far as it is known here: 1, but
	// where the shard was out. (See perdure.ScaleAverage.)
	weight float32
	prompt bool // the program will most likely wait until it is applied
	// A row is in it more than once: its last delta has the earlier ones in it, and is
	// the one that the server applies.
	repeats bool
	state   []byte             // what is to be saved with it; nil: nothing
	origin  consistency.Origin // what it was computed from, if told
	told    bool

	most     float32                 // see peak
	measured bool                    // most is known
	grown    map[perdure.TableID]int // by table: the block that grows

	arena   []byte          // what the heads of parts lie in
	ids     []perdure.RowID // what the ids of runs that became lists lie in
	taken   []taken         // what the blocks lie in
	rooms   []*Room         // likewise
	keepers *keepers        // of the rooms' memory; nil: it is Go's own
	indexes map[int]map[perdure.RowID]int32
}

// piece is the payload of one part. Its values lie apart, where they are many.
type piece struct{ head, body []byte }

// taken is memory that an update has from a part's deltas.
type taken struct {
	from *Deltas
	memory
}

// until returns the clock after the last that the update is of.
func (u *Update) until() perdure.Clock { return u.clock + u.clocks }

// sequence are updates of clocks that follow one another.
type sequence []*Update

// from returns the updates of clocks from the given one on.
func (s sequence) from(clock perdure.Clock) sequence {
	at, _ := slices.BinarySearchFunc(s, clock, func(u *Update, clock perdure.Clock) int {
		if u.until() <= clock {
			return -1
		}
		return 1
	})
	return s[at:]
}

// ended returns the newest update of a clock that is over; nil: there is none.
func (s sequence) ended() *Update {
	for _, u := range slices.Backward(s) {
		if u.phase != Open {
			return u
		}
	}
	return nil
}

// index returns where the rows of a block are in it.
func (u *Update) index(block int) map[perdure.RowID]int32 {
	if u.indexes == nil {
		u.indexes = map[int]map[perdure.RowID]int32{}
	}
	index := u.indexes[block]
	if index == nil {
		index = make(map[perdure.RowID]int32, u.blocks[block].Count)
		for i, id := range u.blocks[block].IDs {
			index[id] = int32(i)
		}
		u.indexes[block] = index
	}
	return index
}

// find returns the deltas of a row in a block; nil: it has none.
func (u *Update) find(block int, row perdure.RowID, dim int) []float32 {
	b, at := &u.blocks[block], 0
	if b.IDs != nil {
		i, ok := u.index(block)[row]
		if !ok {
			return nil
		}
		at = int(i)
	} else if row < b.First || row-b.First >= perdure.RowID(b.Count) {
		return nil
	} else {
		at = int(row - b.First)
	}
	return b.Values[at*dim : (at+1)*dim]
}

// newest returns the last deltas of a row of a table; nil: it has none.
func (u *Update) newest(t perdure.TableID, row perdure.RowID, dim int) []float32 {
	for block := len(u.blocks) - 1; block >= 0; block-- {
		if u.blocks[block].Table != t {
			continue
		}
		if delta := u.find(block, row, dim); delta != nil {
			return delta
		}
	}
	return nil
}

// payloadBytes returns what the server reckons as the update's size.
func (u *Update) payloadBytes() int64 {
	return u.bytes - u.saved - wire.HeaderBytes*int64(len(u.parts))
}

// frames appends the frames of the parts that have not left. as is what all frames about the
// shard have in common.
func (u *Update) frames(as wire.Header, to []wire.Frame) []wire.Frame {
	as.Kind, as.Clock = wire.KindUpdate, u.clock
	if u.clocks > 1 {
		as.Clocks = uint16(u.clocks)
	}
	if u.phase != Open {
		as.Parts = uint16(len(u.parts))
	}
	if u.phase == Ticked {
		as.Flags |= wire.FlagTicked
	}
	if u.repeats {
		as.Flags |= wire.FlagRepeats
	}
	if u.prompt {
		as.Flags |= wire.FlagPrompt
	}
	for i, p := range u.parts[u.sent:] {
		as.Part = uint16(u.sent + i)
		f := wire.Frame{Header: as, Payload: p.head, Body: p.body}
		if u.keepers != nil {
			f.Release = u.keepers
		}
		to = append(to, f)
	}
	u.sent = len(u.parts)
	return to
}

// mostFreeUpdates is how many updates a shard keeps at least to be used again.
const mostFreeUpdates = 4

// mostKeptArena is how many bytes of heads, and of ids, each of them keeps.
const mostKeptArena = 2 << 20

// begin returns the update of the present clock, with a packer that goes on with it.
func (s *Shard) begin() packer {
	if s.building == nil {
		s.building = s.newUpdate()
		s.kept = append(s.kept, s.building)
	}
	return packer{u: s.building, start: len(s.building.arena)}
}

func (s *Shard) newUpdate() *Update {
	var u *Update
	if n := len(s.free); n > 0 {
		u, s.free = s.free[n-1], s.free[:n-1]
	} else {
		u = new(Update)
	}
	*u = Update{
		clock: s.box.clock, clocks: 1, weight: 1, repeats: s.broken == s.box.clock+1,
		parts: u.parts[:0], blocks: u.blocks[:0], arena: u.arena[:0], ids: u.ids[:0],
		taken: u.taken[:0], rooms: u.rooms[:0],
	}
	return u
}

// recycle takes back the memory of an update that is safe.
func (s *Shard) recycle(u *Update) {
	if u.again {
		return
	}
	for _, m := range u.taken {
		m.from.recycle(m.memory)
	}
	for _, r := range u.rooms {
		r.leave()
	}
	clear(u.rooms)
	if cap(u.arena) > mostKeptArena {
		u.arena = nil
	}
	if 8*cap(u.ids) > mostKeptArena {
		u.ids = nil
	}
	clear(u.taken)
	clear(u.parts)
	clear(u.blocks)
	if len(s.free) < max(mostFreeUpdates, s.most) {
		s.free = append(s.free, u)
	}
}

// bodyBytes is the least size of a block's values that are sent from where they lie.
// Smaller ones are copied into the payload: a payload then holds several.
const bodyBytes = 16 << 10

// packer packs blocks into payloads of about wire.PartBytes. A block is whole in its payload.
type packer struct {
	u     *Update
	start int // of the payload that is being filled, in the arena
	saved int // by how much that is less, since blocks in it are packed
}

// check refuses an update of more parts than can be counted on the wire, one more being kept
// for the last, or of more bytes than a server keeps.
func (p *packer) check() error {
	if n := len(p.u.parts); n >= math.MaxUint16 || p.u.bytes > wire.MaxUpdate/2 {
		return fmt.Errorf("%w: an update of %d bytes in %d parts to one shard is too large: at most %d bytes, "+
			"and %d parts of up to %d each, can be sent; use more shards, and tables that are not whole, or Flush "+
			"less often",
			perdure.ErrUsage, p.u.bytes, n, int64(wire.MaxUpdate/2), math.MaxUint16-1, wire.PartBytes)
	}
	return nil
}

// RunRows is how many rows of a run go into one block.
func RunRows(dim int) int { return max(1, (wire.PartBytes-64)/(4*dim)) }

// listRows is how many rows that are named one by one go into one block.
func listRows(dim int) int { return max(1, (wire.PartBytes-64)/(4*dim+8)) }

func (p *packer) block(block wire.Block) {
	u, n := p.u, 4*len(block.Values)
	u.blocks = append(u.blocks, block)
	if p.packed(&block) {
		return
	}
	if body, ok := wire.FloatBytes(block.Values); ok && n >= bodyBytes {
		p.flush()
		u.arena = wire.AppendBlockHead(u.arena, &block)
		p.end(body)
		return
	}
	p.fit(n + 8*len(block.IDs))
	u.arena = wire.AppendBlock(u.arena, &block)
}

// packed appends a block with its values packed, and reports whether it has. No more blocks go into one payload than if
// they were not packed: whoever unpacks one never needs more memory for it.
func (p *packer) packed(block *wire.Block) bool {
	u, n := p.u, 4*len(block.Values)+8*len(block.IDs)
	with, saved := wire.AppendPackedBlock(u.arena, block)
	if saved <= 0 {
		return false
	}
	p.fit(n)
	u.arena = with
	p.saved += saved
	return true
}

// list makes blocks of rows that are named one by one.
func (p *packer) list(t perdure.TableID, dim int, ids []perdure.RowID, values []float32) {
	most := listRows(dim)
	for len(ids) > 0 {
		n := min(most, len(ids))
		p.block(wire.Block{Rows: wire.Rows{Table: t, Count: n, IDs: ids[:n:n]}, Values: values[:n*dim]})
		ids, values = ids[n:], values[n*dim:]
	}
}

// run makes blocks of consecutive rows.
func (p *packer) run(t perdure.TableID, dim int, first perdure.RowID, values []float32) {
	for len(values) > 0 {
		n := min(RunRows(dim), len(values)/dim)
		p.block(wire.Block{Rows: wire.Rows{Table: t, First: first, Count: n}, Values: values[:n*dim]})
		first, values = first+perdure.RowID(n), values[n*dim:]
	}
}

func (p *packer) state(state []byte) {
	p.fit(len(state))
	p.u.state = state
	p.u.arena = wire.AppendStateBlock(p.u.arena, state)
}

func (p *packer) origin(o consistency.Origin) {
	p.fit(2 * wire.HeaderBytes)
	p.u.origin, p.u.told = o, true
	p.u.arena = wire.AppendBasisBlock(p.u.arena, o.Basis, o.Lag)
	if o.Alone {
		p.u.arena = wire.AppendAloneBlock(p.u.arena)
	}
}

// weight tells how much the update counts for a table. It is never merged with others: its clocks take two steps.
func (p *packer) weight(t perdure.TableID, weight float64) {
	p.fit(wire.HeaderBytes)
	p.u.arena = wire.AppendWeightBlock(p.u.arena, t, weight)
}

// fit ends the payload if n more bytes would be too many.
func (p *packer) fit(n int) {
	if used := len(p.u.arena) - p.start + p.saved; used > 0 && used+n > wire.PartBytes {
		p.flush()
	}
}

// flush ends the payload, if anything is in it.
func (p *packer) flush() {
	if len(p.u.arena) > p.start {
		p.end(nil)
	}
}

// end ends the payload. Its start is a multiple of 8, like the length of all that is in it.
func (p *packer) end(body []byte) {
	u := p.u
	head := u.arena[p.start:len(u.arena):len(u.arena)]
	p.start = len(u.arena)
	u.parts = append(u.parts, piece{head, body})
	u.bytes += int64(wire.HeaderBytes + len(head) + len(body) + p.saved)
	u.saved += int64(p.saved)
	p.saved = 0
}

// rebuild packs what is in an update into parts anew.
func (u *Update) rebuild() {
	blocks := u.blocks
	clear(u.parts)
	u.parts, u.blocks, u.arena, u.bytes, u.saved = u.parts[:0], u.blocks[:0], u.arena[:0], 0, 0
	p := packer{u: u}
	for _, block := range blocks {
		p.block(block)
	}
	if u.state != nil {
		p.state(u.state)
	}
	if u.told {
		p.origin(u.origin)
	}
	p.flush()
	if len(u.parts) == 0 {
		p.end(nil)
	}
}

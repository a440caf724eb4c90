package outbox

import (
	"fmt"
	"math"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/data/wire"
)

// Update is an update of this slot to one shard, kept until it is safe.
type Update struct {
	clock  perdure.Clock // the first clock that it covers
	clocks perdure.Clock // the number of clocks that it covers
	phase  Phase         // of its clock: Open, Built, Sent or Ticked
	parts  []partPayload
	blocks []block // the contents of the parts
	bytes  int64   // size of the parts before packing, which approximates the memory used
	saved  int64   // by how many bytes packing reduces the parts
	sent   int     // number of parts that have been sent
	again  bool    // some parts may still be queued in a connection when it is safe
	logged bool    // the update log has it completely
	// The factor that servers will multiply its deltas by, as far as it is known: 1, unless the shard was unavailable.
	// (See perdure.ScaleAverage.)
	weight float32
	prompt bool // the program will probably wait until it is applied
	// It contains some rows more than once: the last delta of such a row includes the earlier ones, and the server
	// applies only the last.
	repeats   bool
	state     []byte             // the state to save with it; nil: none
	origin    consistency.Origin // its origin, if known
	hasOrigin bool
	weights   []tableWeight

	peak  peak
	grown map[perdure.TableID]int // by table: index of the block that grows

	arena   []byte          // memory of the heads of the parts
	ids     []perdure.RowID // memory of row IDs, for runs that became lists
	taken   []taken         // memory of the blocks
	buffers []*Buffer       // memory of the blocks that was lent
	keepers *keepers        // keeps the memory of rooms alive; nil: it is on Go's heap
	indexes []*positions
}

// partPayload is the payload of one part. Large values are in a separate slice.
type partPayload struct{ head, body []byte }

// block is a block of an update.
type block struct {
	wire.Block        // its Values are nil if they are rounded
	encoded    []byte // the rounded values as they are sent
	values     int    // their number
	encoding   perdure.Encoding
}

// taken is memory that an update has taken over from Deltas.
type taken struct {
	from *Deltas
	memory
}

// peak is an upper bound of the absolute values of an update, if it is known. See maxAbs.
type peak struct {
	known bool
	abs   float32
}

// tableWeight is the weight of an update for a table that combines updates by weight.
type tableWeight struct {
	table  perdure.TableID
	weight float64
}

// until returns the clock after the last one that the update covers.
func (u *Update) until() perdure.Clock { return u.clock + u.clocks }

// sequence holds updates of consecutive clocks.
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

// ended returns the newest update whose clock has ended, or nil.
func (s sequence) ended() *Update {
	for _, u := range slices.Backward(s) {
		if u.phase != Open {
			return u
		}
	}
	return nil
}

// index returns the positions of the rows in a block.
func (u *Update) index(block int) *positions {
	if n := len(u.blocks) - len(u.indexes); n > 0 {
		u.indexes = append(u.indexes, make([]*positions, n)...)
	}
	if u.indexes[block] == nil {
		u.indexes[block] = newPositions(u.blocks[block].IDs)
	}
	return u.indexes[block]
}

// positions finds the rows of a block. Rows with close numbers, as in dense tables, are in an array: with a map, adding
// own updates to rows took a quarter of a worker's time.
type positions struct {
	first  perdure.RowID
	near   []int32 // by row - first: 1 + the position; 0: the block does not have the row
	others map[perdure.RowID]int32
}

func newPositions(ids []perdure.RowID) *positions {
	p := &positions{}
	if len(ids) > 0 {
		p.first = slices.Min(ids)
		if n := uint64(slices.Max(ids) - p.first); n < 8*uint64(len(ids))+64 {
			p.near = make([]int32, n+1)
		}
	}
	for i, id := range ids {
		p.set(id, i)
	}
	return p
}

func (p *positions) set(row perdure.RowID, at int) {
	switch i := uint64(row - p.first); {
	case i < uint64(len(p.near)):
		p.near[i] = int32(at + 1)
	case p.others == nil:
		p.others = map[perdure.RowID]int32{row: int32(at)}
	default:
		p.others[row] = int32(at)
	}
}

func (p *positions) at(row perdure.RowID) (at int, found bool) {
	if i := uint64(row - p.first); i < uint64(len(p.near)) {
		return int(p.near[i]) - 1, p.near[i] > 0
	}
	i, found := p.others[row]
	return int(i), found
}

// find returns the deltas of a row in a block, or nil.
func (u *Update) find(block int, row perdure.RowID, dim int) []float32 {
	b, at := &u.blocks[block], 0
	if b.IDs != nil {
		i, ok := u.index(block).at(row)
		if !ok {
			return nil
		}
		at = i
	} else if row < b.First || row-b.First >= perdure.RowID(b.Count) {
		return nil
	} else {
		at = int(row - b.First)
	}
	return b.Values[at*dim : (at+1)*dim]
}

// newest returns the last deltas of a row of a table, or nil.
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

// payloadBytes returns the update's size as the server counts it.
func (u *Update) payloadBytes() int64 {
	return u.bytes - u.saved - wire.HeaderBytes*int64(len(u.parts))
}

// frames appends the frames of the parts that have not been sent. as is the common header of all frames for the shard.
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
		as.Flags |= wire.FlagDuplicateRows
	}
	if u.prompt {
		as.Flags |= wire.FlagAckNow
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

// minFreeUpdates is the number of updates that a shard always keeps for reuse.
const minFreeUpdates = 4

// maxKeptArena is the maximum size of the arena, and of the IDs, that a reused update keeps.
const maxKeptArena = 2 << 20

// maxFullArena is the size from which an arena gets no further payloads: the next one starts a new arena. If an arena
// with packed payloads grew, the heads of earlier parts would keep each smaller copy of it alive, several times its
// size.
const maxFullArena = 64 << 10

// begin returns a packer that appends to the update of the current clock.
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
		clock: s.outbox.clock, clocks: 1, weight: 1, repeats: s.broken == s.outbox.clock+1,
		parts: u.parts[:0], blocks: u.blocks[:0], arena: u.arena[:0], ids: u.ids[:0],
		taken: u.taken[:0], buffers: u.buffers[:0], weights: u.weights[:0],
	}
	return u
}

// recycle reuses the memory of an update that is safe.
func (s *Shard) recycle(u *Update) {
	if u.again {
		return
	}
	for _, m := range u.taken {
		m.from.recycle(m.memory)
	}
	for _, r := range u.buffers {
		r.leave()
	}
	clear(u.buffers)
	if cap(u.arena) > maxKeptArena {
		u.arena = nil
	}
	if 8*cap(u.ids) > maxKeptArena {
		u.ids = nil
	}
	clear(u.taken)
	clear(u.parts)
	clear(u.blocks)
	if len(s.free) < max(minFreeUpdates, s.maxKept) {
		s.free = append(s.free, u)
	}
}

// bodyBytes is the minimum size of a block's values that are sent directly from their memory. Smaller values are copied
// into the payload, which can then hold several blocks.
const bodyBytes = 16 << 10

// packer packs blocks into payloads of about wire.PartBytes. It never splits a block.
type packer struct {
	u     *Update
	start int // start of the current payload in the arena
	saved int // by how many bytes packing reduces the current payload
}

// check rejects an update with more parts than the wire format can count, reserving one for the last part, or with more
// bytes than a server keeps.
func (p *packer) check() error {
	if n := len(p.u.parts); n >= math.MaxUint16 || p.u.bytes > wire.MaxUpdateBytes/2 {
		return fmt.Errorf("%w: an update of %d bytes in %d parts to one shard is too large: at most %d bytes in %d "+
			"parts of up to %d bytes are allowed; use more shards, do not keep tables whole, or call Flush less often",
			perdure.ErrUsage, p.u.bytes, n, int64(wire.MaxUpdateBytes/2), math.MaxUint16-1, wire.PartBytes)
	}
	return nil
}

// MaxRunRows is the maximum number of rows of a run in one block.
func MaxRunRows(dim int) int { return max(1, (wire.PartBytes-64)/(4*dim)) }

// listRows is the maximum number of individually listed rows in one block.
func listRows(dim int) int { return max(1, (wire.PartBytes-64)/(4*dim+8)) }

func (p *packer) block(block block) {
	u, n := p.u, 4*len(block.Values)
	u.blocks = append(u.blocks, block)
	if block.encoded != nil {
		p.encoded(&block)
		return
	}
	if p.packed(&block.Block) {
		return
	}
	if body, ok := wire.FloatBytes(block.Values); ok && n >= bodyBytes {
		p.flush()
		u.arena = wire.AppendBlockHead(u.arena, &block.Block)
		p.end(body)
		return
	}
	p.fit(n + 8*len(block.IDs))
	u.arena = wire.AppendBlock(u.arena, &block.Block)
}

// add appends a block of a table. Rounded values are copied, so that the deltas need not be kept.
func (p *packer) add(rows wire.Rows, values []float32, e perdure.Encoding) {
	of := block{Block: wire.Block{Rows: rows, Values: values}}
	if e != perdure.EncodingFloat32 {
		of.IDs, of.Values = slices.Clone(rows.IDs), nil
		of.encoding, of.values = e, len(values)
		of.encoded = wire.EncodeValues(e, rows.Count, values)
	}
	p.block(of)
}

// encoded appends a block with rounded values. A payload has no more values than without rounding, so decoding never
// needs more memory than an unrounded payload.
func (p *packer) encoded(block *block) {
	u, n := p.u, len(block.encoded)
	if n >= bodyBytes {
		p.flush()
		u.arena = wire.AppendEncodedHead(u.arena, &block.Rows, block.encoding, block.values)
		p.end(block.encoded)
		return
	}
	p.fit(4*block.values + 8*len(block.IDs))
	u.arena = wire.AppendEncodedBlock(u.arena, &block.Rows, block.encoding, block.values, block.encoded)
	p.saved += max(0, 4*block.values-n)
}

// packed appends a block with packed values, and reports whether it did. Packing does not increase the number of blocks
// in a payload, so unpacking never needs more memory than an unpacked payload.
func (p *packer) packed(block *wire.Block) bool {
	p.fit(4*len(block.Values) + 8*len(block.IDs)) // before packing: it may replace the arena
	with, saved := wire.AppendPackedBlock(p.u.arena, block)
	if saved <= 0 {
		return false
	}
	p.u.arena = with
	p.saved += saved
	return true
}

// list appends blocks of individually listed rows.
func (p *packer) list(of *Table, ids []perdure.RowID, values []float32) {
	t, dim, e := of.id, of.spec.Dim, of.spec.Encoding
	most := listRows(dim)
	for len(ids) > 0 {
		n := min(most, len(ids))
		p.add(wire.Rows{Table: t, Count: n, IDs: ids[:n:n]}, values[:n*dim], e)
		ids, values = ids[n:], values[n*dim:]
	}
}

// run appends blocks of consecutive rows.
func (p *packer) run(of *Table, first perdure.RowID, values []float32) {
	t, dim, e := of.id, of.spec.Dim, of.spec.Encoding
	for len(values) > 0 {
		n := min(MaxRunRows(dim), len(values)/dim)
		p.add(wire.Rows{Table: t, First: first, Count: n}, values[:n*dim], e)
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
	p.u.origin, p.u.hasOrigin = o, true
	p.u.arena = wire.AppendBasisBlock(p.u.arena, o.Basis, o.Lag)
	if o.DuringOutage {
		p.u.arena = wire.AppendOutageBlock(p.u.arena)
	}
}

// weight appends the weight of the update for a table. Such an update is never merged, because its clocks take two
// steps.
func (p *packer) weight(w tableWeight) {
	p.fit(wire.HeaderBytes)
	p.u.arena = wire.AppendWeightBlock(p.u.arena, w.table, w.weight)
}

// fit ends the payload if n more bytes would exceed its size.
func (p *packer) fit(n int) {
	if used := len(p.u.arena) - p.start + p.saved; used > 0 && used+n > wire.PartBytes {
		p.flush()
	}
}

// flush ends the payload unless it is empty.
func (p *packer) flush() {
	if len(p.u.arena) > p.start {
		p.end(nil)
	}
}

// end ends the payload. Its start is a multiple of 8, because all lengths in it are.
func (p *packer) end(body []byte) {
	u := p.u
	head := u.arena[p.start:len(u.arena):len(u.arena)]
	p.start = len(u.arena)
	u.parts = append(u.parts, partPayload{head, body})
	u.bytes += int64(wire.HeaderBytes + len(head) + len(body) + p.saved)
	u.saved += int64(p.saved)
	p.saved = 0
	if len(u.arena) >= maxFullArena {
		u.arena, p.start = nil, 0
	}
}

// rebuild packs the contents of an update into parts again.
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
	if u.hasOrigin {
		p.origin(u.origin)
	}
	for _, w := range u.weights {
		p.weight(w)
	}
	p.flush()
	if len(u.parts) == 0 {
		p.end(nil)
	}
}

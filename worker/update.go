package worker

import (
	"fmt"
	"math"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/data/wire"
)

// update is one of this slot's updates to one shard, kept until it is safe.
type update struct {
	clock  perdure.Clock // the first that it is of
	clocks perdure.Clock // how many
	parts  []piece
	blocks []wire.Block // what is in them
	bytes  int64
	open   bool // more parts follow: the clock is not over
	sent   int  // parts that have left
	again  bool // parts of it may still be queued somewhere when it is safe
	ticked bool // staged on all shards: to be applied whatever happens
	held   bool // it may not be sent yet: vap
	logged bool // the update log has all of it
	// What servers will multiply its deltas with, as far as it is known here: 1, but
	// where the shard was out. (See perdure.ScaleAverage.)
	weight float32
	prompt bool // the program will most likely wait for it: Settle
	// Rows are in it more than once: the last delta of a row has the earlier ones in
	// it, and is the one that the server applies.
	repeats bool
	state   []byte             // what is to be saved with it; nil: nothing
	origin  consistency.Origin // what it was computed from, if told
	told    bool

	most     float32                 // see peak
	measured bool                    // it is known
	grown    map[perdure.TableID]int // by table: the block that grows

	arena   []byte          // what the parts' heads lie in
	ids     []perdure.RowID // what the ids of runs that became lists lie in
	taken   []taken         // what the blocks lie in
	rooms   []*room         // likewise
	indexes map[int]map[perdure.RowID]int32
}

// piece is the payload of one part: its values, where they are many, lie apart.
type piece struct{ head, body []byte }

// taken is memory that an update has from a part's deltas.
type taken struct {
	from *deltas
	memory
}

// until returns the clock after the last that the update is of.
func (u *update) until() perdure.Clock { return u.clock + u.clocks }

// index returns where the rows of a block are in it.
func (u *update) index(block int) map[perdure.RowID]int32 {
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
func (u *update) find(block int, row perdure.RowID, dim int) []float32 {
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
func (u *update) newest(t perdure.TableID, row perdure.RowID, dim int) []float32 {
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
func (u *update) payloadBytes() int64 { return u.bytes - wire.HeaderBytes*int64(len(u.parts)) }

// mostFreeUpdates is how many updates a shard keeps to be used again.
const mostFreeUpdates = 4

// mostKeptArena is how many bytes of heads, and of ids, each of them keeps.
const mostKeptArena = 2 << 20

// newUpdate begins an update of the present clock. It needs c.mu.
func (c *Client) newUpdate(sh *shardLink) *update {
	var u *update
	if n := len(sh.free); n > 0 {
		u, sh.free = sh.free[n-1], sh.free[:n-1]
	} else {
		u = new(update)
	}
	*u = update{
		clock: c.clock, clocks: 1, open: true, weight: 1,
		parts: u.parts[:0], blocks: u.blocks[:0], arena: u.arena[:0], ids: u.ids[:0], taken: u.taken[:0], rooms: u.rooms[:0],
	}
	return u
}

// recycle takes back the memory of an update that is safe.
func (sh *shardLink) recycle(u *update) {
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
	if len(sh.free) < max(mostFreeUpdates, sh.most) {
		sh.free = append(sh.free, u)
	}
}

// bodyBytes is the least size of a block's values that are sent from where they
// lie. Smaller ones are copied into the payload: a payload then holds several.
const bodyBytes = 16 << 10

// partBuilder packs blocks into payloads of about wire.PartBytes. Every block is
// whole in its payload.
type partBuilder struct {
	u     *update
	start int // of the payload that is being filled, in the arena
}

// check refuses an update of more parts than can be counted on the wire, one more
// being kept for the last, or of more bytes than a server keeps.
func (b *partBuilder) check() error {
	if n := len(b.u.parts); n >= math.MaxUint16 || b.u.bytes > wire.MaxUpdate/2 {
		return fmt.Errorf("%w: an update of %d bytes in %d parts to one shard is too large: at most %d bytes, and %d parts of up to %d each, can be sent; use more shards, or Flush less often",
			perdure.ErrUsage, b.u.bytes, n, int64(wire.MaxUpdate/2), math.MaxUint16-1, wire.PartBytes)
	}
	return nil
}

// runRows is how many rows of a run go into one block.
func runRows(dim int) int { return max(1, (wire.PartBytes-64)/(4*dim)) }

func (b *partBuilder) block(block wire.Block) {
	u, n := b.u, 4*len(block.Values)
	u.blocks = append(u.blocks, block)
	if body, ok := wire.FloatBytes(block.Values); ok && n >= bodyBytes {
		b.flush()
		u.arena = wire.AppendBlockHead(u.arena, &block)
		b.end(body)
		return
	}
	b.fit(n + 8*len(block.IDs))
	u.arena = wire.AppendBlock(u.arena, &block)
}

func (b *partBuilder) state(state []byte) {
	b.fit(len(state))
	b.u.state = state
	b.u.arena = wire.AppendStateBlock(b.u.arena, state)
}

func (b *partBuilder) origin(o consistency.Origin) {
	b.fit(2 * wire.HeaderBytes)
	b.u.origin, b.u.told = o, true
	b.u.arena = wire.AppendBasisBlock(b.u.arena, o.Basis, o.Lag)
	if o.Alone {
		b.u.arena = wire.AppendAloneBlock(b.u.arena)
	}
}

// fit ends the payload if n more bytes would be too many.
func (b *partBuilder) fit(n int) {
	if used := len(b.u.arena) - b.start; used > 0 && used+n > wire.PartBytes {
		b.flush()
	}
}

// flush ends the payload, if anything is in it.
func (b *partBuilder) flush() {
	if len(b.u.arena) > b.start {
		b.end(nil)
	}
}

// end ends the payload. Its start is a multiple of 8, like the length of all that
// is in it.
func (b *partBuilder) end(body []byte) {
	u := b.u
	head := u.arena[b.start:len(u.arena):len(u.arena)]
	b.start = len(u.arena)
	u.parts = append(u.parts, piece{head, body})
	u.bytes += int64(wire.HeaderBytes + len(head) + len(body))
}

// addUpdate appends the frames of an update's parts from the first on.
func (c *Client) addUpdate(sh *shardLink, u *update, first int, frames []wire.Frame) []wire.Frame {
	// What an earlier process of the slot did already is acknowledged at its first
	// part, or sooner: the replica that is read from hears of it by itself.
	u.again = u.again || u.clock < max(sh.counts.Applied, sh.headApplied)
	for i, p := range u.parts[first:] {
		f := c.shardFrame(sh, wire.KindUpdate)
		f.Clock, f.Part, f.Payload, f.Body = u.clock, uint16(first+i), p.head, p.body
		if u.clocks > 1 {
			f.Clocks = uint16(u.clocks)
		}
		if !u.open {
			f.Parts = uint16(len(u.parts))
		}
		if u.ticked {
			f.Flags |= wire.FlagTicked
		}
		if u.repeats {
			f.Flags |= wire.FlagRepeats
		}
		if u.prompt {
			f.Flags |= wire.FlagPrompt
		}
		frames = append(frames, f)
		c.stats.pushed += int64(wire.HeaderBytes + f.PayloadBytes())
	}
	u.sent = len(u.parts)
	return frames
}

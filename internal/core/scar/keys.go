package scar

import (
	"math"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/table"
)

// Keys, the highest first: of rows that are saved again so that a file can be dropped; of
// rows whose save has failed; and of what a selector says, down to 1. A row with key 0 is as
// it was saved.
const (
	keyForced = math.MaxUint32
	keyOwed   = keyForced - 1
	keyMost   = keyOwed - 1
)

// score gives each row its key. first says, by slot, which files are to be emptied.
func (l *Ledger) score(parts []*table.Part, first []bool) {
	all := 0
	for _, p := range parts {
		all += p.Stored()
	}
	s := scorer{
		by: l.set.Selector, full: l.full, first: first, all: all,
		seed: saveSeed(l.set, l.saves),
	}
	for t, p := range parts { // the rows before the cursor come after all others
		if t < l.next.table {
			s.ordinal -= p.Stored()
		} else if t == l.next.table {
			s.ordinal -= min(l.next.at, p.Stored())
		}
	}
	if s.ordinal < 0 {
		s.ordinal += all
	}
	for t, p := range parts {
		s.table = perdure.TableID(t)
		s.score(p, l.tables[t], l.picking.list(t, p.Stored()))
	}
}

// scorer gives rows their keys, table after table.
type scorer struct {
	by    perdure.Selector
	full  bool   // all rows are forced
	first []bool // by slot: rows of these files are

	seed    uint64          // random: of this save
	table   perdure.TableID // random
	ordinal int             // round: how many rows come before the next one that is scored
	all     int             // round: rows of all tables
}

func (s *scorer) score(p *table.Part, r *rows, keys []uint32) {
	var found [batch]int
	for at := 0; at < len(keys); {
		entry, ids := r.at(p, at, found[:])
		now := keys[at : at+len(entry)]
		switch s.by {
		case perdure.SelectPriority:
			distances(p, r, at, entry, now)
		case perdure.SelectUsed:
			for i, e := range entry {
				now[i] = min(r.counts.rows(e, 1)[0], keyMost)
			}
		case perdure.SelectRandom:
			s.random(p.First+perdure.RowID(at), ids, now)
		default:
			s.round(now)
		}
		s.above(r, entry, now)
		at += len(entry)
	}
}

// above gives rows higher keys than a selector does, where they have to be saved.
func (s *scorer) above(r *rows, entry []int, keys []uint32) {
	for i, e := range entry {
		of := *r.place(e)
		slot := of.slot()
		switch {
		case s.full || slot >= 0 && s.first != nil && s.first[slot]:
			keys[i] = keyForced
		case of&owed != 0:
			keys[i] = keyOwed
		case of == 0 && r.index != nil:
			keys[i] = max(keys[i], 1) // a value from before it was evicted may be in a file
		}
	}
}

// distances gives rows the distance from the value last saved, for each byte that saving
// them takes.
func distances(p *table.Part, r *rows, at int, entry []int, keys []uint32) {
	for i, e := range entry {
		now, saved := p.Values(at+i, 1), r.saved.rows(e, 1)
		keys[i] = distanceKey(table.Gap(now, saved), r.bytes)
		if keys[i] == keyFarthest && sameBits(now, saved) { // NaN, or Inf-Inf
			keys[i] = 0
		}
	}
}

// keyFarthest is that of an infinite distance.
const keyFarthest = 0x7f800000

// distanceKey makes a key of a square: the float32's bits, since those of floats ≥ 0 are in
// the floats' order.
func distanceKey(square float64, bytes int64) uint32 {
	if square == 0 {
		return 0
	}
	d := float32(math.Sqrt(square) / float64(bytes))
	if !(d <= math.MaxFloat32) {
		return keyFarthest
	}
	return max(math.Float32bits(d), 1)
}

func sameBits(a, b []float32) bool {
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return false
		}
	}
	return true
}

// random gives rows keys that depend on the seed, the shard, the save and the row only.
func (s *scorer) random(first perdure.RowID, ids []perdure.RowID, keys []uint32) {
	for i := range keys {
		id := first + perdure.RowID(i)
		if ids != nil {
			id = ids[i]
		}
		keys[i] = randomKey(s.seed, s.table, id)
	}
}

// saveSeed is where the random keys of a shard's save begin.
func saveSeed(s Settings, save uint64) uint64 {
	return mix(mix(mix(s.Seed+golden)^uint64(s.Shard)) + golden*save)
}

// randomKey is from 1 to keyMost.
func randomKey(seed uint64, t perdure.TableID, id perdure.RowID) uint32 {
	return 1 + uint32(mix(seed^mix(uint64(t)<<48^uint64(id)))>>32*keyMost>>32)
}

// round gives rows keys in the order in which they come after the cursor. Those behind the
// first 2^32 wait for the next round but one.
func (s *scorer) round(keys []uint32) {
	for i := range keys {
		keys[i] = keyMost - uint32(min(s.ordinal, keyMost-1))
		if s.ordinal++; s.ordinal == s.all {
			s.ordinal = 0
		}
	}
}

// roundNext returns the cursor of the row after the last one that round has taken, given that
// row's key.
func (c cursor) roundNext(parts []*table.Part, key uint32) cursor {
	for steps := int(keyMost-key) + 1; ; {
		if c.table >= len(parts) {
			c = cursor{}
		}
		left := max(parts[c.table].Stored()-c.at, 0)
		if steps < left {
			c.at += steps
			return c
		}
		steps -= left
		c = cursor{table: c.table + 1}
	}
}

// golden is 2^64 divided by the golden ratio, the increment of SplitMix64.
const golden = 0x9e3779b97f4a7c15

// mix is the finaliser of SplitMix64.
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

package scar

import (
	"math"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/table"
)

// Keys in descending order: rows that are saved again so that a file can be dropped; rows whose save has failed; and
// keys from the selector, down to 1. A row with key 0 equals its saved value.
const (
	keyForced = math.MaxUint32
	keyFailed = keyForced - 1
	keyMax    = keyFailed - 1
)

// score assigns a key to each row. first lists, by slot, which files must be emptied.
func (l *Ledger) score(parts []*table.Part, first []bool) {
	all := 0
	for t, p := range parts {
		all += l.tables[t].units(p)
	}
	s := scorer{
		by: l.set.Selector, full: l.full, first: first, all: all,
		seed: saveSeed(l.set, l.saves),
	}
	for t, p := range parts { // the rows before the cursor come last
		if t < l.next.table {
			s.ordinal -= l.tables[t].units(p)
		} else if t == l.next.table {
			s.ordinal -= min(l.next.at, l.tables[t].units(p))
		}
	}
	if s.ordinal < 0 {
		s.ordinal += all
	}
	for t, p := range parts {
		s.table = perdure.TableID(t)
		s.score(p, l.tables[t], l.scratch.list(t, l.tables[t].units(p)))
	}
}

// scorer assigns keys to rows, one table after the other.
type scorer struct {
	by    perdure.Selector
	full  bool   // all rows are forced
	first []bool // by slot: rows of these files are forced

	seed    uint64          // random: the seed of this save
	table   perdure.TableID // random
	ordinal int             // round: number of rows before the next one to score
	all     int             // round: number of rows in all tables
}

func (s *scorer) score(p *table.Part, r *rows, keys []uint32) {
	switch s.by {
	case perdure.SelectPriority:
		if r.whole {
			distance(p, r, keys)
		} else {
			distances(p, r, keys)
		}
	case perdure.SelectUsed:
		r.uses(p, keys)
	case perdure.SelectRandom:
		s.random(p, keys)
	default:
		s.round(keys)
	}
	switch {
	case s.full:
		for i := range keys {
			keys[i] = keyForced
		}
	case s.first != nil || r.hasFailed || r.sparse:
		r.hasFailed = false
		for at := 0; at < len(keys); {
			of := r.of.upTo(at, len(keys))
			s.above(r, of, keys[at:at+len(of)])
			at += len(of)
		}
	}
}

// above raises the keys of rows that must be saved regardless of the selector.
func (s *scorer) above(r *rows, of []location, keys []uint32) {
	for i, of := range of {
		slot := of.slot()
		switch {
		case slot < 0 && of == 0 && r.sparse:
			keys[i] = max(keys[i], 1) // a file may have a value from before its eviction
		case s.first != nil && slot >= 0 && s.first[slot]:
			keys[i] = keyForced
		case of&saveFailed != 0:
			keys[i] = keyFailed
		}
		r.hasFailed = r.hasFailed || of&saveFailed != 0
	}
}

// distanceOf returns the table's own distance, or nil for the Euclidean one.
func distanceOf(d perdure.Distance) table.Metric {
	switch d {
	case perdure.DistanceTV:
		return table.TotalVariation
	case perdure.DistanceLabels:
		return table.LabelVariation
	}
	return nil
}

// distances assigns to each row its distance from the last saved value, divided by the size of its save.
func distances(p *table.Part, r *rows, keys []uint32) {
	width, far := p.Spec.Dim, table.DistanceKeys
	if own := distanceOf(p.Spec.Distance); own != nil {
		far = own.Keys
	}
	for at := 0; at < len(keys); {
		end, here := r.saved.run(at, min(len(keys), at+max(1, batch*64/width)))
		if !here { // nothing has changed
			clear(keys[at:end])
			at = end
			continue
		}
		now, saved := p.Values(at, end-at), r.saved.values.upTo(at, end)
		n := min(len(now), len(saved)) / width
		if far(keys[at:at+n], now, saved, width, int(r.bytes)) == table.MaxDistanceKey {
			for i := range n { // NaN, or Inf-Inf
				row := i * width
				if keys[at+i] == table.MaxDistanceKey && sameBits(now[row:row+width], saved[row:row+width]) {
					keys[at+i] = 0
				}
			}
		}
		if p.Spec.Distance == perdure.DistanceNone {
			for i := range keys[at : at+n] {
				keys[at+i] = min(keys[at+i], 1)
			}
		}
		at += n
	}
}

// distance is distances for a whole table, for all of its rows together.
func distance(p *table.Part, r *rows, keys []uint32) {
	if len(keys) == 0 {
		return
	}
	width, far := p.Spec.Dim, table.DistanceSum{Func: distanceOf(p.Spec.Distance)}
	for at := 0; at < p.Rows; {
		end, here := r.saved.run(at, p.Rows)
		for here && at < end {
			now, saved := p.Values(at, end-at), r.saved.values.upTo(at, end)
			n := min(len(now), len(saved))
			far.Add(now[:n], saved[:n], width)
			at += n / width
		}
		at = end
	}
	if keys[0] = far.Key(r.bytes); p.Spec.Distance == perdure.DistanceNone {
		keys[0] = min(keys[0], 1)
	}
}

// uses assigns to each row the number of its updates, and to a whole table the mean over its rows, rounded up.
func (r *rows) uses(p *table.Part, keys []uint32) {
	for at := 0; at < len(keys); {
		for _, n := range r.counts.upTo(at, len(keys)) {
			keys[at] = min(n, keyMax)
			at++
		}
	}
	if r.whole && len(keys) > 0 {
		keys[0] = uint32((uint64(keys[0]) + uint64(p.Rows) - 1) / uint64(p.Rows))
	}
}

func sameBits(a, b []float32) bool {
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return false
		}
	}
	return true
}

// random assigns keys that depend only on the seed, the shard, the save and the row.
func (s *scorer) random(p *table.Part, keys []uint32) {
	seed := tableSeed(s.seed, s.table)
	if !p.Spec.Sparse {
		randomKeys(keys, seed, p.First)
		return
	}
	for at := 0; at < len(keys); {
		for _, id := range p.IDs(at, len(keys)-at) {
			keys[at] = randomKey(seed, id)
			at++
		}
	}
}

// saveSeed returns the seed of the random keys of one save of a shard.
func saveSeed(s Settings, save uint64) uint64 {
	return mix(mix(mix(s.Seed+golden)^uint64(s.Shard)) + golden*save)
}

// tableSeed returns the seed of the random keys of one table in a save.
func tableSeed(save uint64, t perdure.TableID) uint64 { return mix(save ^ mix(golden*uint64(t+1))) }

// randomKey returns a key from 1 to keyMax. Two rows share a number of SplitMix64, and each uses half of it.
func randomKey(seed uint64, id perdure.RowID) uint32 {
	z := mix(seed + golden*(uint64(id)>>1))
	if id%2 == 0 {
		z >>= 32
	}
	return toKey(uint32(z))
}

// randomKeys fills in the keys of consecutive rows starting at first.
func randomKeys(keys []uint32, seed uint64, first perdure.RowID) {
	at := 0
	if first%2 != 0 && len(keys) > 0 {
		keys[0] = randomKey(seed, first)
		at++
	}
	for z := seed + golden*((uint64(first)+uint64(at))>>1); at+1 < len(keys); at += 2 {
		both := mix(z)
		keys[at], keys[at+1] = toKey(uint32(both>>32)), toKey(uint32(both))
		z += golden
	}
	if at < len(keys) {
		keys[at] = randomKey(seed, first+perdure.RowID(at))
	}
}

// toKey maps a 32-bit number to the range from 1 to keyMax.
func toKey(n uint32) uint32 { return 1 + uint32(uint64(n)*keyMax>>32) }

// round assigns keys in the order of the rows after the cursor. Rows after the first 2^32 wait for the round after the
// next.
func (s *scorer) round(keys []uint32) {
	for i := range keys {
		keys[i] = keyMax - uint32(min(s.ordinal, keyMax-1))
		if s.ordinal++; s.ordinal == s.all {
			s.ordinal = 0
		}
	}
}

// roundNext returns the cursor of the row after the last one that round has taken, whose key is given.
func (l *Ledger) roundNext(parts []*table.Part, key uint32) cursor {
	c := l.next
	for steps := int(keyMax-key) + 1; ; {
		if c.table >= len(parts) {
			c = cursor{}
		}
		left := max(l.tables[c.table].units(parts[c.table])-c.at, 0)
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

// mix is the finalizer of SplitMix64.
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

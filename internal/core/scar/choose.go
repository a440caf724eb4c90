package scar

import (
	"cmp"
	"math"
	"math/bits"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/table"
)

// choiceScratch is the memory used by choosing, which is reused.
type choiceScratch struct {
	keys   [][]uint32 // by table and position
	near   [][]uint32 // by table: candidates for the last key
	sample []sampled
	ties   []uint64
	taken  []uint64 // one bit for each key of a table
}

// list returns memory for the keys of a table of n rows.
func (k *choiceScratch) list(t, n int) []uint32 {
	for len(k.keys) <= t {
		k.keys, k.near = append(k.keys, nil), append(k.near, nil)
	}
	if cap(k.keys[t]) < n {
		k.keys[t] = make([]uint32, n+n/8)
	}
	k.keys[t] = k.keys[t][:n]
	return k.keys[t]
}

// block is how many words of bits are computed from keys at a time, so that the keys are still in the cache when they
// are read again.
const block = 64

// each calls f for every 64 keys: between has a bit for each key in [low, high), higher has a bit for each key of at
// least high, and at is the position of the first key.
func each(keys []uint32, low, high uint32, f func(between, higher uint64, at int)) {
	var atLeast, above [block]uint64
	for from := 0; from < len(keys); from += 64 * block {
		here := keys[from:min(from+64*block, len(keys))]
		n := (len(here) + 63) / 64
		table.MarkAtLeast(atLeast[:n], here, low)
		table.MarkAtLeast(above[:n], here, high)
		for w, higher := range above[:n] {
			f(atLeast[w]&^higher, higher, from+64*w)
		}
	}
}

// take takes the units with the highest keys until the budget is full. It takes none with key 0, and all that are
// forced.
func (l *Ledger) take(c *Choice, parts []*table.Part) {
	bytes := make([]int64, len(parts))
	for t := range parts {
		bytes[t] = l.tables[t].bytes
	}
	k := &l.scratch
	last, above := k.last(len(parts), bytes, max(l.credit, 1))
	left := l.credit - above // for rows with the key last
	all := last == keyForced || l.credit <= 0
	if all {
		last = keyForced
	}
	c.Runs, c.units = make([][]table.Run, len(parts)), make([][]table.Run, len(parts))
	for t, p := range parts {
		keys := k.keys[t]
		ties := tieBreaker{bytes: bytes[t], left: &left}
		if last > 0 && !all {
			ties.minComplement = k.tie(p, keys, last, bytes[t], left)
		}
		words := (len(keys) + 63) / 64
		k.taken = slices.Grow(k.taken[:0], words)[:words]
		if last == 0 || all {
			table.MarkAtLeast(k.taken, keys, max(last, 1))
		} else {
			each(keys, last, last+1, func(same, higher uint64, at int) {
				if same != 0 {
					higher |= ties.take(p, at, same)
				}
				k.taken[at/64] = higher
			})
		}
		var n int
		c.units[t], n = runsOf(k.taken)
		c.Runs[t] = l.tables[t].rowsOf(p, c.units[t])
		c.Bytes += int64(n) * bytes[t]
	}
	if l.set.Selector == perdure.SelectRound && last > 0 && last <= keyMax {
		l.next = l.roundNext(parts, last)
	}
}

// runsOf returns the runs of bits that are set, and the number of these bits.
func runsOf(mask []uint64) (runs []table.Run, rows int) {
	n, before := 0, uint64(0)
	for _, m := range mask {
		n += bits.OnesCount64(m &^ (m<<1 | before>>63))
		rows += bits.OnesCount64(m)
		before = m
	}
	if n == 0 {
		return nil, 0
	}
	runs = make([]table.Run, 0, n)
	for w, m := range mask {
		for at := 64 * w; m != 0; {
			skip := bits.TrailingZeros64(m)
			at, m = at+skip, m>>skip
			ones := bits.TrailingZeros64(^m)
			if last := len(runs) - 1; last >= 0 && runs[last].First+runs[last].Rows == at {
				runs[last].Rows += ones
			} else {
				runs = append(runs, table.Run{First: at, Rows: ones})
			}
			at, m = at+ones, m>>ones
		}
	}
	return runs, rows
}

// tieBreaker takes rows of a table that have the last key, as long as the budget lasts.
type tieBreaker struct {
	bytes         int64
	left          *int64 // remaining budget
	minComplement uint64 // sparse table: the smallest complement of an ID that is taken
}

// take returns which of the tied rows are taken, among up to 64 starting at a position.
func (s *tieBreaker) take(p *table.Part, at int, same uint64) (taken uint64) {
	if all := int64(bits.OnesCount64(same)) * s.bytes; s.minComplement == 0 && all <= *s.left {
		*s.left -= all
		return same
	}
	for ; same != 0 && *s.left > 0; same &= same - 1 {
		if s.minComplement == 0 || ^uint64(p.IDs(at+bits.TrailingZeros64(same), 1)[0]) >= s.minComplement {
			*s.left -= s.bytes
			taken |= same & -same
		}
	}
	return taken
}

// tie selects the rows of a sparse table with the key last that fit into the budget: those with the lowest IDs. It
// returns the smallest complement of such an ID.
func (k *choiceScratch) tie(p *table.Part, keys []uint32, last uint32, bytes, left int64) (least uint64) {
	if !p.Spec.Sparse || left <= 0 {
		return 0
	}
	k.ties = k.ties[:0]
	each(keys, last, last+1, func(same, _ uint64, at int) {
		for ; same != 0; same &= same - 1 {
			k.ties = append(k.ties, ^uint64(p.IDs(at+bits.TrailingZeros64(same), 1)[0]))
		}
	})
	if int64(len(k.ties))*bytes <= left {
		return 0
	}
	least, _ = threshold([][]uint64{k.ties}, []int64{bytes}, left)
	return least
}

// sampled is a key of a sample, with the number of bytes that it represents.
type sampled struct {
	key   uint32
	bytes int64
}

// samples is the number of keys in a sample. sampleSlack is how many of them may lie between the last key and the
// sample's estimate: at least four times the standard deviation, so that the estimate is almost never wrong.
const (
	samples     = 1 << 14
	sampleSlack = 4 * 64
)

// last computes threshold for the keys of all tables. If there are many keys, a sample gives an estimate, so that only
// the keys near it are examined more than once. If the estimate is wrong, all keys are.
func (k *choiceScratch) last(tables int, bytes []int64, least int64) (at uint32, above int64) {
	low, high, ok := k.between(tables, bytes, least)
	if !ok {
		return threshold(k.keys[:tables], bytes, least)
	}
	nearer := int64(0)
	for t, keys := range k.keys[:tables] {
		near := k.near[t][:0]
		each(keys, low, high, func(m, higher uint64, at int) {
			above += int64(bits.OnesCount64(higher)) * bytes[t]
			nearer += int64(bits.OnesCount64(m)) * bytes[t]
			for ; m != 0 && high-low > 1; m &= m - 1 {
				near = append(near, keys[at+bits.TrailingZeros64(m)])
			}
		})
		k.near[t] = near
	}
	switch {
	case above >= least || low > 1 && above+nearer < least:
		return threshold(k.keys[:tables], bytes, least)
	case high-low == 1 && above+nearer >= least: // many rows with the same key, as with used
		return low, above
	case high-low == 1:
		return 0, above + nearer
	}
	at, more := threshold(k.near[:tables], bytes, least-above)
	return at, above + more
}

// between returns the range of the last key that a sample suggests: at least low, and below high.
func (k *choiceScratch) between(tables int, bytes []int64, least int64) (low, high uint32, ok bool) {
	all := 0
	for _, keys := range k.keys[:tables] {
		all += len(keys)
	}
	step := all / samples
	if step < 16 {
		return 0, 0, false
	}
	k.sample = k.sample[:0]
	for t, keys := range k.keys[:tables] {
		if len(keys) < step { // a whole table's only key may represent most of the bytes
			for _, key := range keys {
				k.sample = append(k.sample, sampled{key, bytes[t]})
			}
			continue
		}
		for at := 0; at+step <= len(keys); at += step { // the distances vary, because rows may have an order
			key := keys[at+int(mix(uint64(at))%uint64(step))]
			k.sample = append(k.sample, sampled{key, bytes[t] * int64(step)})
		}
	}
	slices.SortFunc(k.sample, func(a, b sampled) int { return cmp.Compare(b.key, a.key) })
	rank := 0
	for sum := int64(0); rank < len(k.sample) && sum < least; rank++ {
		sum += k.sample[rank].bytes
	}
	low, high = 1, math.MaxUint32
	if i := rank + sampleSlack; i < len(k.sample) {
		low = max(k.sample[i].key, 1)
	}
	if i := rank - sampleSlack; i >= 0 && k.sample[i].key < math.MaxUint32 {
		high = k.sample[i].key + 1
	}
	return low, high, low < high
}

// digit is how many bits of a key are examined in one pass: the counts for them fit into the first-level cache.
const digit = 11

// threshold returns the highest key such that the rows with this or a higher key take at least least bytes, and the
// bytes of the rows with higher keys. It returns 0 if all rows with nonzero keys take less. lists are the keys, and
// bytes the size of a row in each list. threshold examines the keys digit by digit, so its time does not depend on
// their values.
func threshold[K uint32 | uint64](lists [][]K, bytes []int64, least int64) (at K, above int64) {
	var known K // the known bits of the result
	for shift := bits.Len64(uint64(^K(0))) - digit; ; shift = max(shift-digit, 0) {
		var sums [1 << digit]int64
		for i, keys := range lists {
			var counts [1 << digit]int64
			for _, k := range keys {
				if k&known == at && k != 0 {
					counts[k>>shift%(1<<digit)]++
				}
			}
			for d, n := range counts {
				sums[d] += n * bytes[i]
			}
		}
		d := len(sums) - 1
		for ; d >= 0 && above+sums[d] < least; d-- {
			above += sums[d]
		}
		if d < 0 {
			return 0, above
		}
		at |= K(d) << shift
		known |= (1<<digit - 1) << shift
		if shift == 0 {
			return at, above
		}
	}
}

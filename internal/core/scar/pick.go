package scar

import (
	"math/bits"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/table"
)

// picking is the memory that choosing takes, which is used again.
type picking struct {
	keys [][]uint32 // by table and position
	ties []uint64
}

// list returns the keys of a table of n rows, to be filled.
func (k *picking) list(t, n int) []uint32 {
	for len(k.keys) <= t {
		k.keys = append(k.keys, nil)
	}
	if cap(k.keys[t]) < n {
		k.keys[t] = make([]uint32, n+n/8)
	}
	k.keys[t] = k.keys[t][:n]
	return k.keys[t]
}

// take takes the rows with the highest keys until the budget is full: none with key 0, and
// those that are forced in any case.
func (l *Ledger) take(c *Choice, parts []*table.Part) {
	bytes := make([]int64, len(parts))
	for t := range parts {
		bytes[t] = l.tables[t].bytes
	}
	last, above := threshold(l.picking.keys[:len(parts)], bytes, max(l.credit, 1))
	left := l.credit - above // for rows with the key last
	c.Runs = make([][]table.Run, len(parts))
	for t, p := range parts {
		keys, ties := l.picking.keys[t], tied{bytes: bytes[t], left: &left}
		if last == keyForced || l.credit <= 0 {
			last, ties.all = keyForced, true
		} else if last > 0 {
			ties.least = l.picking.tie(p, keys, last, bytes[t], left)
		}
		for at, k := range keys {
			if k > last || k == last && k > 0 && ties.take(p, at) {
				c.add(t, at, bytes[t])
			}
		}
	}
	if l.set.Selector == perdure.SelectRound && last > 0 && last <= keyMost {
		l.next = l.next.roundNext(parts, last)
	}
}

// add adds a row to a choice, after those before it.
func (c *Choice) add(t, at int, bytes int64) {
	c.Bytes += bytes
	runs := c.Runs[t]
	if n := len(runs); n > 0 && runs[n-1].First+runs[n-1].Rows == at {
		runs[n-1].Rows++
		return
	}
	c.Runs[t] = append(runs, table.Run{First: at, Rows: 1})
}

// tied takes rows of a table that have the last key for which there is room.
type tied struct {
	bytes int64
	left  *int64 // what there is room for
	all   bool
	least uint64 // of a sparse table: the least complement of an id that is taken
}

func (s *tied) take(p *table.Part, at int) bool {
	if s.all {
		return true
	}
	if *s.left <= 0 || p.Spec.Sparse && ^uint64(p.IDs(at, 1)[0]) < s.least {
		return false
	}
	*s.left -= s.bytes
	return true
}

// tie returns which rows of a sparse table with the key last there is room for: those with
// the lowest ids, whose complements are at least this.
func (k *picking) tie(p *table.Part, keys []uint32, last uint32, bytes, left int64) (least uint64) {
	if !p.Spec.Sparse || left <= 0 {
		return 0
	}
	n := int64(0)
	for _, key := range keys {
		if key == last {
			n++
		}
	}
	if n*bytes <= left {
		return 0
	}
	k.ties = k.ties[:0]
	for at, key := range keys {
		if key == last {
			k.ties = append(k.ties, ^uint64(p.IDs(at, 1)[0]))
		}
	}
	least, _ = threshold([][]uint64{k.ties}, []int64{bytes}, left)
	return least
}

// digit is how many bits of a key are looked at in one pass: what is counted of them stays
// in the innermost cache.
const digit = 11

// threshold returns the highest key such that the rows that have it or a higher one take at
// least a number of bytes, and what those with higher ones take; 0 if all but those with key
// 0 take less. lists are keys, and bytes what a row of each takes. It looks at one digit of
// the keys after the other, so its time does not depend on what they are.
func threshold[K uint32 | uint64](lists [][]K, bytes []int64, least int64) (at K, above int64) {
	var known K // the bits that are known of the result
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

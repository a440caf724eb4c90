package scar

import (
	"cmp"
	"math"
	"slices"

	"github.com/perdure/perdure/internal/core/words"
)

// place says where a row's newest save is: 0: nowhere, the row counts as initial; else the
// number of a file's slot, and 1.
type place uint32

// owed is set in a place when a save of the row has failed: the row may be as it was at its
// last choice, and yet that is not what is saved.
const (
	owed   place = 1 << 31
	chosen place = 1 << 30 // of a table whose rows move: the choice under way has it
)

func (p place) slot() int { return int(p&^(owed|chosen)) - 1 }

// file is one file of the running checkpoint.
type file struct {
	words.SegmentFile
	number uint64 // of the files, from 1; 0: the slot is free
	bytes  int64  // of the rows in it
	live   int64  // of those whose newest save it has
}

// files are those of the running checkpoint. A file stands in a slot, so that a row can name
// it in 4 bytes however many saves there were.
type files struct {
	slots []file
	newed uint64 // how many there were
	most  int    // that there are to be
}

// More files than these are never needed to keep within thrice the live bytes, where each
// has as much as a save has: that takes 3 divided by the share. Small saves may make more
// of them, and whoever restores opens all.
func newFiles(share float64) files {
	return files{most: int(min(4/share, math.MaxInt32)) + 8}
}

// add adds a file, the newest, none of whose rows is known yet.
func (f *files) add(of words.SegmentFile, bytes int64) place {
	f.newed++
	slot := slices.IndexFunc(f.slots, func(s file) bool { return s.number == 0 })
	if slot < 0 {
		slot = len(f.slots)
		f.slots = append(f.slots, file{})
	}
	f.slots[slot] = file{SegmentFile: of, number: f.newed, bytes: bytes}
	return place(slot + 1)
}

// move notes that a row's newest save is in another file now.
func (f *files) move(row *place, to place, bytes int64) {
	f.leave(*row, bytes)
	*row = to
	f.slots[to.slot()].live += bytes
}

// leave notes that a row's newest save is not asked for any more.
func (f *files) leave(row place, bytes int64) {
	if slot := row.slot(); slot >= 0 {
		f.slots[slot].live -= bytes
	}
}

// drop drops the files that nobody needs any more.
func (f *files) drop() {
	for i := range f.slots {
		if s := &f.slots[i]; s.live == 0 && s.number != f.newed {
			*s = file{}
		}
	}
}

// order returns the slots that are in use, the oldest file first.
func (f *files) order() (slots []int) {
	for i := range f.slots {
		if f.slots[i].number > 0 {
			slots = append(slots, i)
		}
	}
	slices.SortFunc(slots, func(a, b int) int { return cmp.Compare(f.slots[a].number, f.slots[b].number) })
	return slots
}

func (f *files) list() (all []words.SegmentFile) {
	for _, slot := range f.order() {
		all = append(all, f.slots[slot].SegmentFile)
	}
	return all
}

// empty returns, by slot, the files whose live rows are to be saved anew, so that they can
// be dropped; nil: none.
//
// While all files have more than thrice the live bytes, it is the one of whose bytes the
// smallest part lives: less than a third, so that what is saved again for this is less than
// a third of what is dropped, and so of all that is ever written. A file with few bytes,
// all alive, would be cheaper, and free nothing.
//
// While there are too many files, it is the one with the fewest live bytes. Of 4/share files
// or more it has at most a quarter of a save's budget.
func (f *files) empty() (out []bool) {
	left := f.order()
	bytes, live := int64(0), int64(0)
	for _, i := range left {
		bytes += f.slots[i].bytes
		live += f.slots[i].live
	}
	for len(left) > 0 {
		by := f.fewer
		if bytes > 3*live {
			by = f.deader
		} else if len(left) < f.most {
			break
		}
		slot := slices.MinFunc(left, by) // of equal ones the oldest
		if out == nil {
			out = make([]bool, len(f.slots))
		}
		out[slot] = true
		bytes -= f.slots[slot].bytes
		left = slices.DeleteFunc(left, func(i int) bool { return i == slot })
	}
	return out
}

func (f *files) fewer(a, b int) int { return cmp.Compare(f.slots[a].live, f.slots[b].live) }

// deader compares the parts of two files that live. They are quotients of whole numbers,
// rounded the same way on every machine.
func (f *files) deader(a, b int) int { return cmp.Compare(f.slots[a].alive(), f.slots[b].alive()) }

func (f *file) alive() float64 { return float64(f.live) / float64(max(f.bytes, 1)) }

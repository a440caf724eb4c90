package scar

import (
	"cmp"
	"math"
	"slices"

	"github.com/perdure/perdure/internal/core/protocol"
)

// location says where a row's newest save is. 0: nowhere, the row counts as initial; otherwise 1 + the index of a
// file's slot.
type location uint32

// saveFailed is set in a location when a save of the row has failed: the row may equal its values at the last choice,
// although these are not the saved values.
const (
	saveFailed location = 1 << 31
	chosen     location = 1 << 30 // in tables whose rows move: the choice in progress has the row
)

func (p location) slot() int { return int(p&^(saveFailed|chosen)) - 1 }

// file is one file of the running checkpoint.
type file struct {
	protocol.SegmentFile
	number uint64 // sequence number, from 1; 0: the slot is free
	bytes  int64  // size of its rows
	live   int64  // size of the rows whose newest save it has
}

// files are the files of the running checkpoint. Each file has a slot, so that a row can refer to it in 4 bytes
// regardless of the number of saves.
type files struct {
	slots    []file
	newed    uint64 // number of files so far
	maxFiles int    // maximum number of files
}

// newFiles limits the number of files. If each file has as many bytes as a save, 3 divided by the share suffices to
// stay within three times the live bytes. Small saves could produce more files, and a restore must open all of them.
func newFiles(share float64) files {
	return files{maxFiles: int(min(4/share, math.MaxInt32)) + 8}
}

// add adds a file as the newest. It has no rows yet.
func (f *files) add(of protocol.SegmentFile, bytes int64) location {
	f.newed++
	slot := slices.IndexFunc(f.slots, func(s file) bool { return s.number == 0 })
	if slot < 0 {
		slot = len(f.slots)
		f.slots = append(f.slots, file{})
	}
	f.slots[slot] = file{SegmentFile: of, number: f.newed, bytes: bytes}
	return location(slot + 1)
}

// move records that a row's newest save is now in another file.
func (f *files) move(row *location, to location, bytes int64) {
	f.leave(*row, bytes)
	*row = to
	f.slots[to.slot()].live += bytes
}

// leave records that a row's newest save is no longer needed.
func (f *files) leave(row location, bytes int64) {
	if slot := row.slot(); slot >= 0 {
		f.slots[slot].live -= bytes
	}
}

// drop drops the files that are no longer needed.
func (f *files) drop() {
	for i := range f.slots {
		if s := &f.slots[i]; s.live == 0 && s.number != f.newed {
			*s = file{}
		}
	}
}

// order returns the slots in use, oldest file first.
func (f *files) order() (slots []int) {
	for i := range f.slots {
		if f.slots[i].number > 0 {
			slots = append(slots, i)
		}
	}
	slices.SortFunc(slots, func(a, b int) int { return cmp.Compare(f.slots[a].number, f.slots[b].number) })
	return slots
}

func (f *files) list() (all []protocol.SegmentFile) {
	for _, slot := range f.order() {
		all = append(all, f.slots[slot].SegmentFile)
	}
	return all
}

// empty returns, by slot, the files whose live rows must be saved again so that the files can be dropped, or nil.
//
// While all files have more than three times the live bytes, it selects the file with the smallest live fraction. That
// is less than a third, so less than a third of the dropped bytes, and thus of all bytes ever written, is saved again
// for compaction. A file with few bytes, all of them live, would be cheaper but free nothing.
//
// While there are too many files, it selects the one with the fewest live bytes. With at least 4/share files, that is
// at most a quarter of a save's budget.
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
			by = f.compareLiveFraction
		} else if len(left) < f.maxFiles {
			break
		}
		slot := slices.MinFunc(left, by) // the oldest of equal ones
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

// compareLiveFraction compares the live fractions of two files. They are quotients of integers, which every machine
// rounds the same way.
func (f *files) compareLiveFraction(a, b int) int {
	return cmp.Compare(f.slots[a].alive(), f.slots[b].alive())
}

func (f *file) alive() float64 { return float64(f.live) / float64(max(f.bytes, 1)) }

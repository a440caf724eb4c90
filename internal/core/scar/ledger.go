package scar

import (
	"math"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/table"
)

// Settings are what a ledger's choices depend on beside the rows.
type Settings struct {
	Selector perdure.Selector
	Share    float64 // of the bytes of all stored rows that a save has, in (0, 1]
	Seed     uint64  // the job's
	Shard    perdure.ShardID

	// Full says that the rows are trained already and in no file that is known here, as when
	// the shard has moved: the first choice has all of them. What that costs above the
	// budget is a debt: until it is paid, choices have no rows but those of compaction.
	Full bool
	// Torn says that a whole table's rows are chosen one by one, as if it were none. Only tests
	// say so.
	Torn bool
	// Saves is how many choices were made for the shard before, by ledgers that are gone.
	// random makes others of the next ones.
	Saves uint64
}

// Ledger is what is known of a shard's running checkpoint.
type Ledger struct {
	set    Settings
	tables []*rows
	files  files
	saves  uint64 // choices that were made
	credit int64  // bytes of the budget that were not used; below 0: a debt
	full   bool   // the next choice has all rows
	next   cursor // round: the row that is next

	underway *Choice
	picking  picking // memory that is used again
}

// cursor is a place among all rows, by table and position.
type cursor struct{ table, at int }

// New makes the ledger of a shard of which nothing is saved: each row counts as saved with
// its initial values. Where the rows are trained already, set Settings.Full.
func New(s Settings) *Ledger {
	return &Ledger{set: s, saves: s.Saves, full: s.Full, files: newFiles(s.Share)}
}

// Resume makes the ledger of a shard whose parts have just been restored from files, the
// oldest first. layer[t][position] is the index in files of the one that a row came from;
// -1: it is in none, and is initial. The files are taken to consist of rows: what they have
// beside them, if it is much, makes compaction begin earlier.
func Resume(s Settings, parts []*table.Part, of []words.SegmentFile, layer [][]int32) *Ledger {
	l := New(s)
	for _, f := range of {
		l.files.add(f, f.Bytes)
	}
	oldest := int32(math.MaxInt32)
	for t, p := range parts {
		r := l.table(t, p)
		r.restored(p)
		for at := range r.units(p) {
			from := int32(-1)
			if t < len(layer) && at < len(layer[t]) { // of a whole table all rows are of the file of the first
				from = layer[t][at]
			}
			if from >= 0 {
				l.files.move(r.place(at), place(from+1), r.bytes)
			}
			if from < oldest { // what round has saved the longest ago
				oldest, l.next = from, cursor{t, at}
			}
		}
	}
	l.files.drop()
	return l
}

// Past says that the rows of dense tables, by table, have changed since they were saved, whose ledger Resume has just
// made: saved are they as they were.
func (l *Ledger) Past(saved []*table.Part) {
	for t, p := range saved {
		if r := l.table(t, p); r.keeps {
			r.past.are(p)
		}
	}
}

// Added may be called when a table has been added to the shard, while all its rows are
// initial. Without it the first choice makes them again, which takes longer.
func (l *Ledger) Added(t perdure.TableID, p *table.Part) {
	if r := l.table(int(t), p); l.set.Selector == perdure.SelectPriority && !l.full {
		r.restored(p)
	}
}

// Changed notes an update of rows, once it is applied: the count ids, or of a dense table
// count consecutive ones from first where ids is nil. Only the selector used asks for it.
func (l *Ledger) Changed(t perdure.TableID, p *table.Part, first perdure.RowID, ids []perdure.RowID, count int) {
	if l.set.Selector == perdure.SelectUsed && count > 0 {
		r := l.table(int(t), p)
		r.meet(p, l.full)
		r.used(p, first, ids, count)
	}
}

// Evicting returns what has to be told, for the ledger to know which rows are where, of each row
// of a table that Evict is about to take out.
func (l *Ledger) Evicting(t perdure.TableID, p *table.Part) (gone func(at int)) {
	var r *rows
	return func(at int) {
		if r == nil { // at the first, all are still there
			r = l.table(int(t), p)
			r.meet(p, l.full)
		}
		l.files.leave(*r.place(at), r.bytes)
		r.remove(at)
	}
}

// table returns what is known of a table, which may be new here.
func (l *Ledger) table(t int, p *table.Part) *rows {
	for len(l.tables) <= t {
		l.tables = append(l.tables, nil)
	}
	if l.tables[t] == nil {
		l.tables[t] = newRows(p, &l.set)
	}
	return l.tables[t]
}

// Forget ends the ledger: it hears no more of what changes.
func (l *Ledger) Forget() {
	for _, r := range l.tables {
		if r != nil && r.keeps {
			r.past.part.Unwatch(&r.past)
		}
	}
}

// Choice is what a save has.
type Choice struct {
	Runs  [][]table.Run // by table: positions of rows, ascending and without overlap
	Bytes int64         // of these rows, as a snapshot has them

	units  [][]table.Run // by table: of which units these are, in the same way
	full   bool
	before cursor
}

// Choose says which rows the next save has, given all of the shard's tables. The budget is
// Settings.Share of the bytes of all stored rows for each of the saves that are due, of which
// there may be several if the one before took long, and at most all rows; and what earlier
// choices have left of theirs. A choice that is empty need not be saved.
//
// The row that fills the budget may exceed it, since else a row wider than the budget would
// never be saved; what is too much is a debt, which the next choices pay. Rows that are as
// they were last saved are not chosen by priority and used. What is not used for want of
// changed rows is carried over once: after a long calm, a budget of many saves would stop
// training for as long as a save of all rows.
func (l *Ledger) Choose(parts []*table.Part, due int64) *Choice {
	if l.underway != nil {
		panic("scar: the choice before this one is neither written nor given up")
	}
	all := l.meet(parts)
	one := l.budget(1, all)
	l.credit = min(l.credit, one) + l.budget(due, all)
	l.credit = max(l.credit, -all) // of rows that are gone, no debt is left

	c := &Choice{before: l.next, full: l.full}
	l.score(parts, l.files.empty())
	l.take(c, parts)
	l.keep(c, parts)

	l.saves++
	l.full = false
	l.credit -= c.Bytes
	l.underway = c
	return c
}

// budget is what a number of saves may have of a number of bytes.
func (l *Ledger) budget(saves, all int64) int64 {
	return max(1, int64(math.Round(min(1, l.set.Share*float64(saves))*float64(all))))
}

// meet knows each stored row, and returns the bytes of all.
func (l *Ledger) meet(parts []*table.Part) (all int64) {
	for t, p := range parts {
		r := l.table(t, p)
		r.meet(p, l.full)
		all += int64(r.units(p)) * r.bytes
	}
	l.files.drop()
	return all
}

// keep notes the rows of a choice as they are now.
func (l *Ledger) keep(c *Choice, parts []*table.Part) {
	for t, p := range parts {
		l.tables[t].keep(p, c.units[t])
	}
}

// Written notes that a choice is on the disk, in a file.
func (l *Ledger) Written(c *Choice, f words.SegmentFile) {
	l.end(c)
	now := l.files.add(f, c.Bytes)
	for t, units := range c.units {
		r := l.tables[t]
		r.chosen(units, func(of *place) { l.files.move(of, now, r.bytes) })
	}
	l.files.drop()
}

// Unwritten notes that a choice is not on the disk, and never will be. The running
// checkpoint is what it was. How far its rows are from what is saved is not known any more:
// the next choice has them first, under the selectors that ask.
func (l *Ledger) Unwritten(c *Choice) {
	l.end(c)
	l.credit += c.Bytes
	l.full, l.next = c.full, c.before
	asks := l.set.Selector == perdure.SelectPriority || l.set.Selector == perdure.SelectUsed
	for t, units := range c.units {
		r := l.tables[t]
		r.owes = r.owes || asks
		r.chosen(units, func(of *place) {
			if asks {
				*of |= owed
			}
		})
	}
}

func (l *Ledger) end(c *Choice) {
	if c == nil || l.underway != c {
		panic("scar: this choice is not under way")
	}
	l.underway = nil
}

// Files returns what the running checkpoint is made of, the oldest file first. Each but the
// newest has the newest save of some row. The newest stays without one, too: with it stands
// how far the shard had come.
func (l *Ledger) Files() []words.SegmentFile { return l.files.list() }

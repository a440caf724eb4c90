package scar

import (
	"math"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/table"
)

// Settings are the inputs of a ledger's choices besides the rows.
type Settings struct {
	Selector perdure.Selector
	Share    float64 // fraction of the bytes of all stored rows in a save, in (0, 1]
	Seed     uint64  // the job's seed
	Shard    perdure.ShardID

	// Full means that the rows are trained already but not in any known file, for example after the shard has moved.
	// The first choice then contains all of them. Its cost above the budget is a debt: until it is paid, choices
	// contain only rows for compaction.
	Full bool
	// Torn makes a whole table's rows be chosen one by one, as in any other table. For tests only.
	Torn bool
	// Saves is the number of choices that earlier ledgers made for the shard, so that random does not repeat them.
	Saves uint64
}

// Ledger tracks a shard's running checkpoint.
type Ledger struct {
	set    Settings
	tables []*rows
	files  files
	saves  uint64 // number of choices made
	credit int64  // unused bytes of the budget; negative: a debt
	full   bool   // the next choice contains all rows
	next   cursor // round: the next row

	pending *Choice
	scratch choiceScratch // reused memory
}

// cursor is a position among all rows, by table and position.
type cursor struct{ table, at int }

// New returns the ledger of a shard without saved rows: each row counts as saved with its initial value. If the rows
// are trained already, set Settings.Full.
func New(s Settings) *Ledger {
	return &Ledger{set: s, saves: s.Saves, full: s.Full, files: newFiles(s.Share)}
}

// Resume returns the ledger of a shard whose parts have just been restored from files, oldest first. layer[t][position]
// is the index of the file that a row came from, or -1 if the row is initial. Resume assumes that files consist of rows
// only. If they have much else, compaction starts earlier.
func Resume(s Settings, parts []*table.Part, of []protocol.SegmentFile, layer [][]int32) *Ledger {
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
			if t < len(layer) && at < len(layer[t]) { // all rows of a whole table are in the file of the first
				from = layer[t][at]
			}
			if from >= 0 {
				l.files.move(r.location(at), location(from+1), r.bytes)
			}
			if from < oldest { // saved the longest time ago, for round
				oldest, l.next = from, cursor{t, at}
			}
		}
	}
	l.files.drop()
	return l
}

// SetSavedValues records that rows of dense tables have changed since they were saved. saved has the saved values by
// table. SetSavedValues must be called directly after Resume.
func (l *Ledger) SetSavedValues(saved []*table.Part) {
	for t, p := range saved {
		if r := l.table(t, p); r.tracksValues {
			r.saved.setAll(p)
		}
	}
}

// Added may be called after a table was added to the shard, while all its rows are initial. Without it the first choice
// computes the initial rows again, which takes longer.
func (l *Ledger) Added(t perdure.TableID, p *table.Part) {
	if r := l.table(int(t), p); l.set.Selector == perdure.SelectPriority && !l.full {
		r.restored(p)
	}
}

// Changed records an update of rows after it was applied: the rows ids, or if ids is nil, count consecutive rows of a
// dense table starting at first. Only the selector used needs it.
func (l *Ledger) Changed(t perdure.TableID, p *table.Part, first perdure.RowID, ids []perdure.RowID, count int) {
	if l.set.Selector == perdure.SelectUsed && count > 0 {
		r := l.table(int(t), p)
		r.meet(p, l.full)
		r.used(p, first, ids, count)
	}
}

// EvictionHook returns the func to call for each row that Evict is about to remove from a table, so that the ledger can
// follow the rows' positions.
func (l *Ledger) EvictionHook(t perdure.TableID, p *table.Part) (gone func(at int)) {
	var r *rows
	return func(at int) {
		if r == nil { // at the first call, all rows are still there
			r = l.table(int(t), p)
			r.meet(p, l.full)
		}
		l.files.leave(*r.location(at), r.bytes)
		r.remove(at)
	}
}

// table returns the state of a table, adding it if necessary.
func (l *Ledger) table(t int, p *table.Part) *rows {
	for len(l.tables) <= t {
		l.tables = append(l.tables, nil)
	}
	if l.tables[t] == nil {
		l.tables[t] = newRows(p, &l.set)
	}
	return l.tables[t]
}

// Close ends the ledger. It no longer observes changes.
func (l *Ledger) Close() {
	for _, r := range l.tables {
		if r != nil && r.tracksValues {
			r.saved.part.Unwatch(&r.saved)
		}
	}
}

// Choice lists the rows of a save.
type Choice struct {
	Runs  [][]table.Run // by table: positions of rows, ascending, without overlap
	Bytes int64         // size of these rows in a snapshot

	units  [][]table.Run // by table: the units of these rows, in the same form
	full   bool
	before cursor
}

// Choose returns the rows of the next save, given all tables of the shard. The budget is Settings.Share of the bytes of
// all stored rows for each save that is due, at most all rows, plus what earlier choices have left over. Several saves
// may be due if the previous one took long. An empty choice need not be saved.
//
// The row that fills the budget may exceed it, because otherwise a row larger than the budget would never be saved. The
// excess is a debt that the next choices pay. The selectors priority and used do not choose rows that equal their saved
// values. A budget that is unused because too few rows have changed is carried over, up to that of one save: after a
// long calm, the budget of many saves would pause training for as long as a save of all rows.
func (l *Ledger) Choose(parts []*table.Part, due int64) *Choice {
	if l.pending != nil {
		panic("scar: Choose called before Written or Unwritten")
	}
	all := l.meet(parts)
	one := l.budget(1, all)
	l.credit = min(l.credit, one) + l.budget(due, all)
	l.credit = max(l.credit, -all) // evicted rows leave no debt

	c := &Choice{before: l.next, full: l.full}
	l.score(parts, l.files.empty())
	l.take(c, parts)
	l.keep(c, parts)

	l.saves++
	l.full = false
	l.credit -= c.Bytes
	l.pending = c
	return c
}

// budget returns the share of a number of bytes that a number of saves may write.
func (l *Ledger) budget(saves, all int64) int64 {
	return max(1, int64(math.Round(min(1, l.set.Share*float64(saves))*float64(all))))
}

// meet adds each stored row, and returns the size of all rows.
func (l *Ledger) meet(parts []*table.Part) (all int64) {
	for t, p := range parts {
		r := l.table(t, p)
		r.meet(p, l.full)
		all += int64(r.units(p)) * r.bytes
	}
	l.files.drop()
	return all
}

// keep records the current values of a choice's rows.
func (l *Ledger) keep(c *Choice, parts []*table.Part) {
	for t, p := range parts {
		l.tables[t].keep(p, c.units[t])
	}
}

// Written records that a choice is on disk, in a file.
func (l *Ledger) Written(c *Choice, f protocol.SegmentFile) {
	l.end(c)
	now := l.files.add(f, c.Bytes)
	for t, units := range c.units {
		r := l.tables[t]
		r.chosen(units, func(of *location) { l.files.move(of, now, r.bytes) })
	}
	l.files.drop()
}

// Unwritten records that a choice is not on disk and never will be. The running checkpoint is unchanged. The distance
// of its rows from their saved values is no longer known, so with priority and used, the next choice takes them first.
func (l *Ledger) Unwritten(c *Choice) {
	l.end(c)
	l.credit += c.Bytes
	l.full, l.next = c.full, c.before
	asks := l.set.Selector == perdure.SelectPriority || l.set.Selector == perdure.SelectUsed
	for t, units := range c.units {
		r := l.tables[t]
		r.hasFailed = r.hasFailed || asks
		r.chosen(units, func(of *location) {
			if asks {
				*of |= saveFailed
			}
		})
	}
}

func (l *Ledger) end(c *Choice) {
	if c == nil || l.pending != c {
		panic("scar: the choice is not in progress")
	}
	l.pending = nil
}

// Files returns the files of the running checkpoint, oldest first. Each file except the newest has the newest save of
// some row. The newest file is kept in any case, because it records how far the shard had come.
func (l *Ledger) Files() []protocol.SegmentFile { return l.files.list() }

package sim

import (
	"fmt"
	"math/bits"
	"sync"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/table"
)

// Lineage follows, where each row is saved by itself, what each row must contain: what the file
// had that it was restored from, and each update since the base with which its shard went on.
// It reads the files that a view names, and holds them against what their rows had when they
// were saved, by the applied vectors that the files say.
type Lineage struct {
	h *History

	mu     sync.Mutex
	shards []lines
	bad    error // the first promise that a file did not keep
}

// lines are a shard's lives: from one loss to the next.
type lines struct {
	epoch  perdure.Epoch
	life   *life
	of     map[born]*life
	newest string         // file that the registry has named
	files  map[int]string // by place in History.ids: the file that had the row last
}

// born says which life of a shard it is: runs that go on from one another count their epochs anew.
type born struct {
	generation perdure.Generation
	epoch      perdure.Epoch
}

// life is what a shard began with.
type life struct {
	rows map[int][]uint64 // by place in History.ids: by slot, the clocks that the row began with
	ebb  map[int][]uint64 // likewise of the Ebb's rows
	torn []uint64         // by slot: what every row lacks at the end since then; nil: nobody has judged it
	base []perdure.Clock  // by slot; nil: it began with the job, or its base is not known yet
	lost int64            // updates that are counted as lost since before
}

// newLineage makes one for the job of a History.
func newLineage(h *History) *Lineage {
	l := &Lineage{h: h, shards: make([]lines, h.job.Shards)}
	for i := range l.shards {
		l.shards[i].life = &life{}
		l.shards[i].of, l.shards[i].files = map[born]*life{}, map[int]string{}
	}
	return l
}

// saved takes over what was recorded, before anybody acts on it.
func (l *Lineage) saved(f *membership.Facts, fs disk.FS) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.named(f, fs); err != nil && l.bad == nil {
		l.bad = err
	}
	v := &f.View
	for i := range v.Shards {
		sv, s := &v.Shards[i], &l.shards[i]
		if sv.Epoch != s.epoch {
			s.epoch = sv.Epoch
			// A coordinator that does not know yet that a lost shard serves again tells of the loss, and of its
			// base, in the next epoch, too: who has the rows begins with no files.
			if sv.Lost && sv.Base == nil {
				if err := l.restored(v, perdure.ShardID(i), fs); err != nil && l.bad == nil {
					l.bad = err
				}
			}
			s.of[born{v.Generation, sv.Epoch}] = s.life
		}
		if sv.Lost && sv.Base != nil && s.life.base == nil {
			s.life.base = sv.Base
			for slot, n := range sv.Base {
				s.life.lost += int64(l.h.count(slot, n))
			}
		}
	}
}

// named judges the files that the registry names: each is there, in full length, as long as it
// is named, and a shard's newest is never older than before. (A file's name says how old it is.)
func (l *Lineage) named(f *membership.Facts, fs disk.FS) error {
	for i, files := range f.Running.Files {
		s := &l.shards[i]
		if len(files) == 0 {
			continue
		}
		newest := files[len(files)-1].File
		if newest < s.newest {
			return violated("shard %d is recorded as saved in %s, after it was in %s", i, newest, s.newest)
		}
		for _, file := range files {
			b, err := fs.ReadFile("checkpoint/" + file.File)
			if err != nil {
				return violated("shard %d is recorded as saved in %s, which cannot be read: %v", i, file.File, err)
			}
			if int64(len(b)) != file.Bytes {
				return violated("shard %d is recorded as saved in %d bytes of %s, which has %d", i, file.Bytes,
					file.File, len(b))
			}
		}
		if newest == s.newest {
			continue
		}
		s.newest = newest
		if err := l.rowsOf(&f.View, perdure.ShardID(i), files, fs); err != nil {
			return err
		}
	}
	return nil
}

// rowsOf judges of which file each row of a shard is: of none that is older than before.
func (l *Lineage) rowsOf(v *words.View, shard perdure.ShardID, saved []words.SavedFile, fs disk.FS) error {
	s := &l.shards[shard]
	parts, layers, history, err := l.read(v, shard, saved, fs)
	if err != nil {
		return err
	}
	if err := l.saves(v, shard, parts, layers.Segments[len(saved)-1]); err != nil {
		return err
	}
	part, of := parts[history], layers.Of[history]
	unit := ""
	for row, id := range l.h.ids {
		if l.h.shard(row) != shard {
			continue
		}
		file := ""
		if at := l.at(part, id); at >= 0 && of[at] >= 0 {
			file = saved[of[at]].File
		}
		if file < s.files[row] {
			return violated("row %d of shard %d is recorded as saved in %q, after it was in %s", row, shard, file,
				s.files[row])
		}
		s.files[row] = file
		if row == 0 {
			unit = file
		} else if l.h.spec.Whole && file != unit {
			return violated("row %d of a whole table is saved in %q, and row 0 in %q", row, file, unit)
		}
	}
	return nil
}

// read lays a shard's files over its initial rows, and returns the parts of all tables, of which file
// each row is, and which of the tables is the History's.
func (l *Lineage) read(v *words.View, shard perdure.ShardID, saved []words.SavedFile, fs disk.FS) (
	parts []*table.Part, layers *checkpoint.Layers, history int, err error,
) {
	var files []checkpoint.FileRef
	history = -1
	for t, spec := range v.Tables {
		first, rows := placement.Range(&spec, l.h.job.Shards, shard)
		parts = append(parts, table.Blank(spec, perdure.TableID(t), l.h.job.Seed, first, rows))
		if spec.Name == l.h.spec.Name {
			history = t
		}
	}
	for _, f := range saved {
		files = append(files, checkpoint.FileRef(f))
	}
	layers, err = checkpoint.RestoreRows(store.Folder(fs, "checkpoint"), l.h.job.ID, shard, files, parts)
	if err != nil {
		return nil, nil, 0, violated("shard %d has files that cannot be read: %v", shard, err)
	}
	return parts, layers, history, nil
}

// begun are the clocks with which the Ebb's rows come back.
func (l *Lineage) begun(parts []*table.Part) (rows map[int][]uint64, err error) {
	e, rows := l.h.by.ebb, map[int][]uint64{}
	for _, part := range parts {
		if e == nil || part.Spec.Name != e.Spec.Name {
			continue
		}
		for row, id := range e.ids {
			if l.at(part, id) < 0 {
				continue
			}
			values := make([]float32, e.Spec.Dim)
			if err := part.ReadRows(values, id, []perdure.RowID{id}, 1); err != nil {
				return nil, err
			}
			what := fmt.Sprintf("row %d of the table that evicts as last saved", row)
			if rows[row], err = e.sets(what, row, values); err != nil {
				return nil, err
			}
		}
	}
	return rows, nil
}

// has is, after final, which of a slot's clocks one of the Ebb's rows may have.
func (l *Lineage) has(row, slot int, shard perdure.ShardID) (set uint64, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.shards[shard].life
	if f.torn == nil {
		return 0, false
	}
	if began := f.ebb[row]; began != nil {
		set = began[slot]
	}
	return (set | f.since(l.h, slot, l.h.job.Clocks)) &^ f.torn[slot], true
}

// broken returns the first promise that a file did not keep.
func (l *Lineage) broken() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bad
}

// restored begins a shard's next life, with what the files have that the view names.
func (l *Lineage) restored(v *words.View, shard perdure.ShardID, fs disk.FS) error {
	s, next := &l.shards[shard], &life{rows: map[int][]uint64{}}
	s.life = next
	saved := v.Shards[shard].Saved
	if len(saved) == 0 {
		return nil
	}
	parts, layers, history, err := l.read(v, shard, saved, fs)
	if err != nil {
		return err
	}
	if next.ebb, err = l.begun(parts); err != nil {
		return err
	}
	part, of, segments := parts[history], layers.Of[history], layers.Segments
	newest := segments[len(segments)-1]
	next.lost -= int64(newest.Seq)
	l.h.by.bases.has(shard, newest.Applied)
	values := make([]float32, l.h.spec.Dim)
	for row, id := range l.h.ids {
		if l.h.shard(row) != shard {
			continue
		}
		at := l.at(part, id)
		if err := part.ReadRows(values, id, []perdure.RowID{id}, 1); err != nil {
			return err
		}
		sets := make([]uint64, l.h.slots)
		for p := range sets {
			what := fmt.Sprintf("row %d of shard %d as last saved: slot %d", row, shard, p)
			if sets[p], err = clocksIn(what, values[p*columns:]); err != nil {
				return err
			}
			if at >= 0 && of[at] >= 0 {
				seg := segments[of[at]]
				// a process that was decided for may not have begun
				succeeded := l.h.lives[p] > 1 || l.h.succeeded[p] || p < len(v.Slots) && v.Slots[p].Incarnation > 1
				if err := l.judge(s, row, p, what, seg, sets[p], succeeded); err != nil {
					return err
				}
			} else if sets[p] != 0 {
				return violated("%s has the clocks %b, and was never saved", what, sets[p])
			}
		}
		next.rows[row] = sets
	}
	return nil
}

// at is a row's position in a part; -1: it is not stored.
func (l *Lineage) at(p *table.Part, id perdure.RowID) int {
	if !p.Spec.Sparse {
		return int(id - p.First)
	}
	for i, have := range p.IDs(0, p.Stored()) {
		if have == id {
			return i
		}
	}
	return -1
}

// judge judges what a file has of a slot's clocks in a row.
func (l *Lineage) judge(s *lines, row, p int, what string, seg *checkpoint.Segment, set uint64,
	succeeded bool,
) error {
	had, known := s.of[born{seg.Generation, seg.Epoch}]
	if !known {
		return violated("%s is of a file of epoch %d, which never was", what, seg.Epoch)
	}
	n := perdure.Clock(0)
	if p < len(seg.Applied) {
		n = seg.Applied[p]
	}
	if most := had.upTo(l.h, row, p, n); set&^most != 0 {
		return violated("%s has the clocks %b, at most %b may be there", what, set, most)
	} else if l.h.job.Consistency.TwoStep() && succeeded {
		return nil // a clock of a dead process may count, and be lost here
	} else if most != set {
		return violated("%s has the clocks %b of %b that the file says", what, set, most)
	}
	return nil
}

// upTo is the set of a slot's clocks below n that a row of this life has.
func (f *life) upTo(h *History, row, p int, n perdure.Clock) (set uint64) {
	if f.rows[row] != nil {
		set = f.rows[row][p]
	}
	return set | f.since(h, p, n)
}

// since is the set of a slot's clocks below n that came after the base.
func (f *life) since(h *History, p int, n perdure.Clock) uint64 {
	from := perdure.Clock(0)
	if p < len(f.base) {
		from = f.base[p]
	}
	return h.clockSet(p, below(n)&^below(from))
}

// began is with how many of each slot's clocks the life of a shard began that had an epoch; ended: it has had
// another life since.
func (l *Lineage) began(shard perdure.ShardID, at born) (base []perdure.Clock, ended bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &l.shards[shard]
	if of := s.of[at]; of != nil {
		base = of.base
	}
	return base, s.of[at] != s.life
}

// final judges a shard's rows as they were when the job had come to a clock: by row and slot, the clocks
// that it has.
func (l *Lineage) final(shard perdure.ShardID, rows map[int][]uint64, until perdure.Clock, lost int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.bad != nil {
		return l.bad
	}
	last := l.shards[shard].life
	var torn []uint64
	for row, sets := range rows {
		lacks := make([]uint64, len(sets))
		n := int64(0)
		for p, set := range sets {
			must := last.upTo(l.h, row, p, until)
			if set&^must != 0 {
				return violated("at the end row %d of shard %d has of slot %d the clocks %b, at most %b may be there",
					row, shard, p, set, must)
			}
			lacks[p] = must &^ set
			n += int64(bits.OnesCount64(lacks[p]))
		}
		if torn == nil {
			torn = lacks
		}
		for p := range lacks {
			if lacks[p] != torn[p] {
				return violated("at the end row %d of shard %d lacks of slot %d the clocks %b since it was restored, "+
					"another row lacks %b", row, shard, p, lacks[p], torn[p])
			}
		}
		if n != lost-last.lost {
			return violated("at the end row %d of shard %d lacks %d updates since it was restored, the registry "+
				"counts %d as lost since then, and %d before", row, shard, n, lost-last.lost, last.lost)
		}
	}
	last.torn = torn
	return nil
}

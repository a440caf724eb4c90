package sim

import (
	"fmt"
	"math/bits"
	"sync"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/table"
)

// RowLineage tracks the expected contents of each row in jobs that save each row separately: the row in the file that
// it was restored from, plus every update since the base from which its shard resumed. It reads the files that a view
// names. It compares them with the rows' expected contents at the applied vectors recorded in the files.
type RowLineage struct {
	h *History

	mu       sync.Mutex
	shards   []shardLineage
	firstErr error // first violation found
}

// shardLineage tracks the lives of one shard. A life lasts from one loss of the shard to the next.
type shardLineage struct {
	epoch  perdure.Epoch
	life   *life
	lives  map[lifeID]*life
	newest string         // newest file recorded in the registry
	files  map[int]string // by index in History.ids: the newest file that contains the row
}

// lifeID identifies a life of a shard. Epochs alone do not: each resumed run starts numbering them again.
type lifeID struct {
	generation perdure.Generation
	epoch      perdure.Epoch
}

// life is the state with which a shard started or was restored.
type life struct {
	rows         map[int][]uint64 // by index in History.ids, then slot: clocks that the row began with
	evictingRows map[int][]uint64 // the same for the evicting table's rows
	missing      []uint64         // by slot: clocks that every row lacks at the end; nil: not checked
	base         []perdure.Clock  // by slot; nil: initial life, or base still unknown
	lost         int64            // updates counted as lost before this life
}

// newLineage returns a RowLineage for the job of a History.
func newLineage(h *History) *RowLineage {
	l := &RowLineage{h: h, shards: make([]shardLineage, h.job.Shards)}
	for i := range l.shards {
		l.shards[i].life = &life{}
		l.shards[i].lives, l.shards[i].files = map[lifeID]*life{}, map[int]string{}
	}
	return l
}

// processSaved processes recorded state before any process acts on it.
func (l *RowLineage) processSaved(f *membership.JobRecord, fs disk.FS) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.checkFiles(f, fs); err != nil && l.firstErr == nil {
		l.firstErr = err
	}
	v := &f.View
	for i := range v.Shards {
		sv, s := &v.Shards[i], &l.shards[i]
		if sv.Epoch != s.epoch {
			s.epoch = sv.Epoch
			// A coordinator that does not yet know that a lost shard serves again repeats the loss and its base in the
			// next epoch. Only a restore without a base starts from files.
			if sv.Lost && sv.Base == nil {
				if err := l.startLife(v, perdure.ShardID(i), fs); err != nil && l.firstErr == nil {
					l.firstErr = err
				}
			}
			s.lives[lifeID{v.Generation, sv.Epoch}] = s.life
		}
		if sv.Lost && sv.Base != nil && s.life.base == nil {
			s.life.base = sv.Base
			for slot, n := range sv.Base {
				s.life.lost += int64(l.h.count(slot, n))
			}
		}
	}
}

// checkFiles checks the files that the registry names. Each must exist in full length while it is named, and a shard's
// newest file must never be older than before. (File names sort by age.)
func (l *RowLineage) checkFiles(f *membership.JobRecord, fs disk.FS) error {
	for i, files := range f.Running.Files {
		s := &l.shards[i]
		if len(files) == 0 {
			continue
		}
		newest := files[len(files)-1].File
		if newest < s.newest {
			return violated("shard %d is recorded as saved in %s after the newer %s", i, newest, s.newest)
		}
		for _, file := range files {
			b, err := fs.ReadFile("checkpoint/" + file.File)
			if err != nil {
				return violated("shard %d is recorded as saved in %s, which is unreadable: %v", i, file.File, err)
			}
			if int64(len(b)) != file.Bytes {
				return violated("shard %d is recorded as saved in %d bytes of %s, but the file has %d", i, file.Bytes,
					file.File, len(b))
			}
		}
		if newest == s.newest {
			continue
		}
		s.newest = newest
		if err := l.checkRowFiles(&f.View, perdure.ShardID(i), files, fs); err != nil {
			return err
		}
	}
	return nil
}

// checkRowFiles checks that no row of a shard is taken from an older file than before.
func (l *RowLineage) checkRowFiles(
	v *protocol.View,
	shard perdure.ShardID,
	saved []protocol.SavedFile,
	fs disk.FS,
) error {
	s := &l.shards[shard]
	parts, layers, history, err := l.read(v, shard, saved, fs)
	if err != nil {
		return err
	}
	if err := l.checkEvictingRows(v, shard, parts, layers.Segments[len(saved)-1]); err != nil {
		return err
	}
	part, of := parts[history], layers.FileIndex[history]
	unit := ""
	for row, id := range l.h.ids {
		if l.h.shard(row) != shard {
			continue
		}
		file := ""
		if at := l.positionOf(part, id); at >= 0 && of[at] >= 0 {
			file = saved[of[at]].File
		}
		if file < s.files[row] {
			return violated("row %d of shard %d is recorded as saved in %q after the newer %s", row, shard, file,
				s.files[row])
		}
		s.files[row] = file
		if row == 0 {
			unit = file
		} else if l.h.spec.Whole && file != unit {
			return violated("row %d of a whole table is saved in %q, but row 0 in %q", row, file, unit)
		}
	}
	return nil
}

// read applies a shard's files to its initial rows. It returns the parts of all tables, the file that each row came
// from, and the index of the History's table.
func (l *RowLineage) read(v *protocol.View, shard perdure.ShardID, saved []protocol.SavedFile, fs disk.FS) (
	parts []*table.Part, layers *checkpoint.RowOrigins, history int, err error,
) {
	var files []checkpoint.FileRef
	history = -1
	for t, spec := range v.Tables {
		first, rows := placement.Range(&spec, l.h.job.Shards, shard)
		parts = append(parts, table.NewUninitialized(spec, perdure.TableID(t), l.h.job.Seed, first, rows))
		if spec.Name == l.h.spec.Name {
			history = t
		}
	}
	for _, f := range saved {
		files = append(files, checkpoint.FileRef(f))
	}
	layers, err = checkpoint.RestoreRows(store.NewDir(fs, "checkpoint"), l.h.job.ID, shard, files, parts)
	if err != nil {
		return nil, nil, 0, violated("shard %d has unreadable files: %v", shard, err)
	}
	return parts, layers, history, nil
}

// restoredClocks returns the clocks that the evicting table's restored rows contain.
func (l *RowLineage) restoredClocks(parts []*table.Part) (rows map[int][]uint64, err error) {
	e, rows := l.h.aux.evicting, map[int][]uint64{}
	for _, part := range parts {
		if e == nil || part.Spec.Name != e.Spec.Name {
			continue
		}
		for row, id := range e.ids {
			if l.positionOf(part, id) < 0 {
				continue
			}
			values := make([]float32, e.Spec.Dim)
			if err := part.ReadRows(values, id, []perdure.RowID{id}, 1); err != nil {
				return nil, err
			}
			what := fmt.Sprintf("row %d of the table that evicts as last saved", row)
			if rows[row], err = e.clockSets(what, row, values); err != nil {
				return nil, err
			}
		}
	}
	return rows, nil
}

// contains returns which of a slot's clocks a row of the evicting table may contain. It is valid after final.
func (l *RowLineage) contains(row, slot int, shard perdure.ShardID) (set uint64, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.shards[shard].life
	if f.missing == nil {
		return 0, false
	}
	if began := f.evictingRows[row]; began != nil {
		set = began[slot]
	}
	return (set | f.clocksSinceBase(l.h, slot, l.h.job.Clocks)) &^ f.missing[slot], true
}

// violation returns the first violation found.
func (l *RowLineage) violation() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.firstErr
}

// startLife starts a shard's next life from the files that the view names.
func (l *RowLineage) startLife(v *protocol.View, shard perdure.ShardID, fs disk.FS) error {
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
	if next.evictingRows, err = l.restoredClocks(parts); err != nil {
		return err
	}
	part, of, segments := parts[history], layers.FileIndex[history], layers.Segments
	newest := segments[len(segments)-1]
	next.lost -= int64(newest.Seq)
	l.h.aux.bases.restored(shard, newest.Applied)
	values := make([]float32, l.h.spec.Dim)
	for row, id := range l.h.ids {
		if l.h.shard(row) != shard {
			continue
		}
		at := l.positionOf(part, id)
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
				// a replacement that was decided on may not have started yet
				succeeded := l.h.processes[p] > 1 || l.h.succeeded[p] || p < len(v.Slots) && v.Slots[p].Incarnation > 1
				if err := l.checkClocks(s, row, p, what, seg, sets[p], succeeded); err != nil {
					return err
				}
			} else if sets[p] != 0 {
				return violated("%s has the clocks %b, but was never saved", what, sets[p])
			}
		}
		next.rows[row] = sets
	}
	return nil
}

// positionOf returns a row's position in a part, or -1 if it is not stored.
func (l *RowLineage) positionOf(p *table.Part, id perdure.RowID) int {
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

// checkClocks checks a slot's clocks in a row of a file.
func (l *RowLineage) checkClocks(s *shardLineage, row, p int, what string, seg *checkpoint.Segment, set uint64,
	succeeded bool,
) error {
	had, known := s.lives[lifeID{seg.Generation, seg.Epoch}]
	if !known {
		return violated("%s comes from a file of epoch %d, which never existed", what, seg.Epoch)
	}
	n := perdure.Clock(0)
	if p < len(seg.Applied) {
		n = seg.Applied[p]
	}
	if most := had.clocksBelow(l.h, row, p, n); set&^most != 0 {
		return violated("%s has the clocks %b, want at most %b", what, set, most)
	} else if l.h.ticks() && succeeded {
		return nil // a clock of a dead process may count as applied although it is lost here
	} else if most != set {
		return violated("%s has the clocks %b, but its file claims %b", what, set, most)
	}
	return nil
}

// clocksBelow returns the set of a slot's clocks below n that a row of this life contains.
func (f *life) clocksBelow(h *History, row, p int, n perdure.Clock) (set uint64) {
	if f.rows[row] != nil {
		set = f.rows[row][p]
	}
	return set | f.clocksSinceBase(h, p, n)
}

// clocksSinceBase returns the set of a slot's clocks below n that were applied after the base.
func (f *life) clocksSinceBase(h *History, p int, n perdure.Clock) uint64 {
	from := perdure.Clock(0)
	if p < len(f.base) {
		from = f.base[p]
	}
	return h.clockSet(p, below(n)&^below(from))
}

// baseOf returns the base of the shard's life that included an epoch. ended reports whether the shard has had another
// life since.
func (l *RowLineage) baseOf(shard perdure.ShardID, at lifeID) (base []perdure.Clock, ended bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &l.shards[shard]
	if of := s.lives[at]; of != nil {
		base = of.base
	}
	return base, s.lives[at] != s.life
}

// final checks a shard's rows as they were when the job reached a clock. rows holds, by row and slot, the clocks that
// the row contains.
func (l *RowLineage) final(shard perdure.ShardID, rows map[int][]uint64, until perdure.Clock, lost int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.firstErr != nil {
		return l.firstErr
	}
	last := l.shards[shard].life
	var torn []uint64
	for row, sets := range rows {
		lacks := make([]uint64, len(sets))
		n := int64(0)
		for p, set := range sets {
			must := last.clocksBelow(l.h, row, p, until)
			if set&^must != 0 {
				return violated("at the end row %d of shard %d: slot %d has the clocks %b, want at most %b",
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
				return violated("at the end row %d of shard %d lacks slot %d's clocks %b since its restore, "+
					"but another row lacks %b", row, shard, p, lacks[p], torn[p])
			}
		}
		if n != lost-last.lost {
			return violated("at the end row %d of shard %d lacks %d updates since its restore, but the registry "+
				"counts %d as lost since then and %d before", row, shard, n, lost-last.lost, last.lost)
		}
	}
	last.missing = torn
	return nil
}

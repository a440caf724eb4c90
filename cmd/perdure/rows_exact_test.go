package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/run/localrun"
)

// setLife describes the expected rows of a shard at the job's end: the files that it was restored from, and every
// update since its base.
type setLife struct {
	base   []perdure.Clock // by slot; nil: the shard exists since the job's start
	parts  []*table.Part   // as restored; nil: nothing was saved, and all rows were initial
	seq    uint64          // number of updates in the newest file
	torn   []float32       // what all of its rows also lack: half of a two-step clock whose worker has died
	judged bool
}

// lifeOf reads what a shard last started from, after the job's end. It returns nil if the shard has moved since,
// because then its initial rows are no longer known.
func lifeOf(t *testing.T, j *localrun.Run, v *protocol.View, shard perdure.ShardID) *setLife {
	t.Helper()
	sv := &v.Shards[shard]
	switch {
	case sv.Epoch == 1:
		return &setLife{}
	case !sv.Lost || sv.Base == nil || len(sv.Saved) == 0 && sv.Epoch > 2:
		return nil // or it moved while it was notified of the loss, and started without files
	case len(sv.Saved) == 0:
		return &setLife{base: sv.Base}
	}
	l, files := &setLife{base: sv.Base}, []checkpoint.FileRef(nil)
	for _, f := range sv.Saved {
		files = append(files, checkpoint.FileRef(f))
	}
	for i, spec := range v.Tables {
		first, rows := placement.Range(&spec, len(v.Shards), shard)
		l.parts = append(l.parts, table.NewUninitialized(spec, perdure.TableID(i), j.Settings().Job.Seed, first, rows))
	}
	dir := store.NewDir(disk.OS(), filepath.ToSlash(filepath.Join(j.Dir().Path(), "checkpoint")))
	layers, err := checkpoint.RestoreRows(dir, j.Settings().Job.ID, shard, files, l.parts)
	must(t, err)
	l.seq = layers.Segments[len(layers.Segments)-1].Seq
	return l
}

// restored returns a row as it was restored.
func (l *setLife) restored(name string, id perdure.RowID) ([]float32, error) {
	row := make([]float32, setDim)
	for _, p := range l.parts {
		if p.Spec.Name == name {
			return row, p.ReadRows(row, id, []perdure.RowID{id}, 1)
		}
	}
	return row, nil
}

// judge compares a row with its restored value plus all updates since the base.
func (l *setLife) judge(name string, id perdure.RowID, row []float32, twoStep bool) error {
	want, err := l.restored(name, id)
	if err != nil {
		return err
	}
	for slot := range sumsSlots {
		from := perdure.Clock(0)
		if l.base != nil {
			from = l.base[slot]
		}
		for clock := from; clock < sumsClocks; clock++ {
			want[3*slot]++
			want[3*slot+1+int(clock/clocksInValue)] += float32(int(1) << (clock % clocksInValue))
		}
	}
	missing := make([]float32, setDim)
	for i := range missing {
		missing[i] = want[i] - row[i]
	}
	if !l.judged {
		l.torn, l.judged = missing, true
	}
	if whole := slices.Max(missing) == 0 &&
		slices.Min(missing) == 0; !whole && !twoStep ||
		!slices.Equal(missing, l.torn) {
		return fmt.Errorf("the row is %v; restored and with all updates since clocks %v it is %v; another row lacks %v",
			row, l.base, want, l.torn)
	}
	return nil
}

// lost returns how many updates all rows of the shard lack.
func (l *setLife) lost() (n int64) {
	for _, from := range l.base {
		n += int64(from)
	}
	for slot := range sumsSlots {
		n += int64(l.torn[3*slot])
	}
	return n - int64(l.seq)
}

// exactSets compares each row of the shards whose initial rows are known with those rows plus all later updates. If
// they are known for all shards, it also checks the reported loss.
func exactSets(t *testing.T, j *localrun.Run, v *protocol.View, updatesLost int64,
	each func(judge func(name string, shard perdure.ShardID, id perdure.RowID, row []float32)),
) {
	t.Helper()
	lives, exact := make([]*setLife, len(v.Shards)), 0
	for shard := range lives {
		if lives[shard] = lifeOf(t, j, v, perdure.ShardID(shard)); lives[shard] != nil {
			exact++
		}
	}
	twoStep := j.Settings().Job.TwoStep(v.Tables)
	each(func(name string, shard perdure.ShardID, id perdure.RowID, row []float32) {
		if l := lives[shard]; l != nil {
			if err := l.judge(name, id, row, twoStep); err != nil {
				t.Errorf("row %d of table %s on shard %d: %v", id, name, shard, err)
			}
		}
	})
	t.Logf("in %d of %d shards each row consists of its restored value and every later update", exact, len(v.Shards))
	if exact < len(v.Shards) || t.Failed() {
		return
	}
	lost := int64(0)
	for _, l := range lives {
		if l.judged {
			lost += l.lost()
		} else if l.base != nil {
			return // the shard has no row of these tables
		}
	}
	if lost != updatesLost {
		t.Errorf("the shards' initial rows imply %d lost updates, but the job reports %d", lost, updatesLost)
	}
}

// TestSetLife: judge rejects a row that lacks an update since the base or has one more. It accepts half of a two-step
// clock that all rows lack, and counts it as lost.
func TestSetLife(t *testing.T) {
	t.Parallel()
	base := slices.Repeat([]perdure.Clock{5}, sumsSlots)
	full := func(from perdure.Clock) []float32 {
		row := make([]float32, setDim)
		for slot := range sumsSlots {
			for clock := from; clock < sumsClocks; clock++ {
				row[3*slot]++
				row[3*slot+1+int(clock/clocksInValue)] += float32(int(1) << (clock % clocksInValue))
			}
		}
		return row
	}
	missing := full(5)
	missing[0], missing[1] = missing[0]-1, missing[1]-1<<7
	for i, c := range []struct {
		rows    [][]float32
		twoStep bool
		good    bool
		lost    int64
	}{
		{[][]float32{full(5), full(5)}, false, true, 5 * sumsSlots},
		{[][]float32{full(4)}, false, false, 0},
		{[][]float32{full(6)}, false, false, 0},
		{[][]float32{full(5), missing}, false, false, 0},
		{[][]float32{full(5), missing}, true, false, 0},
		{[][]float32{missing, missing}, true, true, 5*sumsSlots + 1},
	} {
		l, good := &setLife{base: base}, true
		for _, row := range c.rows {
			good = l.judge("sets", 0, row, c.twoStep) == nil && good
		}
		if good != c.good || good && l.lost() != c.lost {
			t.Errorf("case %d: good %t, %d updates lost", i, good, l.lost())
		}
	}
}

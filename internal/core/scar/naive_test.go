package scar

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/table"
)

var (
	allSelectors = []perdure.Selector{
		perdure.SelectPriority, perdure.SelectRound, perdure.SelectRandom, perdure.SelectUsed,
	}
	allShares = []float64{1, 1.0 / 2, 1.0 / 8, 1.0 / 100, 0.3}
	specs     = []perdure.TableSpec{
		{
			Name: "a", Rows: 30, Dim: 3, Rule: perdure.Rule{Kind: perdure.RuleAdd},
			NonFinite: perdure.AllowNonFinite,
		},
		{
			Name: "b", Sparse: true, Dim: 5, Evict: 8, Init: perdure.Init{Kind: perdure.InitUniform, Scale: 1},
			Rule: perdure.Rule{Kind: perdure.RuleMomentum, Rate: 1, Momentum: 0.5},
		},
		{
			Name: "c", Rows: 9, Dim: 17, Rule: perdure.Rule{Kind: perdure.RuleAdam, Rate: 0.1}.WithDefaults(),
			Init: perdure.Init{Kind: perdure.InitNormal, Scale: 1},
		},
		{Name: "d", Sparse: true, Dim: 1, Rule: perdure.Rule{Kind: perdure.RuleSGD, Rate: 0.25}},
		{Name: "e", Rows: 20, Dim: 4, Rule: perdure.Rule{Kind: perdure.RuleAdd}, Distance: perdure.DistanceTV},
		{
			Name: "f", Rows: 40, Dim: 7, Whole: true, Rule: perdure.Rule{Kind: perdure.RuleAdd},
			NonFinite: perdure.AllowNonFinite,
		},
		{
			Name: "g", Rows: 9, Dim: 3, Whole: true, Rule: perdure.Rule{Kind: perdure.RuleAdd},
			Distance: perdure.DistanceTV, Init: perdure.Init{Kind: perdure.InitUniform, Scale: 1},
		},
		{Name: "h", Rows: 20, Dim: 4, Rule: perdure.Rule{Kind: perdure.RuleSet}, Distance: perdure.DistanceLabels},
	}
)

const (
	firstRow = 1000
	sparseID = 60 // IDs of sparse rows are below this
)

// world is a shard with its ledger, the ledger's model, and the files on disk.
type world struct {
	t      testing.TB
	r      *rand.Rand
	set    Settings
	parts  []*table.Part
	ledger *Ledger
	model  *model
	disk   map[string]map[rowKey][]float32
	clock  perdure.Clock
	made   int // number of files
	choice *Choice
	taken  []present
	gone   int64 // bytes of rows evicted since the choice
}

func newWorld(t testing.TB, seed uint64, by perdure.Selector, share float64) *world {
	w := &world{t: t, r: rand.New(rand.NewPCG(seed, 1)), disk: map[string]map[rowKey][]float32{}}
	w.set = Settings{
		Selector: by, Share: share, Seed: seed, Shard: perdure.ShardID(w.r.IntN(3)), Full: w.r.IntN(8) == 0,
		Saves: uint64(w.r.IntN(3)),
	}
	w.ledger, w.model = New(w.set), newModel(w.set)
	for i := range 1 + w.r.IntN(len(specs)) {
		w.addTable(i)
	}
	return w
}

func (w *world) addTable(i int) {
	spec := specs[i]
	p := table.New(spec, perdure.TableID(i), w.set.Seed, firstRow, int(spec.Rows))
	w.parts = append(w.parts, p)
	if w.r.IntN(2) == 0 {
		w.ledger.Added(perdure.TableID(i), p)
	}
}

// update changes some rows of a table, some of them by 0.
func (w *world) update() {
	t := w.r.IntN(len(w.parts))
	p := w.parts[t]
	var ids []perdure.RowID
	first, count := perdure.RowID(0), 1+w.r.IntN(6)
	from, n := perdure.RowID(0), sparseID
	if !p.Spec.Sparse {
		from, n = p.First, p.Rows
	}
	if consecutive := !p.Spec.Sparse && w.r.IntN(3) == 0; consecutive {
		first = from + perdure.RowID(w.r.IntN(n-count+1))
	} else {
		for range count {
			ids = append(ids, from+perdure.RowID(w.r.IntN(1+w.r.IntN(n))))
		}
	}
	delta := make([]float32, count*p.Spec.Dim)
	if w.r.IntN(6) > 0 {
		for i := range delta {
			delta[i] = float32(w.r.IntN(9)-4) / 4
		}
	}
	if p.Spec.NonFinite == perdure.AllowNonFinite && w.r.IntN(20) == 0 {
		delta[w.r.IntN(len(delta))] = []float32{float32(math.NaN()), float32(math.Inf(1)), 1e38}[w.r.IntN(3)]
	}
	if err := p.ApplyRows(first, ids, count, delta, w.clock); err != nil {
		w.t.Fatal(err)
	}
	w.ledger.Changed(perdure.TableID(t), p, first, ids, count)
	for i := range count {
		id := first + perdure.RowID(i)
		if ids != nil {
			id = ids[i]
		}
		if p.Spec.Whole {
			id = p.First
		}
		w.model.row(rowKey{t, id}, p).count++
	}
}

// tick lets clocks pass, which evicts rows.
func (w *world) tick() {
	w.clock += perdure.Clock(w.r.IntN(4))
	for t, p := range w.parts {
		gone := w.ledger.EvictionHook(perdure.TableID(t), p)
		p.Evict(w.clock, func(id perdure.RowID, at int) {
			gone(at)
			w.gone += int64(p.RowBytes())
			delete(w.model.rows, rowKey{t, id})
		})
	}
}

func (w *world) choose() {
	w.gone = 0
	saves := 1 + max(0, w.r.Int64N(8)-4) // sometimes several are due
	w.choice = w.ledger.Choose(w.parts, saves)
	w.taken = slices.Clone(w.model.choose(w.parts, saves))
	var got, want []rowKey
	total, due := w.choice.Bytes, int64(0)
	for t, runs := range w.choice.Runs {
		end := -1
		for _, run := range runs {
			if run.First <= end || run.Rows < 1 {
				w.t.Fatalf("runs %v", runs) // neighbors must be one run
			}
			end = run.First + run.Rows
			for at := run.First; at < end; at += unitRows(w.parts[t]) {
				got = append(got, rowKey{t, idAt(w.parts[t], at)})
			}
			total -= int64(run.Rows * w.parts[t].RowBytes())
		}
	}
	for _, r := range w.taken {
		want = append(want, r.rowKey)
		due += r.bytes
	}
	sortKeys(got)
	sortKeys(want)
	if !slices.Equal(got, want) || total != 0 || w.choice.Bytes != due {
		w.t.Fatalf("chosen:\n%v, %d bytes; want:\n%v, %d", got, w.choice.Bytes, want, due)
	}
	if w.ledger.credit != w.model.credit {
		w.t.Fatalf("credit %d, want %d", w.ledger.credit, w.model.credit)
	}
	w.compare()
}

func sortKeys(k []rowKey) {
	slices.SortFunc(k, func(a, b rowKey) int {
		if a.table != b.table {
			return a.table - b.table
		}
		return int(a.id) - int(b.id)
	})
}

func (w *world) end() {
	if w.r.IntN(5) == 0 {
		w.ledger.Unwritten(w.choice)
		w.model.unwritten()
		w.compare()
		return
	}
	w.made++
	f := protocol.SegmentFile{File: fmt.Sprint(w.made), Bytes: w.choice.Bytes + 100}
	w.disk[f.File] = map[rowKey][]float32{}
	for _, r := range w.taken {
		w.disk[f.File][r.rowKey] = r.values
	}
	w.ledger.Written(w.choice, f)
	w.model.written(f)
	w.compare()
	w.bounds()
	w.overlaid()
}

// compare compares the ledger's files with the model's.
func (w *world) compare() {
	var want []protocol.SegmentFile
	for _, f := range w.model.files {
		want = append(want, f.SegmentFile)
	}
	if got := w.ledger.Files(); !reflect.DeepEqual(got, want) {
		w.t.Fatalf("files %v, want %v", got, want)
	}
	for _, f := range w.model.files {
		live := int64(0)
		for k, r := range w.model.rows {
			if r.file == f.number {
				live += int64(unitRows(w.parts[k.table]) * w.parts[k.table].RowBytes())
			}
		}
		for _, g := range w.ledger.files.slots {
			if g.number > 0 && g.File == f.File && (g.live != live || g.bytes != f.bytes) {
				w.t.Fatalf("file %s has %d of %d bytes live, want %d of %d", f.File, g.live, g.bytes, live,
					f.bytes)
			}
		}
	}
}

// bounds checks the size of all files after a save. They may have at most three times the bytes that were live when the
// save's rows were chosen, plus the bytes of this save.
func (w *world) bounds() {
	bytes, live := int64(0), int64(0)
	files := w.ledger.files.order()
	for _, i := range files {
		bytes += w.ledger.files.slots[i].bytes
		live += w.ledger.files.slots[i].live
	}
	if bytes > 3*(live+w.gone)+w.choice.Bytes {
		w.t.Fatalf("files of %d bytes, %d of them live, after a save of %d", bytes, live, w.choice.Bytes)
	}
	if len(files) > w.ledger.files.maxFiles {
		w.t.Fatalf("%d files", len(files))
	}
}

// overlaid returns the rows as a restart would read them from disk: each row from the newest file that contains it. It
// fails the test unless these include every row that the model considers saved, with the values of the row's last save.
func (w *world) overlaid() map[rowKey][]float32 {
	rows := map[rowKey][]float32{}
	for _, f := range w.ledger.Files() {
		maps.Copy(rows, w.disk[f.File])
	}
	for k, r := range w.model.rows {
		if r.file == 0 {
			continue
		}
		if got, ok := rows[k]; !ok || !slices.Equal(bitsOf(got), bitsOf(r.disk)) {
			w.t.Fatalf("row %v is %v on disk (%v), but was last saved as %v", k, got, ok, r.disk)
		}
	}
	return rows
}

// restore rebuilds the parts from the files, and continues from them.
func (w *world) restore() {
	files := w.ledger.Files()
	rows := w.overlaid()
	from := map[rowKey]int32{}
	for i, f := range files {
		for k := range w.disk[f.File] {
			from[k] = int32(i)
		}
	}
	keys := slices.Collect(maps.Keys(rows))
	sortKeys(keys)
	w.r.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	layer := make([][]int32, len(w.parts))
	for t, old := range w.parts {
		var here []rowKey
		for _, k := range keys {
			if k.table == t {
				here = append(here, k)
			}
		}
		p := table.New(old.Spec, perdure.TableID(t), w.set.Seed, old.First, old.Rows)
		if old.Spec.Sparse {
			p = table.NewUninitialized(old.Spec, perdure.TableID(t), w.set.Seed, 0, len(here))
			at := 0
			for _, piece := range p.Image().IDs {
				for i := range piece {
					piece[i] = here[at].id
					at++
				}
			}
			for _, piece := range p.Image().Touched {
				for i := range piece {
					piece[i] = uint32(w.clock)
				}
			}
			if err := p.FinishRestore(); err != nil {
				w.t.Fatal(err)
			}
		}
		for at, n := 0, unitRows(p); at < p.Stored(); at += n {
			k, file := rowKey{t, idAt(p, at)}, int32(-1)
			if v := rows[k]; v != nil {
				file = from[k]
				copy(p.Values(at, n), v)
			}
			layer[t] = append(layer[t], slices.Repeat([]int32{file}, n)...)
		}
		w.parts[t] = p
	}
	w.set.Saves = w.model.saves
	w.set.Full = false
	w.ledger = Resume(w.set, w.parts, files, layer)
	w.model = w.model.resume(w.parts, files, layer)
	w.compare()
}

func (m *model) resume(parts []*table.Part, files []protocol.SegmentFile, layer [][]int32) *model {
	n := newModel(m.set)
	n.saves = m.saves
	for i, f := range files {
		n.newest = uint64(i + 1)
		n.files = append(n.files, modelFile{f, n.newest, f.Bytes})
	}
	oldest := int32(math.MaxInt32)
	for _, r := range stored(parts) {
		from := layer[r.table][r.at]
		n.rows[r.rowKey] = &modelRow{saved: r.values, disk: r.values, file: uint64(from + 1)}
		if from < oldest {
			oldest, n.next = from, cursor{r.table, r.at}
		}
	}
	n.set.Full, n.full = false, false
	n.drop()
	return n
}

// The ledger and its model always agree.
func TestNaiveTwin(t *testing.T) {
	for seed := range uint64(200) {
		by, share := allSelectors[seed%4], allShares[seed/4%5]
		ok := t.Run(fmt.Sprintf("%s,%v,seed=%d", by, share, seed), func(t *testing.T) {
			w := newWorld(t, seed, by, share)
			for range 60 {
				for range w.r.IntN(8) {
					w.update()
				}
				if w.r.IntN(2) == 0 {
					w.tick()
				}
				if n := len(w.parts); n < len(specs) && w.r.IntN(10) == 0 {
					w.addTable(n)
				}
				w.choose()
				if w.r.IntN(3) == 0 {
					w.update()
					w.tick()
				}
				if w.r.IntN(30) == 0 {
					w.ledger.Unwritten(w.choice) // the server has died in the meantime
					w.model.unwritten()
					w.restore()
					continue
				}
				w.end()
				if w.r.IntN(20) == 0 {
					w.restore()
				}
			}
		})
		if !ok {
			return
		}
	}
}

package scar

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/table"
)

// model is a ledger in its simplest form: maps, sorted lists, and everything counted again each time.
type model struct {
	set    Settings
	rows   map[rowKey]*modelRow
	files  []modelFile // oldest first; dropped files are removed
	newest uint64
	saves  uint64
	credit int64
	full   bool
	next   cursor

	chosen []present   // in progress
	taken  []*modelRow // of the chosen rows: a row that is evicted and returns is a different one
	before cursor
	wasAll bool
	forced int64 // bytes
}

type rowKey struct {
	table int
	id    perdure.RowID
}

type modelRow struct {
	saved []float32 // at the last choice; otherwise the initial values
	disk  []float32 // in its file
	count int
	file  uint64 // 0: none
	owed  bool
}

type modelFile struct {
	protocol.SegmentFile
	number uint64
	bytes  int64
}

// present is the current state of a stored row.
type present struct {
	rowKey
	at     int
	bytes  int64
	values []float32 // for a whole table, row after row
	dim    int       // values of a row
	dense  bool
	own    func(now, saved []float32) float64 // its distance, if not the Euclidean one
	key    float64
	forced bool
}

func newModel(s Settings) *model {
	return &model{set: s, saves: s.Saves, full: s.Full, rows: map[rowKey]*modelRow{}}
}

// stored lists the stored rows, by table and position.
func stored(parts []*table.Part) (all []present) {
	for t, p := range parts {
		for at, rows := 0, unitRows(p); at < p.Stored(); at += rows {
			all = append(all, present{
				rowKey: rowKey{t, idAt(p, at)}, at: at, bytes: int64(rows * p.RowBytes()), dim: p.Spec.Dim,
				values: slices.Clone(p.Values(at, rows)),
				dense:  !p.Spec.Sparse, own: map[perdure.Distance]func(now, saved []float32) float64{
					perdure.DistanceTV: variation, perdure.DistanceLabels: relabelled,
				}[p.Spec.Distance],
			})
		}
	}
	return all
}

// unitRows returns the number of rows in a unit of a part.
func unitRows(p *table.Part) int {
	if p.Spec.Whole {
		return p.Rows
	}
	return 1
}

func idAt(p *table.Part, at int) perdure.RowID {
	if p.Spec.Sparse {
		return p.IDs(at, 1)[0]
	}
	return p.First + perdure.RowID(at)
}

func (m *model) row(k rowKey, p *table.Part) *modelRow {
	if m.rows[k] == nil {
		saved := make([]float32, unitRows(p)*p.Spec.Dim)
		for i := range unitRows(p) {
			p.Initial(saved[i*p.Spec.Dim:(i+1)*p.Spec.Dim], k.id+perdure.RowID(i))
		}
		m.rows[k] = &modelRow{saved: saved}
	}
	return m.rows[k]
}

func (m *model) live(rows []present) map[uint64]int64 {
	live := map[uint64]int64{}
	for _, r := range rows {
		live[m.rows[r.rowKey].file] += r.bytes
	}
	return live
}

// drop drops files without the newest save of any row; width is the size of a row by table.
func (m *model) drop() {
	m.files = slices.DeleteFunc(m.files, func(f modelFile) bool {
		for _, r := range m.rows {
			if r.file == f.number {
				return false
			}
		}
		return f.number != m.newest
	})
}

// empty returns the files whose rows must be saved again.
func (m *model) empty(live map[uint64]int64) map[uint64]bool {
	out := map[uint64]bool{}
	left := slices.Clone(m.files)
	for {
		bytes, alive := int64(0), int64(0)
		for _, f := range left {
			bytes += f.bytes
		}
		for _, f := range m.files {
			alive += live[f.number]
		}
		var score func(f modelFile) float64
		switch {
		case len(left) > 0 && bytes > 3*alive:
			score = func(f modelFile) float64 { return float64(live[f.number]) / float64(max(f.bytes, 1)) }
		case len(left) >= int(4/m.set.Share)+8:
			score = func(f modelFile) float64 { return float64(live[f.number]) }
		default:
			return out
		}
		slices.SortStableFunc(left, func(a, b modelFile) int { return cmp.Compare(score(a), score(b)) })
		out[left[0].number] = true
		left = left[1:]
		slices.SortFunc(left, func(a, b modelFile) int { return cmp.Compare(a.number, b.number) })
	}
}

// choose returns the rows of the next save, in the order in which they are taken.
func (m *model) choose(parts []*table.Part, saves int64) []present {
	rows := stored(parts)
	there := map[rowKey]bool{}
	all := int64(0)
	for _, r := range rows {
		there[r.rowKey] = true
		m.row(r.rowKey, parts[r.table])
		all += r.bytes
	}
	for k := range m.rows {
		if !there[k] {
			delete(m.rows, k)
		}
	}
	m.drop()
	budget := func(share float64) int64 { return max(1, int64(math.Round(min(1, share)*float64(all)))) }
	m.credit = max(min(m.credit, budget(m.set.Share))+budget(float64(saves)*m.set.Share), -all)

	out := m.empty(m.live(rows))
	for i := range rows {
		r := m.rows[rows[i].rowKey]
		rows[i].forced = m.full || out[r.file]
		rows[i].key = m.key(&rows[i], r)
	}
	m.before, m.wasAll = m.next, m.full
	m.chosen, m.taken, m.forced = nil, nil, 0
	spent := int64(0)
	for _, r := range rows {
		if r.forced {
			m.chosen = append(m.chosen, r)
			spent += r.bytes
			m.forced += r.bytes
		}
	}
	if m.set.Selector == perdure.SelectRound {
		m.goRound(rows, &spent)
	} else {
		slices.SortFunc(rows, func(a, b present) int {
			return cmp.Or(cmp.Compare(b.key, a.key), cmp.Compare(a.table, b.table), cmp.Compare(a.id, b.id))
		})
		for _, r := range rows {
			if !r.forced && r.key > 0 && spent < m.credit {
				m.chosen = append(m.chosen, r)
				spent += r.bytes
			}
		}
	}
	for _, r := range m.chosen {
		row := m.rows[r.rowKey]
		row.saved, row.count = r.values, 0
		m.taken = append(m.taken, row)
	}
	m.credit -= spent
	m.saves++
	m.full = false
	return m.chosen
}

func (m *model) goRound(rows []present, spent *int64) {
	start := slices.IndexFunc(rows, func(r present) bool {
		return r.table > m.next.table || r.table == m.next.table && r.at >= m.next.at
	})
	start = max(start, 0)
	for i := range rows {
		r := rows[(start+i)%len(rows)]
		if r.forced || *spent >= m.credit {
			continue
		}
		m.chosen = append(m.chosen, r)
		if *spent += r.bytes; *spent >= m.credit {
			next := rows[(start+i+1)%len(rows)]
			m.next = cursor{next.table, next.at}
		}
	}
}

func (m *model) key(r *present, row *modelRow) (key float64) {
	switch m.set.Selector {
	case perdure.SelectRandom:
		return float64(randomKey(tableSeed(saveSeed(m.set, m.saves), perdure.TableID(r.table)), r.id))
	case perdure.SelectUsed:
		key = math.Ceil(float64(row.count) / float64(len(r.values)/r.dim))
	case perdure.SelectPriority:
		if same := bytes.Equal(bitsOf(r.values), bitsOf(row.saved)); !same {
			key = float64(float32(m.far(r, row.saved) / float64(r.bytes)))
			if !(key <= math.MaxFloat32) {
				key = 2 * math.MaxFloat32
			}
			if key == 0 && !slices.Equal(r.values, row.saved) {
				key = math.SmallestNonzeroFloat64
			}
		}
	}
	switch {
	case row.owed:
		return math.MaxFloat64
	case row.file == 0 && !r.dense && key == 0:
		return math.SmallestNonzeroFloat64
	}
	return key
}

// far returns the distance of a row from its saved value, or of a whole table's rows together.
func (m *model) far(r *present, saved []float32) float64 {
	all, wide := 0.0, r.dim*table.RowsPerGroup(r.dim)
	for from := 0; from < len(saved); from += wide {
		end := min(from+wide, len(saved))
		if d := table.SquaredDistance(r.values[from:end], saved[from:end]); d <= math.MaxFloat64 && r.own == nil {
			all += d
			continue
		}
		for at := from; at < end; at += r.dim { // row by row: unchanged rows do not count, NaN or not
			now, was := r.values[at:at+r.dim], saved[at:at+r.dim]
			switch {
			case bytes.Equal(bitsOf(now), bitsOf(was)):
			case r.own != nil:
				all += r.own(now, was)
			default:
				all += table.SquaredDistance(now, was)
			}
		}
	}
	if r.own != nil {
		return all
	}
	return math.Sqrt(all)
}

func relabelled(now, saved []float32) float64 {
	counts := map[float32]int{}
	for k := range now {
		counts[now[k]]++
		counts[saved[k]]--
	}
	all := 0
	for _, n := range counts {
		all += max(n, -n)
	}
	return float64(all) / 2
}

func variation(now, saved []float32) float64 {
	sum, before, all := 0.0, 0.0, 0.0
	for k := range saved {
		sum, before = sum+float64(now[k]), before+float64(saved[k])
	}
	if sum <= 0 {
		return 0
	}
	for k := range saved {
		was := 0.0
		if before > 0 {
			was = float64(saved[k]) * (1 / before)
		}
		all += math.Abs(float64(float64(now[k])*(1/sum)) - was)
	}
	return sum * all / 2
}

func bitsOf(v []float32) (b []byte) {
	for _, v := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

func (m *model) written(f protocol.SegmentFile) {
	m.newest++
	bytes := int64(0)
	for i, r := range m.chosen {
		if row := m.rows[r.rowKey]; row == m.taken[i] {
			row.file, row.owed, row.disk = m.newest, false, r.values
		}
		bytes += r.bytes
	}
	m.files = append(m.files, modelFile{f, m.newest, bytes})
	m.drop()
}

func (m *model) unwritten() {
	m.next, m.full = m.before, m.wasAll
	for i, r := range m.chosen {
		m.credit += r.bytes
		if m.set.Selector == perdure.SelectPriority || m.set.Selector == perdure.SelectUsed {
			m.taken[i].owed = true
		}
	}
}

package mf

import (
	"container/heap"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/safetensors"
)

// namesSuffix follows a table's name in the metadata of a model file. The value holds the names of its rows, one per
// line.
const namesSuffix = ".names"

// Predictor predicts ratings from a model file alone. It is safe for concurrent use.
type Predictor struct {
	mean, deviation float64
	rank            int
	users, items    namedRows
}

// namedRows holds the rows of one table and their names.
type namedRows struct {
	kind   string // "user" or "item"
	values []float32
	at     map[string]int // by name or number: its index among the rows
	names  []string       // by index
}

// NewPredictor creates a predictor from a model's tensors and metadata. It returns an error that names anything
// missing.
func NewPredictor(tensors []safetensors.Tensor, meta map[string]string) (*Predictor, error) {
	p := &Predictor{users: namedRows{kind: "user"}, items: namedRows{kind: "item"}}
	for name, to := range map[string]*float64{"mean": &p.mean, "deviation": &p.deviation} {
		v, err := strconv.ParseFloat(meta[name], 64)
		if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, perdure.Usagef("its metadata has no %s of the ratings, which an mf model needs", name)
		}
		*to = v
	}
	for table, v := range map[string]*namedRows{Users: &p.users, Items: &p.items} {
		rank, err := v.read(table, tensors, meta[table+namesSuffix])
		if err == nil && p.rank != 0 && rank != p.rank {
			err = perdure.Usagef("the tables users and items have rows of different lengths: %d and %d values", p.rank,
				rank)
		}
		if err != nil {
			return nil, err
		}
		p.rank = rank
	}
	return p, nil
}

// read reads a dense or sparse table and the names of its rows.
func (v *namedRows) read(table string, tensors []safetensors.Tensor, names string) (rank int, err error) {
	t := safetensors.Find(tensors, table)
	if t == nil || t.Data == nil || len(t.Shape) != 2 || t.Shape[1] < 1 {
		return 0, perdure.Usagef("it has no table %s, which an mf model needs", table)
	}
	rows := int(t.Shape[0])
	ids := safetensors.Find(tensors, table+safetensors.IDsSuffix)
	if ids != nil && len(ids.Ints) != rows {
		return 0, perdure.Usagef("table %s has %d rows, but %d row IDs", table, rows, len(ids.Ints))
	}
	v.values = t.Data
	return int(t.Shape[1]), v.name(table, rows, ids, names)
}

// name assigns each row its name, or its number if there are no names. Names must be unique, because rows with the same
// name could not be distinguished.
func (v *namedRows) name(table string, rows int, ids *safetensors.Tensor, names string) error {
	var known []string
	if names != "" {
		known = strings.Split(names, "\n")
	}
	v.at, v.names = make(map[string]int, rows), make([]string, rows)
	for i := range rows {
		row := uint64(i)
		if ids != nil {
			row = uint64(ids.Ints[i])
		}
		name := strconv.FormatUint(row, 10)
		if known != nil {
			if row >= uint64(len(known)) {
				return perdure.Usagef("its metadata has the names of %d %ss, but none for row %d of table %s",
					len(known), v.kind, row, table)
			}
			name = known[row]
		}
		if _, taken := v.at[name]; taken {
			return perdure.Usagef("its table %s has two rows for the %s %.40q", table, v.kind, name)
		}
		v.names[i], v.at[name] = name, i
	}
	return nil
}

func (v *namedRows) row(name string, rank int) ([]float32, error) {
	at, known := v.at[name]
	if !known {
		return nil, perdure.Usagef("the model has no %s %.40q", v.kind, name)
	}
	return v.values[at*rank:][:rank], nil
}

// Rating predicts a user's rating of an item. Both must be in the model.
func (p *Predictor) Rating(user, item string) (float64, error) {
	u, err := p.users.row(user, p.rank)
	if err != nil {
		return 0, err
	}
	v, err := p.items.row(item, p.rank)
	if err != nil {
		return 0, err
	}
	return p.rating(u, v), nil
}

func (p *Predictor) rating(u, v []float32) float64 { return p.mean + p.deviation*float64(inner(u, v)) }

// Recommendation is an item that a user is predicted to like.
type Recommendation struct {
	Item   string
	Rating float64
}

// Best returns up to n items with the highest predicted ratings for a user, best first, except items to leave out.
func (p *Predictor) Best(user string, n int, leaveOut func(item string) bool) ([]Recommendation, error) {
	u, err := p.users.row(user, p.rank)
	if err != nil {
		return nil, err
	}
	var best recommendationHeap
	for i, item := range p.items.names {
		r := p.rating(u, p.items.values[i*p.rank:][:p.rank])
		if len(best) == n && !(r > best[0].Rating) || leaveOut(item) {
			continue
		}
		if heap.Push(&best, Recommendation{item, r}); len(best) > n {
			heap.Pop(&best)
		}
	}
	slices.SortStableFunc(best, func(a, b Recommendation) int {
		switch {
		case a.Rating > b.Rating:
			return -1
		case a.Rating < b.Rating:
			return 1
		}
		return strings.Compare(a.Item, b.Item)
	})
	return best, nil
}

// recommendationHeap is a heap with the worst recommendation first.
type recommendationHeap []Recommendation

func (p recommendationHeap) Len() int           { return len(p) }
func (p recommendationHeap) Less(i, j int) bool { return p[i].Rating < p[j].Rating }
func (p recommendationHeap) Swap(i, j int)      { p[i], p[j] = p[j], p[i] }
func (p *recommendationHeap) Push(v any)        { *p = append(*p, v.(Recommendation)) }
func (p *recommendationHeap) Pop() any {
	last := (*p)[len(*p)-1]
	*p = (*p)[:len(*p)-1]
	return last
}

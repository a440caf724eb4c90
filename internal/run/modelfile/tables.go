package modelfile

import (
	"context"
	"errors"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/safetensors"
)

// Tables gives a workload access to the rows of a model file.
type Tables map[string]*rows

// rows are the rows of one table. Rows that a sparse table lacks are zeros.
type rows struct {
	dim    int
	values []float32
	at     map[perdure.RowID]int // of a sparse table; nil: a row's index is its ID
}

// Tables returns the tables of a workload, or an error if the file does not have them.
func (m *Model) Tables(specs []perdure.TableSpec) (Tables, error) {
	t := Tables{}
	for _, s := range specs {
		of, ids := m.find(s.Name), m.find(s.Name+safetensors.IDsSuffix)
		if of == nil || of.Data == nil || len(of.Shape) != 2 {
			return nil, perdure.Usagef("it has no table %s", s.Name)
		}
		n := of.Shape[0]
		if of.Shape[1] != int64(s.Dim) || ids == nil && (s.Sparse || n != s.Rows) {
			return nil, perdure.Usagef("its table %s has the shape %v, %s, but must have %s", s.Name, of.Shape,
				kindOf(ids != nil), shapeOf(&s))
		}
		r := &rows{dim: s.Dim, values: of.Data}
		if ids != nil {
			if int64(len(ids.Ints)) != n {
				return nil, perdure.Usagef("its table %s has %d rows and %d row IDs", s.Name, n, len(ids.Ints))
			}
			r.at = make(map[perdure.RowID]int, n)
			for i, id := range ids.Ints {
				r.at[perdure.RowID(id)] = i
			}
		}
		t[s.Name] = r
	}
	return t, nil
}

func (r *rows) row(id perdure.RowID) []float32 {
	i := int(id)
	if r.at != nil {
		at, known := r.at[id]
		if !known {
			return make([]float32, r.dim)
		}
		i = at
	}
	return r.values[i*r.dim:][:r.dim]
}

// Get implements workload.Tables.
func (t Tables) Get(_ context.Context, table string, first perdure.RowID, dst []float32) error {
	r := t[table]
	for i := range len(dst) / r.dim {
		copy(dst[i*r.dim:], r.row(first+perdure.RowID(i)))
	}
	return nil
}

// GetRows implements workload.Tables.
func (t Tables) GetRows(_ context.Context, table string, ids []perdure.RowID, dst []float32) error {
	r := t[table]
	for i, id := range ids {
		copy(dst[i*r.dim:], r.row(id))
	}
	return nil
}

// errRead is the error for changing a model that was read from a file.
var errRead = errors.New("models read from a file cannot be changed")

// Inc implements workload.Tables.
func (Tables) Inc(context.Context, string, perdure.RowID, []float32) error { return errRead }

// IncRows implements workload.Tables.
func (Tables) IncRows(context.Context, string, []perdure.RowID, []float32) error { return errRead }

package modelfile

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/safetensors"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/run/workload"
)

// Repair lets the workload adjust a model's tensors before they are written.
func Repair(w workload.Workload, tensors []safetensors.Tensor) {
	m, is := w.(workload.Repairer)
	if !is {
		return
	}
	tables := map[string][]float32{}
	for _, t := range tensors {
		if t.Ints == nil {
			tables[t.Name] = t.Data
		}
	}
	m.Repair(tables)
}

// Values are the rows of a table, in the order of shards. The rows of a dense table are then in order.
type Values struct {
	Rows []float32
	ids  []perdure.RowID
}

// Add appends the rows of a part.
func (v *Values) Add(img table.Image) {
	for _, piece := range img.Planes[0] {
		v.Rows = append(v.Rows, piece...)
	}
	for _, piece := range img.IDs {
		v.ids = append(v.ids, piece...)
	}
}

// Tensors returns the tensors of the table in a model file.
func (v *Values) Tensors(spec perdure.TableSpec) ([]safetensors.Tensor, error) {
	if !spec.Sparse {
		shape := []int64{spec.Rows, int64(spec.Dim)}
		return []safetensors.Tensor{{Name: spec.Name, Shape: shape, Data: v.Rows}}, nil
	}
	rows, ids, err := safetensors.Sparse(spec.Name, spec.Dim, v.ids, v.Rows)
	return []safetensors.Tensor{rows, ids}, err
}

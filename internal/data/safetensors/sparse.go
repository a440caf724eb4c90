package safetensors

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/perdure/perdure"
)

// IDsSuffix is appended to a sparse table's name to form the name of the tensor of its row ids.
const IDsSuffix = "/ids"

// Sparse returns the two tensors of a sparse table of n rows: `name`, float32 of shape [n, dim], and `name/ids`, int64
// of shape [n]. The id of row i is element i of the latter, as an int64 with the same 64 bits, because PyTorch hardly
// supports uint64. Rows are in ascending order of their ids as unsigned numbers.
//
// The rows may be passed in any order: values has dim values for each of ids. They are copied unless they are already
// in order. A duplicate id is an error.
func Sparse(name string, dim int, ids []perdure.RowID, values []float32) (rows, rowIDs Tensor, err error) {
	if dim < 1 || len(values)%dim != 0 || len(values)/dim != len(ids) {
		return rows, rowIDs, fmt.Errorf("safetensors: table %s: %d values do not fit %d rows of %d values", name,
			len(values), len(ids), dim)
	}
	if !slices.IsSorted(ids) {
		ids, values = sorted(dim, ids, values)
	}
	n := int64(len(ids))
	rows = Tensor{Name: name, Shape: []int64{n, int64(dim)}, Data: values}
	rowIDs = Tensor{Name: name + IDsSuffix, Shape: []int64{n}, Ints: make([]int64, n)}
	for i, id := range ids {
		if i > 0 && ids[i-1] == id {
			return Tensor{}, Tensor{}, fmt.Errorf("safetensors: table %s: row %d occurs twice", name, id)
		}
		rowIDs.Ints[i] = int64(id)
	}
	return rows, rowIDs, nil
}

// sorted returns copies of the rows in ascending order of their ids.
func sorted(dim int, ids []perdure.RowID, values []float32) ([]perdure.RowID, []float32) {
	order := make([]int, len(ids))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(ids[a], ids[b]) })
	outIDs := make([]perdure.RowID, len(ids))
	out := make([]float32, 0, len(values))
	for i, from := range order {
		outIDs[i] = ids[from]
		out = append(out, values[from*dim:][:dim]...)
	}
	return outIDs, out
}

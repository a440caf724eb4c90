package modelfile

import (
	"context"
	"fmt"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/safetensors"
	"github.com/perdure/perdure/internal/run/workload"
)

// Fits returns an error if a workload with these tables cannot start with the model. The same workload must have made
// the model. The model must have exactly these tables, with the same shapes and only finite numbers.
func (m *Model) Fits(ctx context.Context, w workload.Workload, specs []perdure.TableSpec) error {
	refuse := func(format string, args ...any) error {
		return perdure.Usagef("%s: %s", m.Path, fmt.Sprintf(format, args...))
	}
	switch name := w.Describe().Name; m.Meta["workload"] {
	case name:
	case "":
		return refuse("it does not name its workload; its metadata must have the key workload")
	default:
		return refuse("its workload is %.40q, but this run's workload is %s", m.Meta["workload"], name)
	}
	known := map[string]bool{}
	for i := range specs {
		if wrong := m.unfit(&specs[i]); wrong != "" {
			return refuse("%s", wrong)
		}
		known[specs[i].Name] = true
		known[specs[i].Name+safetensors.IDsSuffix] = specs[i].Sparse
	}
	for _, t := range m.Tensors {
		if !known[t.Name] {
			return refuse("it has a tensor %q of shape %v, which is not a table of this run", t.Name, t.Shape)
		}
	}
	if wrong := m.Diverged(); wrong != "" {
		return refuse("%s", wrong)
	}
	heir, is := w.(workload.WarmStartChecker)
	if !is {
		return nil
	}
	t, err := m.Tables(specs)
	if err == nil {
		err = heir.CheckWarmStart(ctx, t, m.Meta)
	}
	if err != nil {
		return refuse("%v", err)
	}
	return nil
}

// unfit returns how the file's table differs from a table of the run, or "" if it does not.
func (m *Model) unfit(spec *perdure.TableSpec) string {
	of, ids := m.find(spec.Name), m.find(spec.Name+safetensors.IDsSuffix)
	switch {
	case of == nil:
		return fmt.Sprintf("it has no table %s, which must have the shape %s", spec.Name, shapeOf(spec))
	case of.Ints != nil:
		return fmt.Sprintf("its table %s has int64 values instead of float32", spec.Name)
	case len(of.Shape) != 2 || of.Shape[1] != int64(spec.Dim) || !spec.Sparse && of.Shape[0] != spec.Rows:
		return fmt.Sprintf("its table %s has the shape %v, but must have %s", spec.Name, of.Shape, shapeOf(spec))
	case spec.Sparse != (ids != nil):
		return fmt.Sprintf("its table %s is %s, but must be %s", spec.Name, kindOf(ids != nil), kindOf(spec.Sparse))
	}
	if ids != nil {
		return unfitIDs(spec.Name, of, ids)
	}
	return ""
}

// unfitIDs describes an error in the row IDs of a sparse table, or returns "".
func unfitIDs(name string, of, ids *safetensors.Tensor) string {
	switch {
	case ids.Ints == nil && len(ids.Data) > 0:
		return fmt.Sprintf("the row IDs of its table %s are float32 instead of int64", name)
	case len(ids.Shape) != 1 || ids.Shape[0] != of.Shape[0]:
		return fmt.Sprintf("its table %s has the shape %v, but its row IDs have %v", name, of.Shape, ids.Shape)
	}
	sorted := slices.Sorted(slices.Values(ids.Ints))
	for i := range sorted {
		if i > 0 && sorted[i] == sorted[i-1] {
			return fmt.Sprintf("its table %s has row %d twice", name, uint64(sorted[i]))
		}
	}
	return ""
}

// shapeOf formats the shape of a table's tensor.
func shapeOf(spec *perdure.TableSpec) string {
	if spec.Sparse {
		return fmt.Sprintf("[n %d], sparse", spec.Dim)
	}
	return fmt.Sprintf("[%d %d]", spec.Rows, spec.Dim)
}

func kindOf(sparse bool) string {
	if sparse {
		return "sparse"
	}
	return "dense"
}

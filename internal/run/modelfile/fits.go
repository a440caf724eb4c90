package modelfile

import (
	"context"
	"fmt"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/safetensors"
	"github.com/perdure/perdure/internal/run/workload"
)

// Fits says what keeps a workload, with these tables, from beginning with the model; nil: nothing. The model must have
// been made by that workload, and have the very tables, with rows as many and as long, all of finite numbers.
func (m *Model) Fits(ctx context.Context, w workload.Workload, specs []perdure.TableSpec) error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s: %s", perdure.ErrUsage, m.Path, fmt.Sprintf(format, args...))
	}
	switch name := w.Describe().Name; m.Meta["workload"] {
	case name:
	case "":
		return refuse("it does not say which workload it is of; its metadata must have the key workload")
	default:
		return refuse("it is a model of %.40q, and this is a run of %s", m.Meta["workload"], name)
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
			return refuse("it has a tensor %q of shape %v, which is no table of this run", t.Name, t.Shape)
		}
	}
	if wrong := m.Diverged(); wrong != "" {
		return refuse("%s", wrong)
	}
	heir, is := w.(workload.Heir)
	if !is {
		return nil
	}
	t, err := m.Tables(specs)
	if err == nil {
		err = heir.Inherits(ctx, t, m.Meta)
	}
	if err != nil {
		return refuse("%v", err)
	}
	return nil
}

// unfit says how the file's table differs from one that the run is to have; "": it does not.
func (m *Model) unfit(spec *perdure.TableSpec) string {
	of, ids := m.find(spec.Name), m.find(spec.Name+safetensors.IDsSuffix)
	switch {
	case of == nil:
		return fmt.Sprintf("it has no table %s, which is to have %s", spec.Name, shapeOf(spec))
	case of.Ints != nil:
		return fmt.Sprintf("its table %s is of int64, and not of float32", spec.Name)
	case len(of.Shape) != 2 || of.Shape[1] != int64(spec.Dim) || !spec.Sparse && of.Shape[0] != spec.Rows:
		return fmt.Sprintf("its table %s has the shape %v, and is to have %s", spec.Name, of.Shape, shapeOf(spec))
	case spec.Sparse != (ids != nil):
		return fmt.Sprintf("its table %s is %s, and is to be %s", spec.Name, kindOf(ids != nil), kindOf(spec.Sparse))
	}
	if ids != nil {
		return unfitIDs(spec.Name, of, ids)
	}
	return ""
}

// unfitIDs says what is wrong with the numbers of a sparse table's rows; "": nothing.
func unfitIDs(name string, of, ids *safetensors.Tensor) string {
	switch {
	case ids.Ints == nil && len(ids.Data) > 0:
		return fmt.Sprintf("the row numbers of its table %s are of float32, and not of int64", name)
	case len(ids.Shape) != 1 || ids.Shape[0] != of.Shape[0]:
		return fmt.Sprintf("its table %s has the shape %v, and its row numbers have %v", name, of.Shape, ids.Shape)
	}
	sorted := slices.Sorted(slices.Values(ids.Ints))
	for i := range sorted {
		if i > 0 && sorted[i] == sorted[i-1] {
			return fmt.Sprintf("its table %s has row %d twice", name, uint64(sorted[i]))
		}
	}
	return ""
}

// shapeOf is the shape of a table's tensor, for people.
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

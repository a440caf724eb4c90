package modelfile

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/safetensors"
	"github.com/perdure/perdure/internal/run/workload"
)

// bowl returns a workload with one table x of 2 rows of 2 values, and a model file that fits it.
func bowl(t testing.TB, sparse bool) (w workload.Workload, file []byte) {
	t.Helper()
	w, err := workload.New("quadratic", workload.Params{
		Slots: 1, Sparse: sparse, Rule: perdure.Rule{Kind: perdure.RuleSGD, Rate: 0.1},
		Bowl: workload.Quadratic{Rows: 2, Dim: 2, Condition: 4},
	})
	if err != nil {
		t.Fatal(err)
	}
	name, values := w.Tables()[0].Name, []float32{1, 2, 3, 4}
	tensors := []safetensors.Tensor{{Name: name, Shape: []int64{2, 2}, Data: values}}
	if sparse {
		rows, ids, err := safetensors.Sparse(name, 2, []perdure.RowID{0, 1}, values)
		if err != nil {
			t.Fatal(err)
		}
		tensors = []safetensors.Tensor{rows, ids}
	}
	var b bytes.Buffer
	origin := safetensors.Origin{Job: &perdure.JobSpec{Workload: "quadratic"}, Clock: 5}
	if err := safetensors.Write(&b, tensors, safetensors.Metadata(origin)); err != nil {
		t.Fatal(err)
	}
	return w, b.Bytes()
}

// FuzzFits checks that any file is rejected as malformed or as not fitting, or yields a model with every value of the
// table. Nothing may panic.
func FuzzFits(f *testing.F) {
	for _, sparse := range []bool{false, true} {
		w, file := bowl(f, sparse)
		f.Add(file, sparse)
		f.Add(file[:len(file)-1], sparse)
		f.Add(file, !sparse)
		path := filepath.Join(f.TempDir(), Name)
		if err := os.WriteFile(path, file, 0o666); err != nil {
			f.Fatal(err)
		}
		m, err := Open(path)
		if err == nil {
			err = m.Fits(f.Context(), w, w.Tables())
		}
		if err != nil {
			f.Errorf("a model that fits is rejected: %v", err)
		}
	}
	f.Fuzz(func(t *testing.T, file []byte, sparse bool) {
		w, _ := bowl(t, sparse)
		path := filepath.Join(t.TempDir(), Name)
		if err := os.WriteFile(path, file, 0o666); err != nil {
			t.Fatal(err)
		}
		m, err := Open(path)
		if err == nil {
			err = m.Fits(t.Context(), w, w.Tables())
		}
		if err != nil && !errors.Is(err, perdure.ErrUsage) && !errors.Is(err, safetensors.ErrMalformed) {
			t.Fatal(err)
		}
		if err != nil {
			return
		}
		job := perdure.JobSpec{Shards: 1}
		if p := m.part(&job, 0, &w.Tables()[0], 0); p.FinishRestore() != nil || !sparse && p.Stored() != 2 {
			t.Fatalf("%d rows, %v", p.Stored(), p.FinishRestore())
		}
	})
}

// TestFitsIDs checks the errors for invalid row IDs of a sparse table.
func TestFitsIDs(t *testing.T) {
	w, _ := bowl(t, true)
	name := w.Tables()[0].Name
	rows := safetensors.Tensor{Name: name, Shape: []int64{2, 2}, Data: []float32{1, 2, 3, 4}}
	for says, ids := range map[string]safetensors.Tensor{
		"m: its table x has row 1 twice":                               {Shape: []int64{2}, Ints: []int64{1, 1}},
		"m: its table x has the shape [2 2], but its row IDs have [1]": {Shape: []int64{1}, Ints: []int64{1}},
		"m: the row IDs of its table x are float32 instead of int64": {
			Shape: []int64{2}, Data: []float32{0, 1},
		},
	} {
		ids.Name = name + safetensors.IDsSuffix
		meta := map[string]string{"workload": "quadratic"}
		m := Model{Path: "m", Meta: meta, Tensors: []safetensors.Tensor{rows, ids}}
		err := m.Fits(t.Context(), w, w.Tables())
		if err == nil || err.Error() != perdure.ErrUsage.Error()+": "+says {
			t.Errorf("%v; want %s", err, says)
		}
	}
}

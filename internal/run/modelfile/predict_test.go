package modelfile

import (
	"bytes"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/safetensors"
)

// TestPredictRefused checks that a model without predictions is rejected with an error of one line and without output.
func TestPredictRefused(t *testing.T) {
	examples := filepath.Join(t.TempDir(), "x.svm")
	must(t, os.WriteFile(examples, []byte("0 1:1\n1 2:1\n"), 0o666))
	w := func(rows int64, values ...float32) safetensors.Tensor {
		return safetensors.Tensor{Name: "w", Shape: []int64{rows, 1}, Data: values}
	}
	ids := safetensors.Tensor{Name: "w/ids", Shape: []int64{2}, Ints: []int64{0, 2}}
	logreg := map[string]string{"workload": "logreg", "classes": "0\n1", "hashed": "false"}
	for _, c := range []struct {
		name    string
		meta    map[string]string
		tensors []safetensors.Tensor
		want    string // "": it makes predictions
	}{
		{"whole", logreg, []safetensors.Tensor{w(2, 1, 2), ids}, ""},
		{
			"dense, of no row", logreg,
			[]safetensors.Tensor{w(0)},
			"table w has the shape [0 1], dense, but must have [n 1], sparse",
		},
		{
			"NaN", logreg,
			[]safetensors.Tensor{w(2, 1, float32(math.NaN())), ids},
			"value 0 of row 1 of its table w is NaN",
		},
		{
			"no classes",
			map[string]string{"workload": "logreg"},
			[]safetensors.Tensor{w(2, 1, 2), ids},
			"does not name its classes",
		},
		{
			"one class",
			map[string]string{"workload": "logreg", "classes": "0"},
			[]safetensors.Tensor{w(2, 1, 2), ids},
			"does not name its classes",
		},
		{"lda", map[string]string{"workload": "lda"}, nil, `the model's workload, "lda", cannot make predictions`},
		{"quadratic", map[string]string{"workload": "quadratic"}, nil, `"quadratic", cannot make predictions`},
		{"own", map[string]string{"workload": "own\x1b[31m"}, nil, `"own\x1b[31m", cannot make predictions`},
		{"none", nil, nil, "does not name its workload"},
	} {
		model := filepath.Join(t.TempDir(), "m")
		f, err := os.Create(model)
		must(t, err)
		must(t, errors.Join(safetensors.Write(f, c.tensors, c.meta), f.Close()))
		var out, sent bytes.Buffer
		err = Predict(t.Context(), &out, &sent, Prediction{Model: model, Data: examples})
		switch {
		case c.want == "" && (err != nil || strings.Count(out.String(), "\n") != 3):
			t.Errorf("%s: %v, %q", c.name, err, &out)
		case c.want != "" && (!errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), c.want) ||
			strings.Contains(err.Error(), "\n") || out.Len() > 0):
			t.Errorf("%s: %v, %q; want %s", c.name, err, &out, c.want)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

package checkpoints

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/safetensors"
)

// TestExportDescribed checks that the model of a PyTorch program whose description is incomplete is rejected without
// writing a file. Other models are copied.
func TestExportDescribed(t *testing.T) {
	for _, c := range []struct {
		tensors []string
		refused bool
	}{
		{[]string{"weights.names", "weights.names/ids", "weights.0", "weights.0.begin"}, true},
		{[]string{"weights.names", "w"}, false},
	} {
		run, to := t.TempDir(), filepath.Join(t.TempDir(), "m")
		model, err := os.Create(filepath.Join(run, "model.safetensors"))
		must(t, err)
		var all []safetensors.Tensor
		for _, name := range c.tensors {
			all = append(all, safetensors.Tensor{Name: name, Shape: []int64{1}, Data: []float32{1}})
		}
		must(t, safetensors.Write(model, all, nil))
		must(t, model.Close())
		must(t, os.WriteFile(filepath.Join(run, "summary.json"), []byte(`{"model_sha256": "ab"}`), 0o666))
		err = ExportRun(io.Discard, run, to, false, true, false)
		if errors.Is(err, perdure.ErrUsage) != c.refused || !c.refused && err != nil {
			t.Errorf("%q: %v", c.tensors, err)
		}
		if _, err := os.Stat(to); errors.Is(err, os.ErrNotExist) != c.refused {
			t.Errorf("%q: the file: %v", c.tensors, err)
		}
	}
}

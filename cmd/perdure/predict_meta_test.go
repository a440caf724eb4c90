package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/data/safetensors"
)

// bareModel rewrites a run's model file without the given metadata keys and returns its path.
func bareModel(t *testing.T, run string, keys ...string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(run, "model.safetensors"))
	must(t, err)
	tensors, meta, err := safetensors.Read(bytes.NewReader(b), int64(len(b)))
	must(t, err)
	maps.DeleteFunc(meta, func(key, _ string) bool {
		for _, k := range keys {
			if k == key {
				return true
			}
		}
		return false
	})
	var out bytes.Buffer
	must(t, safetensors.Write(&out, tensors, meta))
	return write(t, t.TempDir(), "bare.safetensors", out.String())
}

// forest writes a CoverType directory. Its classes 1 and 2 are separated by a value of the first feature.
func forest(t *testing.T, middle int) string {
	t.Helper()
	dir := t.TempDir()
	for file, n := range map[string]int{"covtrain.csv": 200, "covtest.csv": 40} {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "%d%s,%d\n", middle+(i%2*2-1)*(10+i%7), strings.Repeat(",4", 53), 1+i%2)
		}
		write(t, dir, file, b.String())
	}
	return dir
}

// TestPredictScales: examples are scaled like the model's training examples, not by the data next to them.
func TestPredictScales(t *testing.T) {
	t.Parallel()
	data := forest(t, 100)
	sum, run := trained(t, "train", "softmax", "--quiet", "--data", data, "--clocks", "30", "--workers", "2",
		"--shards", "4", "--batch", "16", "--eval-every", "0")
	if *sum.TestAccuracy != 1 {
		t.Fatalf("accuracy %v", *sum.TestAccuracy)
	}
	other := forest(t, 1000) // data in which all features are higher
	for _, path := range []string{other, filepath.Join(other, "covtest.csv")} {
		if _, sent := predicted(t, run, "--data", path); !strings.Contains(sent, "accuracy 0.5000: 20 of 40") {
			t.Errorf("%s: the examples are scaled by the data next to them: %s", path, sent)
		}
	}
	if _, sent := predicted(t, run, "--data", data); sent != "accuracy 1.0000: 40 of 40 examples are classified "+
		"correctly\n" {
		t.Errorf("%s", sent)
	}
	old := bareModel(t, run, "features.means", "features.deviations")
	if _, sent := predicted(t, old, "--data", other); !strings.Contains(sent, "accuracy 1.0000") ||
		!strings.Contains(sent, "lacks features.means") {
		t.Errorf("for a model without this metadata: %s", sent)
	}
	wantRefused(t, exitError, "line 1: 3 columns", "predict", run, "--data", write(t, t.TempDir(), "x.csv", "1,2,3\n"))
}

// TestForestOfLogreg: logreg reads a CoverType directory. It classifies a directory or a single file with the model's
// scaling.
func TestForestOfLogreg(t *testing.T) {
	t.Parallel()
	sum, run := trained(t, "train", "logreg", "--quiet", "--data", forest(t, 100), "--clocks", "30", "--workers", "2",
		"--shards", "4", "--batch", "16", "--eval-every", "0")
	if *sum.TestAccuracy != 1 {
		t.Fatalf("accuracy %v", *sum.TestAccuracy)
	}
	higher, same := forest(t, 1000), forest(t, 100)
	for path, want := range map[string]string{
		higher: "0.5000: 20 of 40", filepath.Join(higher, "covtest.csv"): "0.5000: 20 of 40",
		same: "1.0000: 40 of 40", filepath.Join(same, "covtest.csv"): "1.0000: 40 of 40",
	} {
		lines, sent := predicted(t, run, "--data", path)
		if !strings.Contains(sent, "accuracy "+want) || lines[1][3] != "1" || lines[2][3] != "2" {
			t.Errorf("%s: %s, labels %q and %q", path, sent, lines[1][3], lines[2][3])
		}
	}
	wantRefused(t, exitError, "line 1: 2 columns", "predict", run, "--data", write(t, t.TempDir(), "x", "1,2\n"))
}

// TestPredictFinalReLU: a network's scores are computed as in its training.
func TestPredictFinalReLU(t *testing.T) {
	t.Parallel()
	_, run := trained(t, "train", "cnn", "--quiet", "--data", pictures, "--clocks", "3", "--workers", "1", "--shards",
		"4", "--batch", "4", "--eval-every", "0", "--final-relu")
	with, sent := predicted(t, run, "--data", pictures)
	without, toldOld := predicted(t, bareModel(t, run, "final_relu"), "--data", pictures)
	if strings.Contains(sent, "lacks") || !strings.Contains(toldOld, "lacks final_relu") {
		t.Errorf("the output is %q, and %q for a model without this metadata", sent, toldOld)
	}
	if fmt.Sprint(with) == fmt.Sprint(without) {
		t.Error("scores below 0 are not clipped")
	}
}

// TestPredictNames: the model's file determines whether features are names, whatever the new examples look like.
func TestPredictNames(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	data := write(t, dir, "names", strings.Repeat("a x 7\nb y 8\n", 100))
	flags := []string{"train", "logreg", "--quiet", "--clocks", "30", "--batch", "16", "--shards", "4", "--data"}
	_, run := trained(t, append(flags, data)...)
	numbers := write(t, dir, "new", "a 7\nb 8\n")
	lines, sent := predicted(t, run, "--data", numbers)
	if !strings.Contains(sent, "accuracy 1.0000") || len(lines) != 3 || lines[1][2] == lines[2][2] {
		t.Errorf("%q; %s", lines, sent)
	}
	lines, sent = predicted(t, bareModel(t, run, "hashed"), "--data", numbers)
	if !strings.Contains(sent, "lacks hashed") || lines[1][2] != lines[2][2] {
		t.Errorf("for a model without this metadata and features 7 and 8, which no example had: %q; %s", lines, sent)
	}
	data = write(t, dir, "numbers", strings.Repeat("a 1 7\nb 2 8\n", 100))
	_, run = trained(t, append(flags, data)...)
	wantRefused(t, exitError, `line 1: feature "x" is not a whole number`, "predict", run, "--data",
		write(t, dir, "mixed", "a x\n"))
}

// metadata returns the metadata of a model's file.
func metadata(t *testing.T, path string) map[string]string {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	_, meta, err := safetensors.Read(bytes.NewReader(b), int64(len(b)))
	must(t, err)
	return meta
}

// TestOrigin: a model's file records where the model comes from, whether a run or a checkpoint export wrote it.
func TestOrigin(t *testing.T) {
	t.Parallel()
	_, run := trained(t, "train", "quadratic", "--quiet", "--condition", "10", "--workers", "2", "--clocks", "10",
		"--shards", "4", "--recovery", "checkpoint:5", "--seed", "9")
	_, second := trained(t, small("--rule", "adam")...)
	exported := filepath.Join(t.TempDir(), "m.safetensors")
	wantOut(t, 0, []string{"checkpoint", "export", run, "--to", exported}, "model ")
	for path, want := range map[string]map[string]string{
		filepath.Join(run, "model.safetensors"): {
			"seed": "9", "clock": "10", "rule": "sgd", "data": "a quadratic function of condition 10",
			"condition": "10",
			"noise":     "0", "best": "normally distributed numbers, drawn with seed 9", "perdure": version,
			"data.digest":             "quadratic 1000 4 10 0",
			"setting.job.consistency": `"bsp"`,
		},
		exported: {"seed": "9", "condition": "10", "data": "a quadratic function of condition 10", "perdure": version},
		filepath.Join(second, "model.safetensors"): {
			"rule": "adam", "rate": "0.001", "setting.params.Batch": "8", "data": filepath.Base(pictures), "seed": "7",
		},
	} {
		meta := metadata(t, path)
		for key, value := range want {
			if meta[key] != value {
				t.Errorf("%s: %s is %q, want %q; all: %q", path, key, meta[key], value, meta)
			}
		}
	}
}

package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/data/safetensors"
)

// beginsWith are the strategies that lose no updates. beginKills kills processes of every kind that may die.
var beginsWith, beginKills = []string{"resend:5", "checkpoint:5", "chain:2", "stateless"}, []string{
	"--fault", "kill:server:0@clock:3", "--fault", "kill:worker:1@clock:9",
}

// TestInitModel: a run with an initial model starts from its rows at clock 0. It ends with the same model whichever
// processes die, even before anything else is saved. Its run.json starts the same run again, as long as the initial
// model exists.
func TestInitModel(t *testing.T) {
	t.Parallel()
	first, model := trained(t, small("--clocks", "20", "--recovery", "none")...)
	of := func(more ...string) []string {
		return small(append([]string{"--clocks", "20", "--init", model}, more...)...)
	}
	calm, dir := trained(t, of("--recovery", "none")...)
	if *calm.ModelSHA256 == *first.ModelSHA256 || calm.Clocks != 20 || *calm.TestLoss >= *first.TestLoss {
		t.Errorf("after 20 more clocks the loss is %v, before them %v", *calm.TestLoss, *first.TestLoss)
	}
	for _, recovery := range beginsWith {
		s, run := trained(t, of(append(beginKills, "--recovery", recovery)...)...)
		if *s.ModelSHA256 != *calm.ModelSHA256 || len(s.Failures) != 2 {
			t.Errorf("under %s the model differs after %d failures", recovery, len(s.Failures))
		}
		if recovery == "stateless" || recovery == "chain:2" {
			continue
		}
		again, _ := trained(t, "train", "--quiet", "--resume", run, "--clocks", "30")
		forked, _ := trained(t, "train", "--quiet", "--fork", run, "--clocks", "30", "--recovery", "scar:5,1/4")
		if *again.ModelSHA256 != *forked.ModelSHA256 {
			t.Errorf("after %s, resumed and forked runs end with different models", recovery)
		}
	}
	for _, recovery := range []string{"none", "scar:100,1/4"} { // these save nothing before clock 3
		s, _ := trained(t, of("--recovery", recovery, "--lr", "1e-9", "--fault", "kill:server:0@clock:3")...)
		if math.Abs(*s.TestLoss-*first.TestLoss) > 1e-4 {
			t.Errorf("under %s a lost row is not reset to the initial model: loss %v; want %v", recovery, *s.TestLoss,
				*first.TestLoss)
		}
	}
	repeated, _ := trained(t, "train", "--quiet", "--from", filepath.Join(dir, "run.json"))
	if *repeated.ModelSHA256 != *calm.ModelSHA256 {
		t.Error("--from yields another model")
	}
	must(t, os.Rename(filepath.Join(dir, "model.safetensors"), filepath.Join(model, "model.safetensors")))
	wantRefused(t, exitUsage, "is not the model that the run started with", "train", "--from",
		filepath.Join(dir, "run.json"))
	wantRefused(t, exitUsage, "--init cannot be changed with --fork", "train", "--fork", dir, "--init", model)
}

// TestInitModelOfAll: each workload can start from its own model, dense or sparse, and ends with the same model
// although processes die.
func TestInitModelOfAll(t *testing.T) {
	t.Parallel()
	for _, args := range brief(2, [][]string{
		{"mf", "--rank", "4", "--clock-fraction", "0.1", "--data", "synthetic:0.01"},
		{"lda", "--data", "synthetic:100", "--topics", "6", "--clock-fraction", "0.5", "--sparse"},
		{"cnn", "--batch", "4", "--lr", "0.01", "--data", pictures},
		{"cnn", "--batch", "4", "--lr", "0.01", "--data", pictures, "--partition", "layer"},
		{"softmax", "--sparse", "--batch", "8", "--rule", "adam", "--lr", "0.001", "--data", pictures},
		{"mf", "--solver", "als", "--rank", "4", "--clock-fraction", "0.5", "--data", "synthetic:0.01"},
		{"logreg", "--batch", "16", "--data", "synthetic:2000"},
		{"logreg", "--batch", "16", "--data", "synthetic:2000", "--rule", "adagrad"},
		{"lda", "--data", "synthetic:100", "--topics", "6", "--clock-fraction", "0.5"},
		{"quadratic", "--rows", "8", "--dim", "3"},
	}) {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			t.Parallel()
			of := append(append([]string{"train"}, args...), "--quiet", "--workers", "2", "--servers", "2", "--shards",
				"4", "--clocks", "6", "--eval-every", "0", "--recovery", "resend:2")
			before, model := trained(t, of...)
			calm, dir := trained(t, append(of, "--init", filepath.Join(model, "model.safetensors"))...)
			killed, _ := trained(t, append(of, "--init", model, "--fault", "kill:server:1@clock:1", "--fault",
				"kill:worker:0@clock:4")...)
			if *killed.ModelSHA256 != *calm.ModelSHA256 || *calm.ModelSHA256 == *before.ModelSHA256 {
				t.Errorf("models %.8s, undisturbed %.8s, before %.8s", *killed.ModelSHA256, *calm.ModelSHA256,
					*before.ModelSHA256)
			}
			if args[0] == "lda" { // rejected unless its counts match the assignments
				trained(t, append(of, "--init", dir)...)
			}
		})
	}
}

// TestInitModelLoss: training starts at the loss of the initial model, not at that of initial rows.
func TestInitModelLoss(t *testing.T) {
	t.Parallel()
	bowl := []string{"train", "quadratic", "--quiet", "--workers", "1", "--servers", "1", "--shards", "1"}
	_, whole := trained(t, append(bowl, "--clocks", "20")...)
	_, half := trained(t, append(bowl, "--clocks", "10")...)
	s, _ := trained(t, append(bowl, "--clocks", "10", "--init", half)...)
	if sum := summary(
		t,
		whole,
	); *s.ModelSHA256 != *sum.ModelSHA256 { // this workload's gradients do not depend on the clock
		t.Error("10 clocks and 10 more do not yield the model of 20")
	}
	former := *summary(t, half).TestLoss
	still, _ := trained(t, append(bowl, "--clocks", "1", "--lr", "1e-9", "--init", half)...)
	if d := math.Abs(*still.TestLoss - former); d > 1e-5*former {
		t.Errorf("training starts at loss %v; the initial model's is %v", *still.TestLoss, former)
	}
}

// TestInitModelRefused: a model that does not fit is rejected with a one-line error, and no files are left.
func TestInitModelRefused(t *testing.T) {
	t.Parallel()
	_, run := trained(t, small("--clocks", "2", "--recovery", "none")...)
	path := filepath.Join(run, "model.safetensors")
	whole := []byte(fileOf(t, run, "model.safetensors"))
	file, err := os.Open(path)
	must(t, err)
	tensors, meta, err := safetensors.Read(file, int64(len(whole)))
	must(t, err)
	must(t, file.Close())
	written := func(tensors []safetensors.Tensor, meta map[string]string) string {
		name := filepath.Join(t.TempDir(), "model.safetensors")
		f, err := os.Create(name)
		must(t, err)
		must(t, safetensors.Write(f, tensors, meta))
		must(t, f.Close())
		return name
	}
	raw := func(b []byte) string {
		name := filepath.Join(t.TempDir(), "model.safetensors")
		must(t, os.WriteFile(name, b, 0o666))
		return name
	}
	bad := append([]float32(nil), tensors[0].Data...)
	bad[25] = float32(math.NaN())
	nan := tensors[0]
	nan.Data = bad
	double := tensors[0]
	double.Data, double.Ints = nil, make([]int64, len(bad))
	f16 := []byte(strings.Replace(string(whole), `"F32"`, `"F16"`, 1))
	to := filepath.Join(t.TempDir(), "out")
	for _, c := range []struct{ name, file, says string }{
		{"not safetensors", raw([]byte("this is no model at all, and is long enough")), "malformed file"},
		{"empty", raw(nil), "truncated"},
		{"truncated", raw(whole[:len(whole)-9]), "malformed file"},
		{"header", raw(append(append([]byte{}, whole[:9]...), append([]byte("x"), whole[10:]...)...)), "header"},
		{"type", raw(f16), `has type "F16"`},
		{"ints", written([]safetensors.Tensor{double}, meta), "table w has int64 values instead of float32"},
		{"NaN", written([]safetensors.Tensor{nan}, meta), "value 5 of row 2 of its table w is NaN"},
		{"missing", written(nil, meta), `it has no table w, which must have the shape \[785 10\]`},
		{
			"too many", written(append([]safetensors.Tensor{{Name: "v", Shape: []int64{1}, Data: []float32{1}}},
				tensors...), meta), `a tensor "v" of shape \[1\], which is not a table`,
		},
		{
			"shape", written([]safetensors.Tensor{{Name: "w", Shape: []int64{1, 10}, Data: bad[:10]}}, meta),
			`table w has the shape \[1 10\], but must have \[785 10\]`,
		},
		{"other workload", written(tensors, map[string]string{"workload": "mf"}), `its workload is "mf", but this run`},
		{"no workload", written(tensors, nil), "does not name its workload"},
		{"folder without", t.TempDir(), "cannot read the model .*: no such file"},
	} {
		code := exitUsage
		if strings.Contains(c.says, "malformed") || c.says == "truncated" || c.says == "header" || c.name == "type" {
			code = exitError
		}
		wantRefused(t, code, "--init: .*"+c.says, append(small("--recovery", "none"), "--init", c.file, "--out", to)...)
	}
	wantRefused(t, exitUsage, "table w is dense, but must be sparse",
		append(small("--sparse"), "--init", run, "--out", to)...)
	wantRefused(t, exitUsage, "--init is empty", append(small(), "--init", "", "--out", to)...)
	if _, err := os.Stat(to); err == nil {
		t.Error("a rejected run leaves a directory")
	}
	_, docs := trained(t, topics("--clocks", "3")...)
	wantRefused(t, exitUsage, fmt.Sprintf("table word_topic has the shape .*, but must have .* %d", 9),
		append(topics("--topics", "9"), "--init", docs, "--out", to)...)
}

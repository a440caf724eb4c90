package main

import (
	"bytes"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/perdure/perdure/internal/data/dataset"
	"github.com/perdure/perdure/internal/data/safetensors"
)

// factorise returns the settings of a short matrix factorisation.
func factorise(more ...string) []string {
	return append([]string{
		"train", "mf", "--quiet", "--data", "synthetic:0.0005", "--rank", "8", "--clocks", "40", "--workers", "2",
		"--recovery", "checkpoint:10",
	}, more...)
}

// TestFactorise: lists of rows survive failures like runs of rows, in dense and in sparse tables. The result is
// evaluated by its RMSE.
func TestFactorise(t *testing.T) {
	t.Parallel()
	calm, dir := trained(t, factorise()...)
	if calm.TestRMSE == nil || calm.TrainRMSE == nil || calm.TestAccuracy != nil || !(*calm.TestRMSE < 1.1) ||
		calm.Data != "synthetic:0.0005" {
		t.Errorf("summary %+v", calm)
	}
	if judged := column(t, dir, "train_rmse", "test_rmse"); len(judged) == 0 {
		t.Error("series.csv has no RMSE")
	}
	storm, _ := trained(t, factorise("--fault", "kill:server:0@clock:15", "--fault", "kill:worker:1@clock:25")...)
	if *storm.ModelSHA256 != *calm.ModelSHA256 || *storm.TestRMSE != *calm.TestRMSE {
		t.Errorf("with two kills: RMSE %v; undisturbed %v", *storm.TestRMSE, *calm.TestRMSE)
	}
	sparse, _ := trained(t, factorise("--sparse")...)
	if *sparse.TestRMSE != *calm.TestRMSE {
		t.Errorf("in sparse tables: RMSE %v, in dense ones %v", *sparse.TestRMSE, *calm.TestRMSE)
	}
	goal, _ := trained(t, factorise("--until", "rmse:1.06", "--eval-every", "1", "--clocks", "4000")...)
	if *goal.TestRMSE > 1.06 || goal.Clocks >= 4000 {
		t.Errorf("ended at clock %d with RMSE %v", goal.Clocks, *goal.TestRMSE)
	}
}

// TestPredict: predictions from the model's file alone have the reported error, with dense and with sparse tables.
func TestPredict(t *testing.T) {
	t.Parallel()
	data, err := dataset.OpenRatings("synthetic:0.0005")
	must(t, err)
	for _, more := range [][]string{nil, {"--sparse"}} {
		sum, dir := trained(t, factorise(more...)...)
		b, err := os.ReadFile(filepath.Join(dir, "model.safetensors"))
		must(t, err)
		tensors, meta, err := safetensors.Read(bytes.NewReader(b), int64(len(b)))
		must(t, err)
		mean, errMean := strconv.ParseFloat(meta["mean"], 64)
		deviation, errDeviation := strconv.ParseFloat(meta["deviation"], 64)
		must(t, errors.Join(errMean, errDeviation))
		rows := map[string]map[int64][]float32{}
		for _, tensor := range tensors {
			if tensor.Ints != nil {
				continue
			}
			rank, ids := tensor.Shape[1],
				tensors[max(0, slices.IndexFunc(tensors,
					func(o safetensors.Tensor) bool { return o.Name == tensor.Name+"/ids" }))].Ints
			of := map[int64][]float32{}
			for i := range tensor.Shape[0] {
				id := i
				if ids != nil {
					id = ids[i]
				}
				of[id] = tensor.Data[i*rank : (i+1)*rank]
			}
			rows[tensor.Name] = of
		}
		squares := 0.0
		for i, r := range data.Test.Value {
			u, v := rows["users"][int64(data.Test.User[i])], rows["items"][int64(data.Test.Item[i])]
			product := 0.0
			for k := range min(len(u), len(v)) {
				product += float64(u[k]) * float64(v[k])
			}
			e := float64(r) - (mean + deviation*product)
			squares += e * e
		}
		if rmse := math.Sqrt(squares / float64(data.Test.Len())); math.Abs(rmse-*sum.TestRMSE) > 1e-5*rmse {
			t.Errorf("%v: the RMSE from the file is %v, from the run %v", more, rmse, *sum.TestRMSE)
		}
	}
}

// TestAlternate: a model of alternating least squares is the same whichever processes are killed and for any number of
// workers. It converges again after rows are lost.
func TestAlternate(t *testing.T) {
	t.Parallel()
	flags := []string{
		"train", "mf", "--solver", "als", "--quiet", "--data", "synthetic:0.0005", "--rank", "8", "--l2", "0.15",
		"--shards", "4", "--clock-fraction", "0.25", "--clocks", "40", "--eval-every", "0",
	}
	calm, _ := trained(t, append(flags, "--recovery", "none", "--workers", "1")...)
	if !(*calm.TestRMSE < 1.1) {
		t.Errorf("RMSE %v", *calm.TestRMSE)
	}
	kills := []string{
		"--workers", "3", "--compute-ms", "5", "--fault", "kill:server:0@clock:6", "--fault", "kill:worker:1@clock:13",
		"--fault", "kill:coordinator@clock:20", "--fault", "kill:server:1@clock:27",
		"--fault", "kill:worker:0@clock:27",
	}
	// The chain also keeps checkpoints: on a busy machine the second server may die before it has all copies.
	for _, recovery := range brief(2, []string{"checkpoint:5", "chain:2,checkpoint:5", "resend:5", "stateless"}) {
		s, _ := trained(t, append(append(flags, kills...), "--recovery", recovery)...)
		if *s.ModelSHA256 != *calm.ModelSHA256 || len(s.Failures) != 5 {
			t.Errorf("under %s the model differs after %d failures", recovery, len(s.Failures))
		}
	}
	elastic, _ := trained(t, append(flags, "--workers", "2", "--scale", "4@clock:9", "--scale", "1@clock:22")...)
	if *elastic.ModelSHA256 != *calm.ModelSHA256 {
		t.Error("the model differs with other numbers of workers")
	}
	for _, recovery := range []string{"scar:4,1/4", "none"} {
		s, _ := trained(t, append(flags, "--recovery", recovery, "--workers", "2", "--fault",
			"kill:server:0@clock:20")...)
		if !(math.Abs(*s.TestRMSE / *calm.TestRMSE - 1) < 0.05) {
			t.Errorf("under %s RMSE %v after rows were lost; undisturbed %v", recovery, *s.TestRMSE, *calm.TestRMSE)
		}
	}
	seen, _ := trained(t, append(flags, "--implicit", "10", "--consistency", "essp:1", "--workers", "2")...)
	if seen.TestRMSE != nil || !(*seen.TestLoss < 0.45) {
		t.Errorf("the loss for implicit feedback is %v", *seen.TestLoss)
	}
	wantRefused(t, exitUsage, `choose sgd or als`, "train", "mf", "--solver", "sdg")
	wantRefused(t, exitUsage, "without an update rule", "train", "mf", "--solver", "als", "--lr", "0.1")
	wantRefused(t, exitUsage, "only the solver als", "train", "mf", "--implicit", "3")
	wantRefused(t, exitUsage, "above 0", "train", "mf", "--solver", "als", "--l2", "0")
}

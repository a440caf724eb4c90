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

// factorise are the settings of a short matrix factorisation.
func factorise(more ...string) []string {
	return append([]string{
		"train", "mf", "--quiet", "--data", "synthetic:0.0005", "--rank", "8", "--clocks", "40", "--workers", "2",
		"--recovery", "checkpoint:10",
	}, more...)
}

// TestFactorise: lists of rows go through failures as runs of rows do, in dense
// tables and in sparse ones, and the result is judged by its RMSE.
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
		t.Errorf("through two kills: RMSE %v; undisturbed %v", *storm.TestRMSE, *calm.TestRMSE)
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

// TestPredict: predictions made of the model's file alone have the error that was reported,
// of dense and of sparse tables.
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
			t.Errorf("%v: the file alone gives an RMSE of %v, the run %v", more, rmse, *sum.TestRMSE)
		}
	}
}

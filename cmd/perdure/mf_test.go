package main

import (
	"testing"
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
	calm, dir := trained(t, factorise()...)
	if calm.TestRMSE == nil || calm.TrainRMSE == nil || calm.TestAccuracy != nil || !(*calm.TestRMSE < 1.1) || calm.Data != "synthetic:0.0005" {
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

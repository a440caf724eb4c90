package main

import (
	"context"
	"flag"
	"math"
	"sync"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/run/localrun"
	"github.com/perdure/perdure/internal/run/settings"
)

var stormLearns = flag.String("storm.learns", "scar:20,1/8,priority;resend:20,partial",
	"like -storm.strategies, for strategies under which training must end with the accuracy of an undisturbed job")

const (
	learnsClocks = 400
	// learnsWithin is how much the test accuracy of a job in a storm may differ from that of an undisturbed job.
	learnsWithin = 0.01
)

// calmAccuracy caches the accuracy of undisturbed jobs by consistency model.
var calmAccuracy = struct {
	sync.Mutex
	of map[string]float64
}{of: map[string]float64{}}

// TestLearnsInStorm: in the storms of TestStorm, under strategies that may lose updates, training ends with the
// accuracy of an undisturbed job. It recovers from what a failure perturbs.
func TestLearnsInStorm(t *testing.T) {
	onlyAll(t)
	t.Parallel()
	pictures := t.TempDir()
	must(t, writePictures(pictures, 1))
	eachStorm(t, "storm.learns", *stormLearns, stormServers, stormWorkers, learnsClocks,
		func(t *testing.T, seed uint64, s *storm) {
			learnsThrough(t, pictures, rowsModels[seed%uint64(len(rowsModels))], s)
		})
}

func learnsThrough(t *testing.T, pictures, model string, s *storm) {
	calm := calmlyLearnt(t, pictures, model)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	struck := make(chan error, 1)
	dir := newFolder(t)
	ms := *stormMs * recovery.Of(s.strategy).Traits().Copies * stormClocks / learnsClocks
	sum, err := runIn(ctx, learnsSettings(t, pictures, model, s.strategy, ms), dir, func(j *localrun.Run) {
		go func() { struck <- s.rage(ctx, j) }()
	})
	if err != nil {
		t.Fatalf("%v%s", err, logs(dir))
	}
	if err := <-struck; err != nil {
		t.Error(err)
	}
	t.Logf("model %s: %.2f%% of the images are classified correctly, undisturbed %.2f%%; %d of %d updates lost", model,
		100**sum.TestAccuracy, 100*calm, *sum.UpdatesLost, *sum.UpdatesLost+*sum.UpdatesApplied)
	if sum.Saving != nil && sum.Saving.Rows != nil {
		t.Logf("%+v, mean age %.1f", *sum.Saving.Rows, sum.Saving.Rows.MeanAge())
	}
	if math.Abs(*sum.TestAccuracy-calm) > learnsWithin {
		t.Errorf("the accuracies differ by more than %.0f point\n%s", 100*learnsWithin, logs(dir))
	}
}

// calmlyLearnt returns the accuracy of an undisturbed job. Each model is trained once.
func calmlyLearnt(t *testing.T, pictures, model string) float64 {
	calmAccuracy.Lock()
	defer calmAccuracy.Unlock()
	if a, there := calmAccuracy.of[model]; there {
		return a
	}
	none := perdure.Recovery{Kind: perdure.RecoverNone}
	sum, err := runIn(t.Context(), learnsSettings(t, pictures, model, none, 0), newFolder(t), func(*localrun.Run) {})
	must(t, err)
	calmAccuracy.of[model] = *sum.TestAccuracy
	return *sum.TestAccuracy
}

// learnsSettings returns the settings of a job that trains on all embedded images.
func learnsSettings(t *testing.T, pictures, model string, strategy perdure.Recovery, ms int) settings.Run {
	// With a constant rate or smaller batches, the accuracy of an undisturbed job under ssp varies by more than a point
	// at its end.
	batch, rate := 128, 0.3
	asked := settings.Flags{
		Workload: settings.DefaultWorkload, Reach: settings.Reach{Listen: localrun.AnyPort},
		Shape: settings.Shape{
			Workers: stormWorkers, Servers: stormServers, Shards: 6, Consistency: model, Recovery: strategy.String(),
			Clocks: learnsClocks, Seed: 7,
		},
		Work: settings.WorkloadFlags{
			Batch: &batch, LR: &rate, Schedule: string(perdure.ScheduleSqrt), Data: pictures, ComputeMs: ms,
		},
	}
	s, err := asked.New()
	must(t, err)
	return s
}

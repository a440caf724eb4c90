package main

import (
	"context"
	"hash/fnv"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/safetensors"
	"github.com/perdure/perdure/internal/run/localrun"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/workload"
	"github.com/perdure/perdure/internal/run/workload/cnn"
	"github.com/perdure/perdure/internal/run/workload/lda"
	"github.com/perdure/perdure/internal/run/workload/logreg"
	"github.com/perdure/perdure/internal/run/workload/mf"
)

// stormKind is a kind of job that storms strike.
type stormKind struct {
	name     string
	workload string
	clocks   int // 0: stormClocks; jobs with long clocks have fewer, so a storm lasts as long
	work     settings.WorkloadFlags
}

// stormKinds are small jobs of every workload: with dense and sparse tables, with one and many tables, with and without
// optimizer state, and with rows that slots own.
func stormKinds() []stormKind {
	return []stormKind{
		{name: "softmax", workload: logreg.SoftmaxName, work: settings.WorkloadFlags{Batch: ptr(8), Data: pictures}},
		{
			name: "softmax adam, combined", workload: logreg.SoftmaxName,
			work: settings.WorkloadFlags{Batch: ptr(8), Data: pictures, Rule: "adam", Combine: "weighted"},
		},
		{
			name: "softmax sparse", workload: logreg.SoftmaxName,
			work: settings.WorkloadFlags{Batch: ptr(8), Data: pictures, Sparse: true},
		},
		{
			name: "softmax adam sparse", workload: logreg.SoftmaxName,
			work: settings.WorkloadFlags{Batch: ptr(8), Data: pictures, Rule: "adam", Sparse: true},
		},
		{
			name: "softmax full batch", workload: logreg.SoftmaxName,
			work: settings.WorkloadFlags{Data: pictures, Convex: settings.SoftmaxFlags{FullBatch: true, L2: 0.01}},
		},
		{
			name: "cnn by row", workload: cnn.Name, clocks: 40,
			work: settings.WorkloadFlags{Batch: ptr(1), Data: pictures},
		},
		{
			name: "cnn by layer", workload: cnn.Name, clocks: 40,
			work: settings.WorkloadFlags{Batch: ptr(1), Data: pictures, Network: settings.CNNFlags{Partition: "layer"}},
		},
		{
			name: "mf sgd", workload: mf.Name,
			work: settings.WorkloadFlags{Data: "synthetic:0.0002", Factors: settings.MFFlags{Rank: ptr(4)}},
		},
		{
			name: "mf als", workload: mf.Name, clocks: 50,
			work: settings.WorkloadFlags{
				Data: "synthetic:0.0002", Factors: settings.MFFlags{Rank: ptr(4), Solver: mf.SolverALS},
			},
		},
		{
			name: "logreg", workload: logreg.Name,
			work: settings.WorkloadFlags{Data: "synthetic:1000", Batch: ptr(16)},
		},
		{
			name: "lda", workload: lda.Name,
			work: settings.WorkloadFlags{
				Data: "synthetic:100", Topics: settings.LDAFlags{Topics: ptr(5), Rebuild: true},
			},
		},
		{
			name: "lda, topics on servers", workload: lda.Name,
			work: settings.WorkloadFlags{
				Data: "synthetic:100", Topics: settings.LDAFlags{Topics: ptr(5), Rebuild: true, DocTopics: "table"},
			},
		},
		{
			name: "quadratic", workload: workload.QuadraticName,
			work: settings.WorkloadFlags{Bowl: settings.QuadFlags{Rows: ptr(60), Condition: ptr(10.0)}},
		},
	}
}

func ptr[T any](v T) *T { return &v }

// stormKindOf returns the kind of job for a seed under a strategy. Strategies start with different kinds, and each seed
// uses the next one.
func stormKindOf(seed uint64, strategy perdure.Recovery) *stormKind {
	kinds := stormKinds()
	h := fnv.New32a() // its Write never fails
	_, _ = h.Write([]byte(strategy.String()))
	k := kinds[(seed+uint64(h.Sum32()))%uint64(len(kinds))]
	if k.clocks == 0 {
		k.clocks = stormClocks
	}
	return &k
}

// settings returns the settings of a job of this kind, as a child of this process. If paced, its clocks last as long as
// a storm needs.
func (k *stormKind) settings(t *testing.T, strategy perdure.Recovery, paced bool) settings.Run {
	t.Helper()
	a := settings.Flags{
		Workload: k.workload, Reach: settings.Reach{Listen: localrun.AnyPort},
		Shape: settings.Shape{
			Workers: stormWorkers, Servers: stormServers, Shards: 6, Consistency: "bsp", Recovery: strategy.String(),
			Clocks: int64(k.clocks), Seed: 7,
		},
		Work: k.work,
	}
	if paced {
		a.Work.ComputeMs = *stormMs * recovery.Of(strategy).Traits().Copies * stormClocks / k.clocks
	}
	s, err := a.New()
	must(t, err)
	return s
}

// calm returns the model of an undisturbed job of this kind, trained once.
func (k *stormKind) calm(t *testing.T) string {
	t.Helper()
	return undisturbed.model("storm "+k.name, func() string {
		none := perdure.Recovery{Kind: perdure.RecoverNone}
		sum, err := runIn(t.Context(), k.settings(t, none, false), newFolder(t), func(*localrun.Run) {})
		must(t, err)
		return *sum.ModelSHA256
	})
}

// stormThrough runs a job of this kind through a storm. Its model must be finite, and equal that of an undisturbed job
// unless its strategy may lose updates. A topic model's counts must match the assignments in either case.
func (k *stormKind) stormThrough(
	t *testing.T, strategy perdure.Recovery, rage func(context.Context, *localrun.Run) error,
) {
	t.Helper()
	dir := newFolder(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	struck := make(chan error, 1)
	sum, err := runIn(ctx, k.settings(t, strategy, true), dir, func(j *localrun.Run) {
		go func() { struck <- rage(ctx, j) }()
	})
	if err != nil {
		t.Fatalf("%s: %v%s", k.name, err, logs(dir))
	}
	if err := <-struck; err != nil {
		t.Error(err)
	}
	checkRaces(t, dir)
	k.wantFinite(t, sum, dir)
	k.wantCounts(t, sum, dir)
	traits := recovery.Of(strategy).Traits()
	switch {
	case traits.MayLoseUpdates() && !traits.Partial: // rows may be reset, so the model differs
	case traits.MayLoseUpdates() && *sum.UpdatesLost > 0:
		checkLost(t, sum, dir)
	default:
		sameModel(t, sum, k.calm(t), dir)
	}
}

// wantCounts checks that a topic model's counts match its assignments. After lost rows it does so only if the job
// certainly had clocks left to recount.
func (k *stormKind) wantCounts(t *testing.T, sum rundir.Summary, dir string) {
	t.Helper()
	if k.workload != lda.Name {
		return
	}
	if *sum.UpdatesLost > 0 {
		late := func(f rundir.Failure) bool { return int(f.AtClock) > k.clocks*3/4 }
		if len(sum.Failures) == 0 || slices.ContainsFunc(sum.Failures, late) {
			t.Log("rows may have been lost in the last clocks; skipping the comparison of counts")
			return
		}
	}
	countsFitTo(t, dir, k.work.Data, *k.work.Topics.Topics)
}

// wantFinite checks that a run's loss and all values of its model are finite.
func (k *stormKind) wantFinite(t *testing.T, sum rundir.Summary, dir string) {
	t.Helper()
	if sum.TestLoss == nil || math.IsNaN(*sum.TestLoss) || math.IsInf(*sum.TestLoss, 0) {
		t.Errorf("%s: the loss is missing or not finite\n%s", k.name, logs(dir))
	}
	f, err := os.Open(filepath.Join(dir, "model.safetensors"))
	must(t, err)
	defer func() { must(t, f.Close()) }()
	info, err := f.Stat()
	must(t, err)
	tensors, _, err := safetensors.Read(f, info.Size())
	must(t, err)
	values := 0
	for _, tensor := range tensors {
		values += len(tensor.Data)
		for i, v := range tensor.Data {
			if v-v != 0 {
				t.Fatalf("%s: value %d of %s is %v\n%s", k.name, i, tensor.Name, v, logs(dir))
			}
		}
	}
	if values == 0 {
		t.Errorf("%s: the model has no values", k.name)
	}
}

// TestStormKinds: under each strategy, consecutive seeds cover every kind of job.
func TestStormKinds(t *testing.T) {
	t.Parallel()
	_, strategies := stormSeeds(t)
	at1 := map[string]bool{}
	for _, strategy := range strategies {
		seen := map[string]bool{}
		for seed := range uint64(len(stormKinds())) {
			seen[stormKindOf(seed, strategy).name] = true
		}
		if len(seen) != len(stormKinds()) {
			t.Errorf("under %s only %d kinds of job are used", strategy, len(seen))
		}
		at1[stormKindOf(1, strategy).name] = true
	}
	if len(at1) < len(strategies)/2 {
		t.Errorf("with seed 1 the %d strategies use only %d kinds of job", len(strategies), len(at1))
	}
}

package main

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/data/safetensors"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/study/failurecost"
)

// combinings are ways to combine updates. Their rules do not give the same result when applied k times instead of once.
// They cover dense and sparse tables.
var combinings = []string{
	"--combine mean --rule adam", "--combine weighted --rule nesterov --sparse", "--combine sum --rule adam --sparse",
}

// combining returns the command line of a small job that combines updates.
func combining(how string, more ...string) []string {
	return small(append(strings.Fields(how), more...)...)
}

// TestCombinedThroughKills: a job that combines updates ends with the model of an undisturbed one under every strategy
// that loses no updates, whichever process is killed.
func TestCombinedThroughKills(t *testing.T) {
	t.Parallel()
	for i, strategy := range brief(2, []string{
		"chain:2", "stateless", "checkpoint:10", "resend:10", "chain:2,checkpoint:10", "resend:10,partial",
	}) {
		how := combinings[i%len(combinings)]
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			want := undisturbed.model(how, func() string {
				s, _ := trained(t, combining(how, "--recovery", "none")...)
				return *s.ModelSHA256
			})
			kills := []string{
				"--recovery", strategy, "--fault", "kill:server:0@clock:20", "--fault", "kill:worker:1@clock:33",
				"--fault", "kill:coordinator@clock:41", "--fault", "kill:server:1@clock:50",
			}
			if strings.HasPrefix(strategy, "chain") { // every shard has another intact copy before a server dies
				kills = append(kills, "--compute-ms", "20")
			}
			s, dir := trained(t, combining(how, kills...)...)
			sameModel(t, s, want, dir)
			if len(s.Failures) < 4 { // on a busy machine the failure detector may suspect a live process
				t.Errorf("%d failures", len(s.Failures))
			}
		})
	}
}

// TestCombinedResumed: such a job resumes with another number of workers like a job that planned the change, under each
// strategy that supports resuming. From then on the mean is over the new workers.
func TestCombinedResumed(t *testing.T) {
	t.Parallel()
	for i, strategy := range brief(1, []string{"checkpoint:10", "chain:2,checkpoint:10", "scar:8,1/4", "stateless"}) {
		how := strings.Fields(combinings[i%len(combinings)])
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			dir := newFolder(t)
			atClock30(t, dir, append(how, "--recovery", strategy)...).Stop()
			var at int64
			if strategy == "stateless" {
				_, at = resumesAt(t, dir)
			} else {
				s, err := clocks(1_000_000).Resume(dir)
				must(t, err)
				at = int64(s.Cut)
			}
			end := fmt.Sprint(at + 20)
			planned, _ := trained(t, small(append(how, "--clocks", end, "--recovery", "none", "--scale",
				fmt.Sprintf("5@clock:%d", at))...)...)
			s, to := trained(t, "train", "--quiet", "--resume", dir, "--clocks", end, "--workers", "5")
			sameModel(t, s, *planned.ModelSHA256, to)
		})
	}
}

// TestCombinedInMemory: training in memory, which the failure study uses, ends with the same model as training with
// servers and workers.
func TestCombinedInMemory(t *testing.T) {
	t.Parallel()
	for _, how := range combinings {
		sum, dir := trained(t, combining(how, "--recovery", "none", "--clocks", "12")...)
		s, err := settings.ReadForNewRun(filepath.Join(dir, "run.json"))
		must(t, err)
		crew, err := failurecost.NewSlotWorkloads(&s)
		must(t, err)
		tr, err := failurecost.NewTraining(&s, crew)
		must(t, err)
		for range 12 {
			_, err := tr.Compute(t.Context())
			must(t, errors.Join(err, tr.Apply()))
		}
		got, err := tr.Hash()
		must(t, err)
		sameModel(t, sum, got, dir)
	}
}

// TestCombinedIsOneWorker: with combined updates, several workers train the same model as one worker that has all their
// examples, whatever state the rule keeps for each row. Without combining they do not.
func TestCombinedIsOneWorker(t *testing.T) {
	t.Parallel()
	of := func(workers int, how string) []float32 {
		_, dir := trained(t, append([]string{
			"train", "softmax", "--quiet", "--full-batch", "--l2", "0.1", "--rule", "nesterov", "--clocks", "15",
			"--workers", fmt.Sprint(workers), "--servers", "2", "--shards", "6", "--eval-every", "0", "--data",
			pictures,
		}, strings.Fields(how)...)...)
		file := []byte(fileOf(t, dir, "model.safetensors"))
		tensors, _, err := safetensors.Read(bytes.NewReader(file), int64(len(file)))
		must(t, err)
		return tensors[0].Data
	}
	want := of(1, "")
	far := func(how string) (most float64) {
		for i, v := range of(7, how) {
			most = max(most, math.Abs(float64(v-want[i])))
		}
		return most
	}
	for _, how := range []string{"--combine weighted", "--combine sum"} {
		if d := far(how); d > 1e-5 {
			t.Errorf("%s: a value differs by %v", how, d)
		}
	}
	if d := far("--combine each"); d < 1e-3 {
		t.Errorf("each: no value differs by more than %v", d)
	}
}

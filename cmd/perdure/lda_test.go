package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/dataset"
	"github.com/perdure/perdure/internal/data/safetensors"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/localrun"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/workload/lda"
)

// ldaKills kills a process of each kind.
var ldaKills = []string{
	"--fault", "kill:server:0@clock:6", "--fault", "kill:worker:1@clock:9", "--fault", "kill:coordinator@clock:12",
	"--fault", "kill:server:1@clock:15", "--fault", "kill:worker:0@clock:15",
}

func topics(more ...string) []string {
	return append([]string{
		"train", "lda", "--quiet", "--data", "synthetic:200", "--topics", "10", "--workers", "2", "--clocks", "20",
		"--clock-fraction", "0.34", "--shards", "4", "--eval-every", "0",
	}, more...)
}

// TestTopicsThroughKills: under bsp the model is the same whichever processes are killed, and its counts match the
// assignments. Under the other consistency models the counts match as long as no worker is killed.
func TestTopicsThroughKills(t *testing.T) {
	t.Parallel()
	calm, dir := trained(t, topics("--recovery", "none")...)
	countsFit(t, dir)
	for _, recovery := range brief(2, []string{"resend:5", "stateless", "checkpoint:5", "chain:2"}) {
		s, dir := topicsKilled(t, recovery)
		if *s.ModelSHA256 != *calm.ModelSHA256 || len(s.Failures) != 5 {
			t.Errorf("under %s the model differs after %d failures", recovery, len(s.Failures))
		}
		countsFit(t, dir)
	}
	for _, model := range brief(1, []string{"essp:2", "asp", "ssp:2"}) {
		_, dir := trained(t, topics("--consistency", model, "--fault", "kill:server:0@clock:6")...)
		countsFit(t, dir)
	}
	_, elastic := trained(t, topics("--scale", "4@clock:7", "--scale", "1@clock:14")...)
	countsFit(t, elastic)
}

// topicsKilled trains through ldaKills. With chains, clocks last long enough for every shard to have another intact
// copy before each kill, however busy the machine is.
func topicsKilled(t *testing.T, strategy string) (s rundir.Summary, dir string) {
	t.Helper()
	r, err := perdure.ParseRecovery(strategy)
	must(t, err)
	if recovery.Of(r).Traits().Copies < 2 {
		return trained(t, topics(append(ldaKills, "--recovery", strategy)...)...)
	}
	var kills []strike
	for _, text := range ldaKills {
		if text != "--fault" {
			f, err := supervisor.ParseFault(text)
			must(t, err)
			kills = append(kills, strike{f, f.When.Clock})
		}
	}
	asked := settings.Flags{
		Workload: lda.Name, Reach: settings.Reach{Listen: localrun.AnyPort},
		Shape: settings.Shape{
			Workers: 2, Servers: 2, Shards: 4, Consistency: "bsp", Recovery: strategy, Clocks: 20, Seed: 1,
		},
		Work: settings.WorkloadFlags{
			Data: "synthetic:200", Topics: settings.LDAFlags{Topics: ptr(10), Fraction: ptr(0.34)}, EvalEvery: "0",
			ComputeMs: 150,
		},
	}
	run, err := asked.New()
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	dir = newFolder(t)
	struck := make(chan error, 1)
	s, err = runIn(ctx, run, dir, func(j *localrun.Run) {
		go func() { struck <- (&storm{faults: kills, strategy: r}).rage(ctx, j) }()
	})
	if err != nil {
		t.Fatalf("%v%s", err, logs(dir))
	}
	must(t, <-struck)
	checkRaces(t, dir)
	return s, dir
}

// TestTopicsRebuilt: under bsp and a strategy that loses rows, --rebuild ends with counts that match the assignments.
func TestTopicsRebuilt(t *testing.T) {
	t.Parallel()
	for _, recovery := range []string{"none", "scar:6,1/3,round", "chain:2,async"} {
		flags := topics("--recovery", recovery, "--rebuild", "--fault", "kill:server:0@clock:8", "--fault",
			"kill:worker:1@clock:8", "--clocks", "70", "--compute-ms", "10") // leaves clocks to recount after a loss
		copies := strings.HasPrefix(recovery, "chain")
		if !copies { // a chain's new copy may not be complete by then
			flags = append(flags, "--fault", "kill:server:1@clock:16")
		}
		s, dir := trained(t, flags...)
		if len(s.Failures) < 2 || !copies && *s.UpdatesLost == 0 {
			t.Errorf("under %s %d failures, %d updates lost", recovery, len(s.Failures), *s.UpdatesLost)
		}
		countsFit(t, dir)
	}
	_, dir := trained(t, topics("--recovery", "none", "--rebuild", "--consistency", "ssp:2", "--fault",
		"kill:server:0@clock:8")...)
	data, _ := modelOf(t, filepath.Join(dir, "model.safetensors"))
	for name, values := range data {
		if least := slices.Min(values); !(least >= 0) {
			t.Errorf("table %s has the count %v", name, least)
		}
	}
}

// modelOf reads the tensors and the metadata of a model's file.
func modelOf(t *testing.T, path string) (data map[string][]float32, meta map[string]string) {
	t.Helper()
	file, err := os.Open(path)
	must(t, err)
	defer func() { must(t, file.Close()) }()
	info, err := file.Stat()
	must(t, err)
	tensors, meta, err := safetensors.Read(file, info.Size())
	must(t, err)
	data = map[string][]float32{}
	for _, tensor := range tensors {
		data[tensor.Name] = tensor.Data
	}
	return data, meta
}

// countsFit compares a model's counts with its assignments.
func countsFit(t *testing.T, dir string) {
	t.Helper()
	countsFitTo(t, dir, "synthetic:200", 10)
}

// countsFitTo is countsFit for the given documents and number of topics.
func countsFitTo(t *testing.T, dir, documents string, topics int) {
	t.Helper()
	data, _ := modelOf(t, filepath.Join(dir, "model.safetensors"))
	c, err := dataset.OpenCorpus(documents)
	must(t, err)
	counts, total := map[string]float32{}, make([]float32, topics)
	at, assigned := data["assignments"], 0
	for i := range c.Train.Len() {
		doc := c.Train.Document(i)
		for j, w := range doc {
			k := int(at[j]) - 1
			counts[fmt.Sprint(w, k)]++
			total[k]++
			assigned++
		}
		at = at[(len(doc)+31)/32*32:]
	}
	for i, n := range data["word_topic"] {
		if want := counts[fmt.Sprint(i/topics, i%topics)]; n != want {
			t.Fatalf("%s: word %d has %v tokens of topic %d, but %v are assigned", dir, i/topics, n, i%topics, want)
		}
	}
	for k, n := range data["topics"] {
		if n != total[k] {
			t.Fatalf("%s: topic %d has %v tokens, but %v are assigned", dir, k, n, total[k])
		}
	}
}

// fileSuffices checks that a model's file alone determines the words of each topic and their probabilities, and that an
// export from a checkpoint contains the same.
func fileSuffices(t *testing.T, run string) {
	t.Helper()
	data, meta := modelOf(t, filepath.Join(run, "model.safetensors"))
	out := filepath.Join(t.TempDir(), "of a checkpoint")
	code, said, errs := invoke(t, "checkpoint", "export", run, "--to", out)
	if code != 0 || strings.Contains(said, "only") {
		t.Fatal(said, errs)
	}
	_, again := modelOf(t, out)
	words := strings.Split(meta["word_topic.names"], "\n")
	beta, err := strconv.ParseFloat(meta["beta"], 64)
	must(t, err)
	if len(words)*2 != len(data["word_topic"]) || meta["words"] != strconv.Itoa(len(words)) || meta["topics"] != "2" ||
		meta["alpha"] != "0.1" {
		t.Fatalf("metadata %q for %d counts", meta, len(data["word_topic"]))
	}
	for _, key := range []string{"word_topic.names", "alpha", "beta", "words", "topics"} {
		if again[key] != meta[key] {
			t.Errorf("%s is %q in the checkpoint's export, %q in the model", key, again[key], meta[key])
		}
	}
	topic := map[string]int{}
	for i, word := range words {
		share := func(k int) float64 {
			return (float64(data["word_topic"][2*i+k]) + beta) /
				(float64(data["topics"][k]) + beta*float64(len(words)))
		}
		if share(1) > share(0) {
			topic[word] = 1
		} else {
			topic[word] = 0
		}
	}
	if topic["ships"] != topic["stormy"] || topic["judges"] != topic["courts"] || topic["ships"] == topic["judges"] {
		t.Errorf("words' topics: %v", topic)
	}
}

// TestTopicsOfTexts: lda can train on a directory of text files. Training continues where rows are lost.
func TestTopicsOfTexts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range 60 {
		text := strings.Repeat([]string{"ships sail across stormy seas ", "judges weigh evidence in courts "}[i%2], 5)
		must(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%02d.txt", i)), []byte(text), 0o644))
	}
	flags := []string{
		"train", "lda", "--quiet", "--data", dir, "--topics", "2", "--workers", "2", "--shards", "4", "--clocks", "40",
	}
	s, run := trained(t, flags...)
	fileSuffices(t, run)
	if code, _, errs := invoke(t, "train", "--quiet", "--resume", run, "--clocks", "45", "--out",
		filepath.Join(t.TempDir(), "on")); code != 0 {
		t.Errorf("the run cannot be resumed: %s", errs)
	}
	if *s.TestLoss > 2.05 { // 2.2 without topics; with four or five words in a topic at best 1.5
		t.Errorf("the loss is %v", *s.TestLoss)
	}
	s, _ = trained(t, append(flags, "--recovery", "none", "--rebuild", "--fault", "kill:server:0@clock:10")...)
	if !(*s.TestLoss > 0 && *s.TestLoss < 5) {
		t.Errorf("the loss is %v after rows were lost", *s.TestLoss)
	}
	wantRefused(t, exitUsage, "no update rule", "train", "lda", "--lr", "0.1")
	wantRefused(t, exitUsage, "choose 2 to 8192", "train", "lda", "--topics", "1")
	wantRefused(t, exitUsage, "no batches", "train", "lda", "--batch", "4")
}

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func clicks(more ...string) []string {
	return append([]string{
		"train", "logreg", "--quiet", "--data", "synthetic:2000", "--batch", "32", "--workers", "2", "--clocks", "20",
		"--shards", "4", "--eval-every", "0",
	}, more...)
}

// TestClicksThroughKills: sparse tables with a stateful rule end with identical bits whichever processes are killed.
func TestClicksThroughKills(t *testing.T) {
	t.Parallel()
	calm, _ := trained(t, clicks("--recovery", "none")...)
	// The chain also keeps checkpoints: on a busy machine the second server may die before it has all copies.
	for _, recovery := range []string{"resend:5", "checkpoint:5", "chain:2,checkpoint:5", "stateless"} {
		s, _ := trained(t, clicks(append(ldaKills, "--recovery", recovery)...)...)
		if *s.ModelSHA256 != *calm.ModelSHA256 || len(s.Failures) != 5 {
			t.Errorf("under %s the model differs after %d failures", recovery, len(s.Failures))
		}
	}
	lost, _ := trained(t, clicks("--recovery", "scar:4,1/4,used", "--fault", "kill:server:0@clock:10")...)
	if !(*lost.TestLoss < 1) {
		t.Errorf("the loss is %v after rows were lost", *lost.TestLoss)
	}
}

// TestOwnExamples uses a user's own data file, from training to predictions.
func TestOwnExamples(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	data := filepath.Join(dir, "mails.txt")
	must(t, os.WriteFile(data, []byte(strings.Repeat(
		"spam money now win\nham lunch with anna\nspam win a car\nham see you with money\n", 100)), 0o644))
	s, run := trained(t, "train", "logreg", "--quiet", "--data", data, "--clocks", "30", "--batch", "16",
		"--shards", "4")
	if *s.TestAccuracy != 1 || len(s.Findings) != 3 || !strings.HasPrefix(s.Findings[0], "AUC 1.0000") {
		t.Errorf("accuracy %v; %q", *s.TestAccuracy, s.Findings)
	}
	lines, sent := predicted(t, run, "--data", data)
	if len(lines) != 401 || !strings.Contains(sent, "accuracy 1.0000: 400 of 400") || lines[1][1] != "spam" {
		t.Errorf("%d lines; %s", len(lines), sent)
	}
	lines, sent = predicted(t, run, "--data", write(t, dir, "new", "? lunch with you\n? win win money\n"))
	if len(lines) != 3 || lines[1][1] != "ham" || lines[2][1] != "spam" || lines[1][3] != "" || sent != "" {
		t.Errorf("%q; %s", lines, sent)
	}
	made := filepath.Join(dir, "clicks.libsvm")
	wantOut(t, 0, []string{"data", "make", "ctr", "-o", made, "--lines", "500"}, "500 synthetic clicks")
	wantMadeUp(t, made)
	wantRefused(t, exitUsage, "already exists; choose another name, or add --force", "data", "make", "ctr", "-o",
		made)
	wantRefused(t, exitUsage, "choose 100 to", "data", "make", "ctr", "-o", made, "--lines", "3", "--force")
	wantRefused(t, exitError, "line 1: ", "train", "logreg", "--data", write(t, dir, "bad", "1:2 3:4\n"))
}

// wantMadeUp trains on click data from data make, and checks that every output marks the data as synthetic.
func wantMadeUp(t *testing.T, data string) {
	t.Helper()
	s, run := trained(t, "train", "logreg", "--quiet", "--data", data, "--clocks", "5", "--batch", "16", "--shards",
		"4")
	name := "synthetic data in " + data
	if s.Data != name {
		t.Errorf("the summary's data are %q", s.Data)
	}
	wantOut(t, 0, []string{"runs", "show", run}, " on synthetic data\n", name)
	page := filepath.Join(t.TempDir(), "page.md")
	wantOut(t, 0, []string{"report", run, "-o", page}, "")
	text, err := os.ReadFile(page)
	must(t, err)
	if !strings.Contains(string(text), "synthetic data in "+filepath.Base(data)) {
		t.Errorf("the report does not mark the data as synthetic:\n%s", text)
	}
	if _, sent := predicted(t, run, "--data", data); !strings.Contains(sent, "of 500 synthetic examples") {
		t.Errorf("the output of predict is %q", sent)
	}
	meta := metadata(t, filepath.Join(run, "model.safetensors"))
	if meta["data"] != "synthetic data in "+filepath.Base(data) {
		t.Errorf("the model's data are %q", meta["data"])
	}
}

func write(t testing.TB, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	must(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

// TestBowl: each clock reduces the distance to the optimum by the theoretical factor, also when processes are killed.
// Lost rows increase it.
func TestBowl(t *testing.T) {
	t.Parallel()
	flags := []string{
		"train", "quadratic", "--quiet", "--condition", "10", "--workers", "2", "--clocks", "25", "--shards", "4",
	}
	calm, run := trained(t, flags...)
	if len(calm.Findings) != 2 || !strings.Contains(calm.Findings[1], "at least 0.818182") {
		t.Errorf("%q", calm.Findings)
	}
	judged := column(t, run, "test_rmse")
	if first, last := judged[0][0], judged[len(judged)-1][0]; !(last < 0.2*first) {
		t.Errorf("the distance from x* is %v at first and %v at the end", first, last)
	}
	killed, _ := trained(t, append(flags, ldaKills...)...)
	if *killed.ModelSHA256 != *calm.ModelSHA256 {
		t.Error("the model differs after kills")
	}
	lost, _ := trained(t, append(flags, "--recovery", "scar:10,1/8", "--fault", "kill:server:0@clock:20")...)
	if !(*lost.TestRMSE > 1.5**calm.TestRMSE) {
		t.Errorf("the distance from x* is %v after rows were lost, %v undisturbed", *lost.TestRMSE, *calm.TestRMSE)
	}
	wantRefused(t, exitUsage, "condition 0.5", "train", "quadratic", "--condition", "0.5")
	wantRefused(t, exitUsage, "has no batches", "train", "quadratic", "--batch", "3")
}

// TestFullBatch: clocks over all examples reach a lower loss than clocks over a few, and survive kills.
func TestFullBatch(t *testing.T) {
	t.Parallel()
	flags := []string{
		"train", "softmax", "--quiet", "--data", pictures, "--full-batch", "--l2", "0.01", "--workers", "2", "--clocks",
		"12", "--shards", "4", "--eval-every", "0",
	}
	calm, _ := trained(t, flags...)
	killed, _ := trained(t, append(flags, "--fault", "kill:server:0@clock:5", "--fault", "kill:worker:1@clock:7")...)
	if *killed.ModelSHA256 != *calm.ModelSHA256 {
		t.Error("the model differs after kills")
	}
	wantRefused(t, exitUsage, "full batches", append(flags, "--batch", "4")...)
	wantRefused(t, exitUsage, "weight decay -1", "train", "softmax", "--l2=-1")
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	perdurelib "github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/rundir"
)

// TestInterrupt: Ctrl-C ends a run gracefully with a checkpoint of its current clock and prints how to resume it.
// --resume continues from that checkpoint, or after a kill from the last one. The model is that of an undisturbed run.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	for _, c := range brief(2, []struct {
		recovery string
		kill     bool
	}{
		{"checkpoint:10", true},
		{"chain:2,checkpoint:100000", false},
		{"checkpoint:100000", false},
		{"resend:auto", false},
	}) {
		t.Run(fmt.Sprintf("%s,kill=%t", c.recovery, c.kill), func(t *testing.T) {
			t.Parallel()
			dir := newFolder(t)
			p, code, stderr := atClock30(t, dir, "--recovery", c.recovery, "--grace", "1h"), exitSignal, ""
			if c.kill {
				p.Kill()
			} else {
				code, _, stderr = p.Stop()
			}
			cut := newestCut(t, dir)
			if code != exitSignal {
				t.Errorf("exit code %d", code)
			}
			want := fmt.Sprintf("; resuming starts at clock %d: perdure train --resume %s\n", cut, dir)
			if !c.kill && (cut < 30 || !strings.HasPrefix(stderr, "perdure: interrupted at clock ") ||
				!strings.HasSuffix(stderr, want) || strings.Count(stderr, "\n") != 1) {
				t.Errorf("the newest checkpoint is of clock %d, but the output is %q", cut, stderr)
			}

			resumesWell(t, dir, "--servers", "3")
		})
	}
}

// TestInterruptFrozen: while one worker is suspended, no checkpoint of the other workers' clock is possible. An
// interrupted run then ends when its --grace expires, or immediately at the second interrupt. It resumes from the
// previous checkpoint.
func TestInterruptFrozen(t *testing.T) {
	t.Parallel()
	for _, grace := range []string{"200ms", "1h"} {
		dir := newFolder(t)
		p := start(t, append(endless(dir), "--fault", "freeze:worker:1@clock:30", "--recovery", "checkpoint:10",
			"--grace", grace)...)
		p.Says("fault: freeze")
		wantOut(t, 0, []string{"stop", "--run", dir})
		if grace == "1h" {
			p.Signal(os.Interrupt)
		}
		code, _, stderr := p.Wait()
		cut := newestCut(t, dir)
		want := fmt.Sprintf("; no final checkpoint was made; resuming starts at clock %d: perdure train --resume %s\n",
			cut, dir)
		if code != exitSignal || cut%10 != 0 || !strings.HasPrefix(stderr, "perdure: stopped at clock ") ||
			!strings.HasSuffix(stderr, want) {
			t.Errorf("--grace %s: exit code %d, newest checkpoint of clock %d: %q", grace, code, cut, stderr)
		}
	}
}

// TestNotResumable: a run that keeps nothing to resume from says so.
func TestNotResumable(t *testing.T) {
	t.Parallel()
	for recovery, want := range map[string]string{
		"none": "keeps no checkpoints and cannot be resumed", "chain:2": "keeps no checkpoints and cannot be resumed",
	} {
		dir := newFolder(t)
		p := atClock30(t, dir, "--recovery", recovery)
		if code, _, stderr := p.Stop(); code != exitSignal || strings.Count(stderr, "\n") != 1 ||
			!strings.Contains(stderr, "a run with recovery "+recovery+" "+want) ||
			!strings.HasSuffix(stderr, "; start over with perdure train --from "+dir+"/run.json\n") {
			t.Errorf("%s: exit code %d: %q", recovery, code, stderr)
		}
	}
}

// TestFromRunJSON: a run's settings start the same run again.
func TestFromRunJSON(t *testing.T) {
	t.Parallel()
	_, dir := trained(t, small("--fault", "kill:server:0@clock:20")...)
	s, _ := trained(t, "train", "--quiet", "--from", filepath.Join(dir, "run.json"))
	if *s.ModelSHA256 != one(t) || len(s.Failures) != 1 {
		t.Errorf("model %s, want %s; failures %+v", *s.ModelSHA256, one(t), s.Failures)
	}
}

// TestNetwork: a network of several tables, trained with chains, has the same model whichever processes are killed and
// however its rows are assigned to shards. --final-relu changes the model.
func TestNetwork(t *testing.T) {
	t.Parallel()
	model := func(more ...string) string {
		s, _ := trained(t, append([]string{
			"train", "cnn", "--quiet", "--workers", "2", "--servers", "3", "--recovery", "chain:2", "--clocks", "10",
			"--batch", "4", "--eval-every", "0",
		}, more...)...)
		if len(s.Failures) != strings.Count(strings.Join(more, " "), "kill:") {
			t.Errorf("failures %+v", s.Failures)
		}
		return *s.ModelSHA256
	}
	calm := model()
	if killed := model("--fault", "kill:server:0@clock:4", "--fault", "kill:worker:1@clock:7"); killed != calm {
		t.Errorf("model %s, without failures %s", killed, calm)
	}
	layers := []string{"--partition", "layer", "--shards", "40", "--fault", "kill:server:2@clock:6"}
	if layered := model(layers...); layered != calm {
		t.Errorf("assigned by layer the model is %s, by row %s", layered, calm)
	}
	if model("--final-relu") == calm {
		t.Error("--final-relu does not change the model")
	}
}

// TestUntil: a bsp job with a goal ends at the same clock with the same model, whichever process is killed.
func TestUntil(t *testing.T) {
	t.Parallel()
	goal := []string{"--clocks", "1000", "--until", "accuracy:0.6", "--eval-every", "5"}
	calm, _ := trained(t, small(goal...)...)
	killed, _ := trained(t, small(append(goal, "--fault", "kill:server:0@clock:7", "--fault",
		"kill:worker:0@clock:9")...)...)
	if *calm.TestAccuracy < 0.5 || calm.Clocks >= 1000 || calm.Clocks < 5 {
		t.Errorf("ended at clock %d with accuracy %g", calm.Clocks, *calm.TestAccuracy)
	}
	if calm.Clocks != killed.Clocks || *calm.ModelSHA256 != *killed.ModelSHA256 {
		t.Errorf("undisturbed: clock %d, model %s; killed: clock %d, model %s", calm.Clocks, *calm.ModelSHA256,
			killed.Clocks, *killed.ModelSHA256)
	}
	if g := calm.Goal; g == nil || g.Metric != "accuracy" || g.Value != 0.6 || g.Clock != calm.Clocks ||
		*g.Met != *calm.TestAccuracy || *g.Final != *g.Met || *g.Met < 0.6 {
		t.Errorf("the goal's result is %+v, but the model of clock %d has accuracy %g", g, calm.Clocks,
			*calm.TestAccuracy)
	}
	for _, model := range []string{"ssp:2", "asp"} {
		s, _ := trained(t, small(append(goal, "--consistency", model, "--fault", "kill:server:0@clock:7")...)...)
		if g := s.Goal; g == nil || *g.Met < 0.6 || *g.Final != *s.TestAccuracy || g.Clock > s.Clocks {
			t.Errorf("%s: the goal's result is %+v, but the model of clock %d has accuracy %g", model, g, s.Clocks,
				*s.TestAccuracy)
		}
		if s.Clocks >= 1000 || *s.UpdatesLost != 0 {
			t.Errorf("%s ended at clock %d; its model lacks %d updates (negative: surplus)", model, s.Clocks,
				*s.UpdatesLost)
		}
	}
}

// TestUp runs a separate training program with `perdure up`, requests its status, kills a server and checks the result.
// With checkpoints no update is lost. Without them exactly as many are lost as the job reports.
func TestUp(t *testing.T) {
	t.Parallel()
	const shards, clocks = 4, 40
	for recovery, model := range map[string]string{"checkpoint:5": "asp,counts=bsp", "none": "bsp"} {
		t.Run(recovery, func(t *testing.T) {
			dir := newFolder(t)
			u, coordinator := up(t, dir, "--workers", "2", "--servers", "2", "--shards", strconv.Itoa(shards),
				"--consistency", model, "--recovery", recovery, "--clocks", strconv.Itoa(clocks))
			p := counter{coordinator: coordinator, dir: dir, lossless: recovery != "none"}
			p.sums = make([]float32, shards)
			must(t, errors.Join(p.both(t)()...))
			if code, _, stderr := u.Wait(); code != 0 {
				t.Errorf("perdure up: exit code %d: %s", code, stderr)
			}
			s, err := rundir.ReadSummary(dir)
			must(t, err)
			missing := int64(0)
			for _, sum := range p.sums {
				missing += int64(2*clocks - sum)
			}
			if len(s.Failures) != 1 || *s.UpdatesLost != missing || (missing == 0) != p.lossless ||
				s.ModelSHA256 == nil {
				t.Errorf("the rows lack %d updates, but the summary is %+v%s", missing, s, logs(dir))
			}
			job := perdurelib.JobSpec{Consistency: s.Consistency, TableConsistency: s.TableConsistency}
			if job.Models() != model {
				t.Errorf("the summary has the consistency models %s, want %s", job.Models(), model)
			}
		})
	}
}

// counter is a training program in which every slot adds 1 to every row in every clock.
type counter struct {
	coordinator, dir string
	calm             bool      // no failure is expected
	lossless         bool      // each row must be twice the clock whenever it is read
	sums             []float32 // what slot 0 reads at the end: one row for each shard
}

// both runs the program twice and returns a function that waits for both.
func (p *counter) both(t *testing.T) (ends func() []error) {
	programs := make(chan error, 2)
	for range 2 {
		go func() { programs <- p.run(t) }()
	}
	return func() []error { return []error{<-programs, <-programs} }
}

func (p *counter) run(t *testing.T) error {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := joins(ctx, p.dir, p.coordinator, perdurelib.NoSlot)
	if err != nil {
		return err
	}
	defer c.Close()
	table, err := c.Table(ctx, perdurelib.TableSpec{
		Name: "counts", Rows: int64(len(p.sums)), Dim: 1,
		Rule: perdurelib.Rule{Kind: perdurelib.RuleAdd},
	})
	if err != nil {
		return err
	}
	rows, ones, failed := make([]float32, len(p.sums)), make([]float32, len(p.sums)), p.calm
	for i := range ones {
		ones[i] = 1
	}
	for clock := c.Now(); clock < c.End(); {
		err := table.GetRun(ctx, 0, rows)
		if err == nil && p.lossless && slices.ContainsFunc(rows,
			func(v float32) bool { return v != float32(2*clock) }) {
			return fmt.Errorf("at clock %d the rows are %v", clock, rows)
		}
		if err == nil {
			err = table.IncRun(0, ones)
		}
		if err != nil && !errors.Is(err, perdurelib.ErrRolledBack) {
			return err
		}
		if c.Slot() == 1 && clock == 12 && !failed {
			failed = true
			if err := p.fail(ctx, t); err != nil {
				return err
			}
		}
		if clock, err = c.Clock(ctx); err != nil {
			return err
		}
	}
	if c.Slot() == 0 {
		if err := table.GetRun(ctx, 0, p.sums); err != nil {
			return err
		}
	}
	return c.Finish(ctx) // no rollback can follow: the fault is long over
}

// fail kills a server and waits until its replacement runs.
func (p *counter) fail(ctx context.Context, t *testing.T) error {
	if code, out, errs := invoke(t, "fault", "kill:server:1@0s", "--run", p.dir); code != 0 || out == "" {
		return fmt.Errorf("fault: exit code %d: %s%s", code, out, errs)
	}
	for ctx.Err() == nil {
		code, out, errs := invoke(t, "status", "--run", p.dir)
		if code != 0 {
			return fmt.Errorf("status: exit code %d: %s", code, errs)
		}
		if regexp.MustCompile(`server:1 .* incarnation 2 `).MatchString(out) {
			return nil
		}
	}
	return ctx.Err()
}

// TestStop: perdure stop ends a running job with a checkpoint to resume from.
func TestStop(t *testing.T) {
	dir := newFolder(t)
	p := atClock30(t, dir)
	wantOut(t, 0, []string{"stop", "--run", dir})
	if code, _, stderr := p.Wait(); code != exitSignal || !strings.Contains(stderr, "--resume") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	wantOut(t, 0, []string{"status", "--run", dir}, "was stopped at clock", "perdure train --resume")
}

// TestChildrenEnd: when the parent is killed, no process outlives it by more than a second.
func TestChildrenEnd(t *testing.T) {
	dir := newFolder(t)
	p := atClock30(t, dir)
	code, out, errs := invoke(t, "status", "--run", dir)
	pids := regexp.MustCompile(`pid (\d+)`).FindAllStringSubmatch(out, -1)
	used := regexp.MustCompile(`[1-9]\d* goroutines, heap (\d+\.[1-9]|[1-9])`).FindAllString(out, -1)
	if code != 0 || len(pids) != 6 || len(used) != 6 {
		t.Fatalf("status: exit code %d: %s%s", code, out, errs)
	}
	p.Kill()
	killed := time.Now()
	for _, m := range pids {
		pid, err := strconv.Atoi(m[1])
		must(t, err)
		await(t, func() bool { return !lives(pid) || time.Since(killed) > time.Second }, func() string { return "" })
		if lives(pid) {
			t.Fatalf("process %d is alive a second after its parent was killed", pid)
		}
	}
	t.Logf("all %d processes were gone after %v", len(pids), time.Since(killed))
}

// TestVersionOf: a version that the build has set is never replaced. Other builds have the version that Go records.
func TestVersionOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		set      string
		recorded *debug.BuildInfo
		want     string
	}{
		{"v0.1", &debug.BuildInfo{Main: debug.Module{Version: "v0.2"}}, "v0.1"},
		{unversioned, &debug.BuildInfo{Main: debug.Module{Version: "v0.2"}}, "v0.2"},
		{unversioned, &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}, unversioned},
		{unversioned, &debug.BuildInfo{}, unversioned},
		{unversioned, nil, unversioned},
	} {
		if got := versionOf(c.set, c.recorded); got != c.want {
			t.Errorf("%s, recorded %v: version %s; want %s", c.set, c.recorded, got, c.want)
		}
	}
}

func TestVersionAndLists(t *testing.T) {
	for args, want := range map[string]string{
		"version": "wire version", "workloads": "softmax", "data": "fashion-mnist", "--help": "train",
		"train --help": "--consistency", "completion": "",
	} {
		if code, out, errs := invoke(t, strings.Fields(args)...); code != 0 || !strings.Contains(out, want) {
			t.Errorf("perdure %s: exit code %d: %s%s", args, code, out, errs)
		}
	}
}

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	perdurelib "github.com/perdure/perdure"
)

// stoppedEndless runs an endless bsp job of 3 workers and ends it gracefully. It returns the directory and the clock
// from which another run can continue.
func stoppedEndless(t *testing.T, strategy string) (dir string, at int64) {
	t.Helper()
	dir = newFolder(t)
	atClock30(t, dir, "--recovery", strategy).Stop()
	if strategy == "stateless" {
		_, at = resumesAt(t, dir)
		return dir, at
	}
	s, err := clocks(1_000_000).Resume(dir)
	must(t, err)
	return dir, int64(s.Cut)
}

// TestResumeWorkers: a bsp run that resumes with more or fewer workers ends with the model of a run that planned the
// same change from its start. This holds under every strategy that can resume, although processes die. No update is
// lost.
func TestResumeWorkers(t *testing.T) {
	t.Parallel()
	for _, strategy := range brief(1, []string{
		"resend:10", "checkpoint:10", "chain:2,checkpoint:10", "scar:8,1/4", "stateless",
	}) {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			dir, at := stoppedEndless(t, strategy)
			for _, workers := range []int64{5, 2} {
				end := at + 20
				again := []string{
					"train", "--quiet", "--resume", dir, "--clocks", fmt.Sprint(end), "--workers",
					fmt.Sprint(workers),
				}
				want := one(t, "--clocks", fmt.Sprint(end), "--recovery", "none", "--scale",
					fmt.Sprintf("%d@clock:%d", workers, at))
				s, to := trained(t, again...)
				sameModel(t, s, want, to)
				if n := int64(s.Shards) * (3*at + workers*20); *s.UpdatesApplied != n {
					t.Errorf("%d workers: %d updates applied, want %d", workers, *s.UpdatesApplied, n)
				}
				if strategy == "scar:8,1/4" {
					again = append(again, "--fault", fmt.Sprintf("kill:worker:1@clock:%d", at+2)) // a server loses rows
				} else {
					again = append(again, "--fault", fmt.Sprintf("kill:server:0@clock:%d", at+1), "--fault",
						fmt.Sprintf("kill:worker:%d@clock:%d", workers-1, at+2), "--fault",
						fmt.Sprintf("kill:coordinator@clock:%d", at+4))
				}
				s, to = trained(t, again...)
				sameModel(t, s, want, to)
			}
		})
	}
}

// TestResumeWorkersTwice: a run that resumed with another number of workers keeps that number when it resumes again,
// also from the run that it resumed from. A fork can change the number as well. Changes that were planned for later
// clocks are dropped.
func TestResumeWorkersTwice(t *testing.T) {
	t.Parallel()
	_, dir := trained(t, small("--clocks", "30", "--scale", "2@clock:10", "--scale", "4@clock:25", "--recovery",
		"checkpoint:20", "--keep-checkpoints", "0")...)
	want := one(t, "--clocks", "40", "--scale", "2@clock:10", "--scale", "3@clock:20", "--recovery", "none")
	s, to := trained(t, "train", "--quiet", "--fork", dir+"@20", "--clocks", "40", "--workers", "3")
	sameModel(t, s, want, to)

	// It ends before it has saved anything itself.
	first := newFolder(t)
	p := start(t, "train", "--resume", dir, "--clocks", "1000000", "--workers", "5", "--recovery",
		"checkpoint:100000", "--grace", "0s", "--fault", "slow*1.01:worker:0@clock:35", "--out", first)
	p.Says("fault: slow")
	p.Stop()
	want = one(t, "--clocks", "50", "--scale", "2@clock:10", "--scale", "4@clock:25", "--scale", "5@clock:30",
		"--recovery", "none")
	s, to = trained(t, "train", "--quiet", "--resume", first, "--clocks", "50")
	sameModel(t, s, want, to)
	if _, err := os.Stat(filepath.Join(to, "logs", "worker-4.log")); err != nil {
		t.Error(err)
	}
	s, to = trained(t, "train", "--quiet", "--fork", first, "--clocks", "50")
	sameModel(t, s, want, to)
	wantRefused(t, exitUsage, fmt.Sprintf("%s was itself resumed from %s; use --resume %s --workers 5",
		filepath.Join(first, "run.json"), dir, dir), "train", "--from", filepath.Join(first, "run.json"))
	for args, want := range map[string]string{
		"--workers 0":                 "--workers 0; choose 1 to 4096",
		"--workers 4097":              "--workers 4097; choose 1 to 4096",
		"--workers 4000 --clocks 50":  `4000 workers are too many for \d+ training examples`,
		"--workers 5 --clocks 30":     "--workers 5 takes effect at clock 30, but the run ends at clock 30",
		"--workers 5 --scale 2@clock": "--scale cannot be changed with --resume",
	} {
		wantRefused(t, exitUsage, want, append([]string{"train", "--resume", dir}, strings.Fields(args)...)...)
	}
}

// TestResumeWorkersLoose: where workers are at different clocks, a run can also resume with more or fewer of them,
// although processes die. Each worker does the clocks of its membership interval and no others, and every update counts
// once.
func TestResumeWorkersLoose(t *testing.T) {
	t.Parallel()
	for _, strategy := range brief(1, []string{
		"stateless", "checkpoint:10", "resend:10", "chain:2,checkpoint:10", "scar:8,1/4",
	}) {
		for _, model := range brief(1, []string{"ssp:2", "asp"}) {
			t.Run(model+","+strategy, func(t *testing.T) {
				t.Parallel()
				dir := newFolder(t)
				p := start(t, append(endless(dir), "--consistency", model, "--recovery", strategy, "--fault",
					"slow*3:worker:1@clock:5")...)
				p.Says(`fault: slow\*1\.01`)
				p.Stop()
				for _, workers := range []int{5, 2} {
					resumedLoosely(t, dir, strategy, workers)
				}
			})
		}
	}
}

// resumedLoosely resumes a run with another number of workers for 20 clocks.
func resumedLoosely(t *testing.T, dir, strategy string, workers int) {
	t.Helper()
	asked := clocks(1_000_000)
	asked.Shape.Workers, asked.Given["workers"] = workers, true
	begins, err := asked.Resume(dir)
	must(t, err)
	var at perdurelib.Clock // where the new workers start, or the surplus ones end
	for _, interval := range begins.Slots {
		at = max(at, interval.From, interval.Until)
	}
	if at < begins.Cut || at < 1 {
		t.Fatalf("%d workers from clock %d on; the run was stopped at clock %d", workers, at, begins.Cut)
	}
	end, due := at+20, int64(0)
	for _, interval := range begins.Slots {
		due += 6 * int64(interval.Clocks(end))
		if interval.Has(end - 1) {
			workers--
		}
	}
	if workers != 0 {
		t.Errorf("%d workers are missing: %v", workers, begins.Slots)
	}
	s, to := trained(t, "train", "--quiet", "--resume", dir, "--clocks", fmt.Sprint(end), "--workers",
		fmt.Sprint(asked.Shape.Workers), "--fault", fmt.Sprintf("kill:server:0@clock:%d", begins.Cut+1), "--fault",
		fmt.Sprintf("kill:worker:0@clock:%d", at+3), "--fault", fmt.Sprintf("kill:coordinator@clock:%d", at+6))
	if *s.UpdatesApplied+*s.UpdatesLost != due || *s.UpdatesLost < 0 ||
		*s.UpdatesLost > 0 && !strings.HasPrefix(strategy, "scar") {
		t.Errorf("%d workers: %d updates applied and %d lost, of %d; %s", asked.Shape.Workers, *s.UpdatesApplied,
			*s.UpdatesLost, due, to)
	}
}

// TestResumeScaled: a run resumes in which a new worker took the slot of one that had left. No update of either is
// counted as lost or counted twice.
func TestResumeScaled(t *testing.T) {
	t.Parallel()
	for _, strategy := range brief(1, []string{"scar:8,1/4", "checkpoint:10", "stateless"}) {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			dir := newFolder(t)
			job := start(t, small("--clocks", "60", "--compute-ms", "20", "--scale", "2@clock:5", "--fault",
				stall(11), "--recovery", strategy, "--out", dir)...)
			awaitEvent(t, dir, "worker:2 has left at clock 5", 1)
			if code, out, errs := invoke(t, "scale", "--run", dir, "3", "--at", "40"); code != 0 ||
				!strings.Contains(out, "worker:2 joins; it takes part from clock 40 on") {
				t.Fatalf("exit code %d: %s%s", code, out, errs)
			}
			unstall(t, dir)
			job.succeeds(dir)
			s, to := trained(t, "train", "--quiet", "--resume", dir, "--clocks", "70")
			if due := int64(6 * (5 + 2*70 + 30)); *s.UpdatesApplied+*s.UpdatesLost != due || *s.UpdatesLost < 0 {
				t.Errorf("%d updates applied and %d lost, of %d", *s.UpdatesApplied, *s.UpdatesLost, due)
			}
			if strategy == "scar:8,1/4" {
				return // its rows return to their last saved values
			}
			sameModel(t, s, one(t, "--clocks", "70", "--scale", "2@clock:5", "--scale", "3@clock:40", "--recovery",
				"none"), to)
			again, _ := trained(t, "train", "--quiet", "--resume", to, "--clocks", "80", "--workers", "4")
			if *again.UpdatesLost != 0 {
				t.Errorf("%d updates lost when it resumed again", *again.UpdatesLost)
			}
		})
	}
}

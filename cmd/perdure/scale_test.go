package main

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// planned is a job that has 3 workers, then 5, then 2.
var planned = []string{"--scale", "5@clock:20", "--scale", "2@clock:40"}

// TestScaled: workers join and leave at the planned clocks, although processes die around then. The model is that of
// the undisturbed job.
func TestScaled(t *testing.T) {
	t.Parallel()
	want := one(t, planned...)
	if want == one(t) {
		t.Fatal("the model does not depend on the number of workers")
	}
	for _, strategy := range []string{"checkpoint:7", "chain:2"} {
		t.Run(strategy, func(t *testing.T) {
			args := append(small("--recovery", strategy), planned...)
			for _, f := range []string{
				"kill:server:0@clock:18", "kill:coordinator@clock:19", "kill:worker:1@clock:20",
				"kill:worker:4@clock:21",
				"kill:server:1@clock:38", "kill:worker:3@clock:39", "kill:coordinator@clock:40",
				"kill:worker:0@clock:41",
			} {
				args = append(args, "--fault", f)
			}
			s, dir := trained(t, args...)
			sameModel(t, s, want, dir)
			if n := int64(6 * (3*20 + 5*20 + 2*20)); *s.UpdatesApplied != n {
				t.Errorf("%d updates applied, want %d", *s.UpdatesApplied, n)
			}
			for slot := 2; slot < 5; slot++ {
				log := fileOf(t, dir, "logs", fmt.Sprintf("worker-%d.log", slot))
				says := fmt.Sprintf("worker:%d has left the job: clock 39 was its last\n", slot)
				n := strings.Count(log, says)
				late := slot == 3 && n == 0 // it died at its last clock: its replacement may start after the job's end
				if n != 1 && !late {
					t.Errorf("worker:%d does not report exactly once that it has left:\n%s", slot, log)
				}
			}
		})
	}
}

// TestScaleResumes: a run that resumes from a checkpoint continues with the workers that were active there.
func TestScaleResumes(t *testing.T) {
	t.Parallel()
	_, dir := trained(t, append(small("--clocks", "50"), planned...)...)
	s, resumed := trained(t, "train", "--quiet", "--resume", dir, "--clocks", "60")
	sameModel(t, s, one(t, planned...), resumed)
}

// TestScaleCommand: users let workers join and leave a running job, at a given clock or at the next one.
func TestScaleCommand(t *testing.T) {
	t.Parallel()
	dir := newFolder(t)
	job := start(t, small("--compute-ms", "20", "--fault", stall(1), "--fault", "kill:coordinator@clock:12",
		"--fault", "kill:worker:2@clock:11", "--out", dir)...)
	awaitEvent(t, dir, "fault: slow", 1)
	for _, args := range []string{"5 --at 20", "2 --at 40"} {
		code, out, errs := invoke(t, append([]string{"scale", "--run", dir}, strings.Fields(args)...)...)
		if code != 0 || strings.Count(out, "\n") < 2 {
			t.Errorf("scale %s: exit code %d: %s%s", args, code, out, errs)
		}
	}
	awaitEvent(t, dir, "leaves; clock 39 is its last", 3)
	unstall(t, dir)
	s := job.succeeds(dir)
	sameModel(t, s, one(t, planned...), dir) // the model with planned changes
}

// TestGuestJoins: where no slot is free, a joining worker gets a new slot. It leaves on request.
func TestGuestJoins(t *testing.T) {
	t.Parallel()
	dir := newFolder(t)
	job := start(t, joinable(dir, "slow*2:worker:0@1h", "--recovery", "chain:2", "--consistency", "ssp:2")...)
	coordinator := awaitStatus(t, dir, `training, clock [1-9](?s:.*)join it at (\S+)\n`)[1]
	guest := start(t, "worker", "--join", coordinator, "--secret-file", secretOf(dir))
	awaitStatus(t, dir, fmt.Sprintf(`worker:3 +pid %d .* live .*, from clock [1-9]`, guest.Process.Pid))
	for args, want := range map[string]string{
		"":                             `give either the number of workers`,
		"3 --leave 1":                  `give either the number of workers`,
		"-- -1":                        `number of workers -1; choose 1 to 4096`,
		"4 --at 0":                     `--at 0; choose a clock of at least 1`,
		"5 --at 1":                     `clock 1; workers are already at clock \d+`,
		"5 --at 1000000":               `clock 1000000; the job ends at clock 1000000`,
		"--leave 9":                    `there is no slot 9; the job has 4 slots`,
		"--leave=-1":                   `invalid slot -1`,
		"--leave 0,1,2,3":              `at least one must remain`,
		"--leave 0 --leave 0":          `slot 0 is listed twice`,
		"--leave 3 --leave 2147483648": `invalid slot 2147483648`,
	} {
		wantRefused(t, exitUsage, want, append([]string{"scale", "--run", dir}, strings.Fields(args)...)...)
	}
	code, out, errs := invoke(t, "scale", "--run", dir, "--leave", "3")
	if code != 0 || !regexp.MustCompile(`^worker:3 leaves; clock \d+ is its last\n$`).MatchString(out) {
		t.Errorf("scale --leave 3: exit code %d: %s%s", code, out, errs)
	}
	code, out, errs = guest.Wait()
	if want := regexp.MustCompile(`worker:3 joins the job; it takes part from clock \d+ on\n(?s:.*)worker:3 has ` +
		`left the job: clock \d+ was its last\n`); code != 0 || !want.MatchString(out) {
		t.Errorf("the unmanaged worker ended with code %d: %s%s", code, out, errs)
	}
	awaitStatus(t, dir, `worker:3 .* left .*, until clock [1-9]`)
	job.Stop()
}

// TestScaleMistakes: invalid changes are rejected before any process starts.
func TestScaleMistakes(t *testing.T) {
	for args, want := range map[string]string{
		"--scale 4":                                       `--scale "4"; write WORKERS@clock:CLOCK`,
		"--scale x@clock:3":                               `write WORKERS@clock:CLOCK`,
		"--scale 4@clock:":                                `write WORKERS@clock:CLOCK`,
		"--scale 0@clock:5":                               `too few workers \(0\); at least one must remain`,
		"--scale 4@clock:0":                               `4 workers from clock 0 on`,
		"--scale 4@clock:60":                              `4 workers from clock 60 on, but the job has clocks 0 to 60`,
		"--scale 4@clock:9 --scale 2@clock:9":             `list changes in clock order`,
		"--scale 5000@clock:9":                            `a job has at most 4096`,
		"--scale 4000@clock:9":                            `4000 workers are too many for \d+ training examples`,
		"--fault kill:worker:3@clock:5":                   `this job has 3 workers`,
		"--scale 4@clock:9 --fault kill:worker:4@clock:5": `this job has 4 workers`,
	} {
		wantRefused(t, exitUsage, want, small(append(strings.Fields(args), "--out", newFolder(t))...)...)
	}
}

// Progress kills one of two servers of a job at a clock that is drawn, under several recovery
// strategies, and says how many iterations that cost (SCAR, Qiao et al., ICML 2019). Each trial
// has an undisturbed twin: under bsp it sees the same examples in the same clocks, so that all
// that differs comes of the failure.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/perdure/perdure/internal/run/study"
)

func main() { os.Exit(study.Main("progress", conduct)) }

// task is a training program, the same in all trials but for its seed.
type task struct {
	name    string
	flags   []string
	measure string // a column of series.csv
	clocks  int
	goal    int // ε is what the undisturbed twin has at this clock
	first   int // the failure is at one of the clocks from first on, and
	last    int // below last
}

const interval = 20 // clocks between two full equivalents of a checkpoint

var (
	tasks = []task{
		{"softmax", []string{"--batch", "1000"}, "test_loss", 200, 110, 25, 95},
		{"mf", nil, "test_rmse", 140, 90, 25, 75},
	}
	arms = []string{
		"none", "checkpoint:20", "resend:20", "scar:20,1,round", "scar:20,1/8,priority", "scar:20,1/8,round",
		"scar:20,1/8,random",
	}
	// common are the flags of all runs. A clock lasts 30 ms: what is saved is recorded ten times a
	// second, and clocks that are much shorter than that would have nothing newly saved.
	common = []string{
		"--workers", "2", "--servers", "2", "--consistency", "bsp", "--eval-every", "2", "--compute-ms", "30",
	}
)

type settings struct {
	Perdure, Runs, Out string
	Remark             string
	Trials, Parallel   int
	Quick, Report      bool
}

func conduct(ctx context.Context, args []string, screen io.Writer) error {
	s, err := parseFlags(args)
	if err != nil {
		return err
	}
	trials := draw(s.Trials)
	if !s.Report {
		if err := s.run(ctx, trials, screen); err != nil {
			return err
		}
	}
	results, err := s.results(trials)
	if err != nil {
		return err
	}
	if err := write(s, study.MachineNow(), results); err != nil {
		return err
	}
	fmt.Fprintf(screen, "written: %s\n", filepath.Join(s.Out, "README.md"))
	return nil
}

func parseFlags(args []string) (s settings, err error) {
	f := flag.NewFlagSet("progress", flag.ContinueOnError)
	f.StringVar(&s.Perdure, "perdure", "bin/perdure", "the `program` that is measured")
	f.StringVar(&s.Runs, "runs", "runs/progress", "`folder` of the runs; those that are in it are not run again")
	f.StringVar(&s.Out, "out", "docs/studies/progress", "`folder` of the page and the table")
	f.StringVar(&s.Remark, "remark", "", "`text` that the page says of the runs: other work that the machine had, say")
	f.IntVar(&s.Trials, "trials", 20, "trials: seeds from 1 on")
	f.IntVar(&s.Parallel, "parallel", 4, "runs side by side")
	f.BoolVar(&s.Report, "report", false, "run nothing, write the page of the trials that are whole")
	f.BoolVar(&s.Quick, "quick", false, "a smoke test: two trials, in a folder of their own")
	if err := f.Parse(args); err != nil {
		return s, err
	}
	if s.Quick {
		err = study.Preset(f, map[string]string{
			"trials": "2", "runs": "runs/progress-quick", "out": "runs/progress-quick/page",
		})
	}
	switch {
	case err != nil:
		return s, err
	case f.NArg() > 0:
		return s, fmt.Errorf("%q is no flag", f.Arg(0))
	case s.Trials < 2 || s.Parallel < 1:
		return s, fmt.Errorf("-trials %d -parallel %d; choose 2 trials and 1 run at least", s.Trials, s.Parallel)
	}
	return s, nil
}

// job is one run.
type job struct {
	name string
	args []string
}

// job returns the run of a trial under a strategy; "": its undisturbed twin.
func (tr *trial) job(arm string) job {
	args := append([]string{"train", tr.name, "--quiet"}, common...)
	args = append(args, tr.flags...)
	args = append(args, "--clocks", fmt.Sprint(tr.clocks), "--seed", fmt.Sprint(tr.seed))
	name := fmt.Sprintf("%s-%02d-twin", tr.name, tr.seed)
	if arm == "" {
		return job{name, append(args, "--recovery", "none")}
	}
	word := strings.NewReplacer(":", "-", ",", "-", "/", "").Replace(arm)
	fault := fmt.Sprintf("kill:server:%d@clock:%d", tr.victim, tr.kill)
	return job{fmt.Sprintf("%s-%02d-%s", tr.name, tr.seed, word), append(args, "--recovery", arm, "--fault", fault)}
}

func (s *settings) folder(j job) string { return study.Folder(s.Runs, j.name, j.args) }

// run runs what has not been run.
func (s *settings) run(ctx context.Context, trials []trial, screen io.Writer) error {
	var jobs []job
	for i := range trials {
		for _, arm := range append([]string{""}, arms...) {
			j := trials[i].job(arm)
			if _, err := os.Stat(filepath.Join(s.folder(j), "summary.json")); err != nil {
				jobs = append(jobs, j)
			}
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan job)
	var all sync.WaitGroup
	for range s.Parallel {
		all.Go(func() {
			for j := range next {
				if err := s.runOne(ctx, j); err != nil {
					cancel(err)
				}
			}
		})
	}
	for i, j := range jobs {
		select {
		case next <- j:
			fmt.Fprintf(screen, "%4d/%d  %s\n", i+1, len(jobs), j.name)
		case <-ctx.Done():
		}
	}
	close(next)
	all.Wait()
	return context.Cause(ctx)
}

// most is how long a run may take.
const most = 5 * time.Minute

func (s *settings) runOne(ctx context.Context, j job) error {
	text, late, err := study.Run(ctx, s.Perdure, j.args, s.folder(j), most)
	if late {
		return fmt.Errorf("%s did not end within %v:\n%s", j.name, most, text)
	}
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", j.name, err, text)
	}
	return nil
}

package study

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/plot"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/runs"
	"github.com/perdure/perdure/internal/run/study/failurecost"
)

// ExecuteOptions configures how a study is run.
type ExecuteOptions struct {
	Program   Program
	Folder    string // for all runs of the study
	Parallel  int    // runs at a time
	KeepGoing bool   // continue after a failed run
	Mixed     bool   // accept runs of another build
	Screen    io.Writer
}

// ErrFailed is returned if a run has failed. The failure is also reported on the screen.
var ErrFailed = errors.New("a run has failed")

// run is a cell with a seed, and how it ended.
type run struct {
	cell   *Cell
	seed   uint64
	folder string
	args   []string
	done   *runRecord // nil if not finished
	trial  Trial      // valid unless the run failed
}

// Trial is a run that completed.
type Trial struct {
	Seed    uint64             `json:"seed"`
	Folder  string             `json:"folder"`
	Build   string             `json:"build"`
	Model   *string            `json:"model_sha256"` // null without a model
	Figures map[string]float64 `json:"figures"`
}

// FailedRun is a run that did not complete.
type FailedRun struct {
	Seed   uint64 `json:"seed"`
	Folder string `json:"folder"`
	Why    string `json:"why"`
}

// executor executes a study. mu guards done and trial of all runs.
type executor struct {
	*Study
	ExecuteOptions

	mu   sync.Mutex
	runs []*run // ordered by seed, so that each cell gets its first trial early
}

// Execute executes the missing runs of a study and returns its results, even if it was interrupted.
func (s *Study) Execute(ctx context.Context, how ExecuteOptions) (*Results, error) {
	lock, err := hold(how.Folder)
	if err != nil {
		return nil, err
	}
	defer lock.Close() // the process's end also releases it
	c, err := s.newExecutor(how)
	if err != nil {
		return nil, err
	}
	if n := len(c.finished()); n > 0 {
		fmt.Fprintf(c.Screen, "%d of %d runs are already finished\n", n, len(c.runs))
	}
	err = c.doAll(ctx)
	results, err2 := c.results()
	return results, errors.Join(err, err2)
}

// Collect returns the results of the finished runs of any build, without running anything. The study may be running.
func (s *Study) Collect(dir string) (*Results, error) {
	c, err := s.newExecutor(ExecuteOptions{Folder: dir, Mixed: true})
	if err != nil {
		return nil, err
	}
	if len(c.finished()) == 0 {
		return nil, perdure.Usagef("no run of the study has finished in %s", dir)
	}
	return c.results()
}

// newExecutor collects the finished runs. It returns an error if some are of another build, unless how.Mixed is set.
func (s *Study) newExecutor(how ExecuteOptions) (*executor, error) {
	c := &executor{Study: s, ExecuteOptions: how}
	others, other := 0, (*runRecord)(nil)
	for _, seed := range s.Seeds {
		for _, cell := range s.Cells {
			args, err := cell.Args(seed)
			if err != nil {
				return nil, err
			}
			r := &run{cell: cell, seed: seed, folder: filepath.Join(c.Folder, cell.Name, seedName(seed)), args: args}
			c.runs = append(c.runs, r)
			d, err := readRunRecord(r.folder)
			if err != nil {
				return nil, err
			}
			if d == nil || !slices.Equal(d.Args, args) {
				continue
			}
			if d.Build != c.Program.Build {
				others, other = others+1, d
			}
			c.record(r, d)
		}
	}
	if others > 0 && !c.Mixed {
		return nil, errMixed(others, other, &c.Program, c.Folder)
	}
	return c, nil
}

// finished returns the runs that are finished. The caller must hold mu while runs are in progress.
func (c *executor) finished() []*run {
	return plot.Where(c.runs, func(r *run) bool { return r.done != nil })
}

// doAll executes the missing runs. After the first error it starts no more runs and waits for those in progress.
func (c *executor) doAll(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	places := make(chan struct{}, max(1, c.Parallel))
	var running sync.WaitGroup
	for _, r := range plot.Where(c.runs, func(r *run) bool { return r.done == nil }) {
		places <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		program, err := c.sameProgram()
		if err != nil {
			cancel(err)
			break
		}
		running.Go(func() {
			defer func() { <-places }()
			if err := c.do(ctx, r, program); err != nil {
				cancel(err)
			}
		})
	}
	running.Wait()
	return context.Cause(ctx)
}

// sameProgram returns the program to run. It returns an error if the program was rebuilt meanwhile, unless c.Mixed is
// set.
func (c *executor) sameProgram() (p Program, err error) {
	if !c.Program.changed() {
		return c.Program, nil
	}
	if !c.Mixed {
		return p, perdure.Usagef("the program %s changed while the study ran, so its runs would come from two "+
			"builds: add --mixed to continue anyway, or --out for another directory", c.Program.Path)
	}
	c.Program, err = OpenProgram(c.Program.Path, c.Program.Version)
	return c.Program, err
}

// do executes one run and prints a line about it.
func (c *executor) do(ctx context.Context, r *run, program Program) error {
	if _, err := rundir.CheckEnded(r.folder); errors.Is(err, rundir.ErrRunning) {
		return perdure.Usagef("the run in %s is still running: wait until it has ended, or stop it with perdure stop "+
			"--run %s", r.folder, r.folder)
	}
	if err := os.Remove(r.folder + recordExt); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	began := time.Now()
	command, err := r.cell.commandLine(r.seed, r.folder)
	if err != nil {
		return err
	}
	text, late, err := failurecost.RunProgram(ctx, program.Path, command, r.folder, c.Timeout)
	if ctx.Err() != nil {
		return context.Cause(ctx) // interrupted: the next attempt starts it again
	}
	d := runRecord{
		Args: r.args, Version: program.Version, Build: program.Build, Seconds: time.Since(began).Seconds(),
		Ended: time.Now(),
	}
	switch {
	case late:
		d.Why = fmt.Sprintf("it took longer than %v", c.Timeout)
	case err != nil && !c.found(r.folder):
		d.Why = cmp.Or(strings.TrimPrefix(lastLine(text), "perdure: "), err.Error())
	}
	if err := os.MkdirAll(r.folder, 0o777); err != nil { // a rejected run has no directory
		return err
	}
	if err := writeJSON(r.folder+recordExt, d); err != nil {
		return err
	}
	c.record(r, &d)
	c.printRun(r)
	if d.Why != "" && !c.KeepGoing {
		return fmt.Errorf("%w: %s: %s; run the same command again to continue with the next run, or use "+
			"--keep-going", ErrFailed,
			r.folder, d.Why)
	}
	return nil
}

// found reports whether a run that returned an error has a result nevertheless. A study of losses returns an error if
// trials repeated with real servers ended differently. That is a result, which the table shows.
func (c *executor) found(dir string) bool {
	if c.Kind.Name != KindLosses {
		return false
	}
	_, err := failurecost.Read(dir)
	return err == nil
}

// commandLine returns the arguments of a run. It omits the last checkpoint, because interrupted runs start again.
func (c *Cell) commandLine(seed uint64, dir string) ([]string, error) {
	args, err := c.trainArgs(seed)
	if c.kind.Name == KindTrain {
		if !slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "--grace=") }) {
			args = append(args, "--grace=0s")
		}
		args = append(args, "--quiet")
	}
	return slices.Concat(c.kind.Command, c.line(args, dir)), err
}

// record records how a run ended, and reads its results.
func (c *executor) record(r *run, d *runRecord) {
	t := Trial{Seed: r.seed, Folder: r.folder, Build: d.Build}
	if d.Why == "" {
		if err := c.read(&t); err != nil {
			d.Why = humanize.ErrorText(err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	r.done, r.trial = d, t
}

// read reads the results of a run.
func (c *executor) read(t *Trial) error {
	if c.Kind.Name == KindLosses {
		t.Figures = map[string]float64{}
		_, err := failurecost.Read(t.Folder)
		return err
	}
	s, err := rundir.ReadSummary(t.Folder)
	if err != nil {
		return fmt.Errorf("cannot read its summary: %w", err)
	}
	t.Figures, t.Model = figuresOf(&s), s.ModelSHA256
	c.price(t.Folder, t.Figures)
	return nil
}

// price adds the costs of a run to its figures, if there are prices.
func (c *executor) price(dir string, figures map[string]float64) {
	bill := runs.Read(dir).Cost(c.prices)
	if bill == nil {
		return
	}
	for name, dollars := range map[string]*float64{
		"cost": bill.OnDemand, "cost-spot": bill.Spot, "cost-month": bill.Month,
	} {
		if dollars != nil {
			figures[name] = *dollars
		}
	}
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}

// printRun prints a line about a finished run. The remaining time is estimated from the mean duration of finished runs.
func (c *executor) printRun(r *run) {
	c.mu.Lock()
	defer c.mu.Unlock()
	what := fmt.Sprintf("%.1f s", r.done.Seconds)
	if r.done.Why != "" {
		what = "failed: " + r.done.Why
	}
	finished, left := c.finished(), ""
	if n := len(finished); n < len(c.runs) {
		seconds := 0.0
		for _, f := range finished {
			seconds += f.done.Seconds
		}
		seconds *= float64(len(c.runs)-n) / float64(n*max(1, c.Parallel))
		left = "; " + humanize.Roughly(time.Duration(seconds*float64(time.Second))) + " left"
	}
	fmt.Fprintf(c.Screen, "%4d/%d  %s seed %d: %s%s\n", len(finished), len(c.runs), r.cell.Name, r.seed, what, left)
}

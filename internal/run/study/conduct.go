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
	"github.com/perdure/perdure/internal/run/plain"
	"github.com/perdure/perdure/internal/run/plot"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/runs"
	"github.com/perdure/perdure/internal/run/study/failurecost"
)

// Conducting is how a study is run.
type Conducting struct {
	Program   Program
	Folder    string // of all runs of the study
	Parallel  int    // runs at a time
	KeepGoing bool   // after a run that failed
	Mixed     bool   // runs of another build count
	Screen    io.Writer
}

// ErrFailed is returned when a run has failed, which is told on the screen.
var ErrFailed = errors.New("a run has failed")

// run is one that is to be done.
type run struct {
	cell   *Cell
	seed   uint64
	folder string
	args   []string
}

// Trial is a run that came to its end.
type Trial struct {
	Seed    uint64             `json:"seed"`
	Folder  string             `json:"folder"`
	Build   string             `json:"build"`
	Model   *string            `json:"model_sha256"` // null: there is none
	Figures map[string]float64 `json:"figures"`
}

// Failed is a run that did not.
type Failed struct {
	Seed   uint64 `json:"seed"`
	Folder string `json:"folder"`
	Why    string `json:"why"`
}

// conductor runs what is to be run. The lock guards what is known of the runs that are done.
type conductor struct {
	*Study
	Conducting

	mu     sync.Mutex
	trials map[*Cell][]Trial
	failed map[*Cell][]Failed
	took   map[*Cell][]float64 // seconds of each run, that of its processes included
	spans  []span              // when each run began and ended
	by     []string            // versions of perdure that ran them
	total  int
	count  int
}

// Conduct runs a study, as far as it is not done, and returns its results, also of one that was interrupted.
func (s *Study) Conduct(ctx context.Context, how Conducting) (*Results, error) {
	c := s.conductor(how)
	lock, err := hold(how.Folder)
	if err != nil {
		return nil, err
	}
	defer lock.Close() // it ends with the process anyway
	all, err := c.asked()
	if err != nil {
		return nil, err
	}
	if err := c.takeDone(all); err != nil {
		return nil, err
	}
	if c.count > 0 {
		fmt.Fprintf(c.Screen, "%d of %d runs are done already\n", c.count, c.total)
	}
	err = c.doAll(ctx, all)
	for err == nil && s.Stop != nil {
		more, err2 := c.more()
		if err = err2; err != nil || len(more) == 0 {
			break
		}
		if err = c.takeDone(more); err == nil {
			err = c.doAll(ctx, more)
		}
	}
	results, err2 := c.results()
	return results, errors.Join(err, err2)
}

// Collect returns the results of what is done of a study, of whatever build, and runs nothing: also while the study
// goes on.
func (s *Study) Collect(folder string) (*Results, error) {
	c := s.conductor(Conducting{Folder: folder, Mixed: true, Screen: io.Discard})
	runs, err := c.asked()
	for err == nil && len(runs) > 0 {
		had := c.count
		if err = c.takeDone(runs); err != nil || s.Stop == nil || c.count == had {
			break
		}
		runs, err = c.more()
	}
	if err != nil {
		return nil, err
	}
	if c.count == 0 {
		return nil, fmt.Errorf("%w: no run of the study is done in %s", perdure.ErrUsage, folder)
	}
	return c.results()
}

func (s *Study) conductor(how Conducting) *conductor {
	return &conductor{
		Study: s, Conducting: how, trials: map[*Cell][]Trial{}, failed: map[*Cell][]Failed{},
		took: map[*Cell][]float64{},
	}
}

// asked are the runs that the study's file asks for, by seed, so that each cell has its first trial early.
func (c *conductor) asked() (all []run, err error) {
	for _, seed := range c.Seeds {
		for _, cell := range c.Cells {
			r, err := c.run(cell, seed)
			if err != nil {
				return nil, err
			}
			all = append(all, r)
		}
	}
	return all, nil
}

func (c *conductor) run(cell *Cell, seed uint64) (run, error) {
	args, err := cell.Args(seed)
	return run{cell, seed, filepath.Join(c.Folder, cell.Name, seedName(seed)), args}, err
}

// more are the next seeds of cells whose interval is too wide.
func (c *conductor) more() (runs []run, err error) {
	for _, cell := range c.Cells {
		tried := len(c.trials[cell]) + len(c.failed[cell])
		if tried >= c.Stop.Seeds || c.Stop.enough(c.trials[cell]) {
			continue
		}
		seed := slices.Max(c.Seeds) + uint64(tried-len(c.Seeds)) + 1
		r, err := c.run(cell, seed)
		if err != nil {
			return nil, err
		}
		runs = append(runs, r)
	}
	return runs, nil
}

// takeDone takes over the runs that are done, and refuses those of another build.
func (c *conductor) takeDone(runs []run) error {
	others, other := 0, (*done)(nil)
	for _, r := range runs {
		c.total++
		d, err := readDone(r.folder)
		if err != nil {
			return err
		}
		if d == nil || !d.same(r.args) {
			continue
		}
		if d.Build != c.Program.Build {
			others, other = others+1, d
		}
		if err := c.record(&r, d); err != nil {
			return err
		}
	}
	if others > 0 && !c.Mixed {
		return errMixed(others, other, &c.Program, c.Folder)
	}
	return nil
}

// isDone reports whether a run is among those that were taken over or done.
func (c *conductor) isDone(r *run) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.trials[r.cell], func(t Trial) bool { return t.Seed == r.seed }) ||
		slices.ContainsFunc(c.failed[r.cell], func(f Failed) bool { return f.Seed == r.seed })
}

// doAll does what is not done. The first error ends it, when the runs that have begun are over.
func (c *conductor) doAll(ctx context.Context, all []run) error {
	all = plot.Where(all, func(r run) bool { return !c.isDone(&r) })
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	places := make(chan struct{}, max(1, c.Parallel))
	var running sync.WaitGroup
	for i := range all {
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
			line, err := c.do(ctx, &all[i], program)
			if line != "" {
				c.tell(line, all)
			}
			if err != nil {
				cancel(err)
			}
		})
	}
	running.Wait()
	return context.Cause(ctx)
}

// sameProgram returns the program that runs, which may have been built anew meanwhile.
func (c *conductor) sameProgram() (p Program, err error) {
	if !c.Program.changed() {
		return c.Program, nil
	}
	if !c.Mixed {
		return p, fmt.Errorf("%w: the program %s was changed while the study ran; its runs would be of two builds: "+
			"add --mixed to go on all the same, or --out for another folder", perdure.ErrUsage, c.Program.Path)
	}
	c.Program, err = OpenProgram(c.Program.Path, c.Program.Version)
	return c.Program, err
}

// do does one run, and says in a line how it went.
func (c *conductor) do(ctx context.Context, r *run, program Program) (line string, err error) {
	if _, err := rundir.Alive(r.folder); errors.Is(err, rundir.ErrAlive) {
		return "", fmt.Errorf("%w: the run in %s goes on: wait until it has ended, or stop it with perdure stop "+
			"--run %s", perdure.ErrUsage, r.folder, r.folder)
	}
	if err := os.Remove(r.folder + doneEnd); err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	began := time.Now()
	command, err := r.cell.commandLine(r.seed, r.folder)
	if err != nil {
		return "", err
	}
	text, late, err := failurecost.RunProgram(ctx, program.Path, command, r.folder, c.Timeout)
	if ctx.Err() != nil {
		return "", context.Cause(ctx) // interrupted: it is begun again
	}
	d := done{
		Args: r.args, Version: program.Version, Build: program.Build, Seconds: time.Since(began).Seconds(),
		Ended: time.Now(),
	}
	switch {
	case late:
		d.Why = fmt.Sprintf("it took longer than %v", c.Timeout)
	case err != nil && !c.found(r.folder):
		d.Why = cmp.Or(strings.TrimPrefix(lastLine(text), "perdure: "), err.Error())
	}
	if err := os.MkdirAll(r.folder, 0o777); err != nil { // of a run that was refused
		return "", err
	}
	if err := writeJSON(r.folder+doneEnd, d); err != nil {
		return "", err
	}
	if err := c.record(r, &d); err != nil {
		return "", err
	}
	if d.Why != "" && !c.KeepGoing {
		return c.lineOf(r, &d), fmt.Errorf("%w: %s: %s; the same command goes on behind it, and --keep-going does at "+
			"once", ErrFailed, r.folder, d.Why)
	}
	return c.lineOf(r, &d), nil
}

// found reports whether a run that ended with an error has found all the same what it was to find: in a study of losses
// trials that were repeated with real servers ended otherwise, which is a result, and the table tells it.
func (c *conductor) found(folder string) bool {
	if c.Kind.Name != OfLosses {
		return false
	}
	_, err := failurecost.Read(folder)
	return err == nil
}

// commandLine is that of a run. A job that is interrupted is begun again, and needs no last checkpoint.
func (c *Cell) commandLine(seed uint64, folder string) ([]string, error) {
	args, err := c.trainArgs(seed)
	if c.kind.Name == OfTrain {
		if !slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "--grace=") }) {
			args = append(args, "--grace=0s")
		}
		args = append(args, "--quiet")
	}
	return slices.Concat(c.kind.Command, c.line(args, folder)), err
}

// record takes a run over that is done.
func (c *conductor) record(r *run, d *done) error {
	t := Trial{Seed: r.seed, Folder: r.folder, Build: d.Build}
	if d.Why == "" {
		if err := c.read(&t); err != nil {
			d.Why = plain.Text(err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count++
	c.spans = append(c.spans, d.span())
	if !slices.Contains(c.by, d.Version) {
		c.by = append(c.by, d.Version)
	}
	if d.Why != "" {
		c.failed[r.cell] = append(c.failed[r.cell], Failed{r.seed, r.folder, d.Why})
		return nil
	}
	c.trials[r.cell] = append(c.trials[r.cell], t)
	c.took[r.cell] = append(c.took[r.cell], d.Seconds)
	return nil
}

// read reads what a run has left.
func (c *conductor) read(t *Trial) error {
	if c.Kind.Name == OfLosses {
		t.Figures = map[string]float64{}
		_, err := failurecost.Read(t.Folder)
		return err
	}
	s, err := rundir.ReadSummary(t.Folder)
	if err != nil {
		return fmt.Errorf("its summary cannot be read: %w", err)
	}
	t.Figures, t.Model = figuresOf(&s), s.ModelSHA256
	c.price(t.Folder, t.Figures)
	return nil
}

// price puts what a run cost among its figures, as far as there are prices.
func (c *conductor) price(folder string, figures map[string]float64) {
	bill := runs.Read(folder).Cost(c.prices)
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

func (c *conductor) lineOf(r *run, d *done) string {
	what := fmt.Sprintf("%.1f s", d.Seconds)
	if d.Why != "" {
		what = "failed: " + d.Why
	}
	return fmt.Sprintf("%s seed %d: %s", r.cell.Name, r.seed, what)
}

// tell prints a line of progress.
func (c *conductor) tell(line string, all []run) {
	c.mu.Lock()
	defer c.mu.Unlock()
	left := ""
	if c.count < c.total {
		left = "; " + plain.Roughly(c.left(all)) + " left"
	}
	fmt.Fprintf(c.Screen, "%4d/%d  %s%s\n", c.count, c.total, line, left)
}

// left is how long what is not done will take: of each run the median of its cell, or of all. It needs mu.
func (c *conductor) left(all []run) time.Duration {
	var every []float64
	for _, took := range c.took {
		every = append(every, took...)
	}
	if len(every) == 0 {
		return 0
	}
	usual, seconds := plot.SpreadOf(every).Mid, 0.0
	over := map[*Cell]int{} // runs that are done
	for cell := range c.trials {
		over[cell] += len(c.trials[cell])
	}
	for cell := range c.failed {
		over[cell] += len(c.failed[cell])
	}
	for _, cell := range c.Cells {
		each := usual
		if took := c.took[cell]; len(took) > 0 {
			each = plot.SpreadOf(took).Mid
		}
		asked := len(c.Seeds)
		for i := range all {
			if all[i].cell == cell && !slices.Contains(c.Seeds, all[i].seed) {
				asked = int(all[i].seed-slices.Max(c.Seeds)) + len(c.Seeds)
			}
		}
		seconds += each * float64(max(0, asked-over[cell]))
	}
	return time.Duration(seconds / float64(max(1, c.Parallel)) * float64(time.Second))
}

package failurecost

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/run/rundir"
)

// Repeat is a trial repeated with real processes.
type Repeat struct {
	Trial
	Same  bool   `json:"same"`  // the model equals that of the trial after the same clocks
	Tries int    `json:"tries"` // attempts until it was equal, or all attempts
	Why   string `json:"why,omitempty"`
}

// RealRuns repeats trials with perdure train and kills servers in the middle of a clock, after all workers have read
// and before any has sent its update.
type RealRuns struct {
	Program string
	Args    []string // of perdure train, for the twins
	Folder  string   // for the runs; they are removed afterwards
	Count   int
}

const (
	afterwards = 3                // clocks that a repeated trial continues after its failure
	computeMs  = 500              // of each clock; each further attempt adds as much
	maxTries   = 5                // on a busy machine some workers may not have read by then
	patience   = 10 * time.Minute // limit for a run
)

// Repeat repeats a random choice of the trials that qualify: those without a round of saves at the clock of a failure.
func (p *Plan) Repeat(ctx context.Context, r *Result, real *RealRuns, screen io.Writer) error {
	var can []Trial
	for _, t := range r.Trials {
		if t.arm.saves() && isRepeatable(t.arm.Recovery, t.Failures) && p.SavedAs == SavedWhole &&
			p.Lose == LoseServers {
			can = append(can, t)
		}
	}
	rng := rand.New(rand.NewPCG(p.Run.Job.Seed, 0x2ea1))
	rng.Shuffle(len(can), func(i, j int) { can[i], can[j] = can[j], can[i] })
	c := &executor{Plan: p}
	for i, t := range can[:min(real.Count, len(can))] {
		want, err := c.model(ctx, &t)
		if err != nil {
			return err
		}
		rep := Repeat{Trial: t}
		for rep.Tries < maxTries && !rep.Same {
			rep.Tries++
			if rep.Same, rep.Why, err = real.run(ctx, &t, rep.Tries*computeMs, want); err != nil {
				return err
			}
		}
		r.Repeats = append(r.Repeats, rep)
		fmt.Fprintf(screen, "%d/%d  with real servers: %s, %g lost at clock %d, seed %d: same model %v %s\n", i+1,
			min(real.Count, len(can)), t.Strategy, t.Lost, t.Failures[0].Clock, t.Seed, rep.Same, rep.Why)
	}
	return nil
}

// last returns the clock of the last failure.
func (t *Trial) last() perdure.Clock { return t.Failures[len(t.Failures)-1].Clock }

// isRepeatable reports whether no round of saves is due at the clock of a failure, and none before the previous round
// may be over. A real server may die before a round that is due is recorded.
func isRepeatable(r perdure.Recovery, failures []Failure) bool {
	due := recovery.RoundsOf(r)
	for i, f := range failures {
		if due.Done(f.Clock) != due.Done(f.Clock-1) || i > 0 && f.Clock < failures[i-1].Clock+afterwards {
			return false
		}
	}
	return true
}

// model returns the hash of a trial's model, some clocks after its failure.
func (c *executor) model(ctx context.Context, tr *Trial) (string, error) {
	if err := c.open(tr.Seed); err != nil {
		return "", err
	}
	run := c.runSettings(tr.Seed, tr.arm.Recovery)
	t, err := NewTraining(&run, <-c.crews)
	if err != nil {
		return "", err
	}
	left := tr.Failures
	for t.Clock < tr.last()+afterwards {
		lose := func() error { return nil }
		if len(left) > 0 && t.Clock == left[0].Clock {
			f := &left[0]
			lose, left = func() error { return t.Lose(f.lost(t.Job)) }, left[1:]
		}
		if _, err := t.Compute(ctx); err != nil {
			return "", err
		}
		if err := errors.Join(lose(), t.Apply()); err != nil {
			return "", err
		}
	}
	return t.Hash()
}

// run runs a trial with real processes. It reports whether the model is the same and, if not, the reason.
func (real *RealRuns) run(ctx context.Context, t *Trial, ms int, want string) (same bool, why string, err error) {
	dir := filepath.Join(real.Folder, fmt.Sprintf("real-%d", time.Now().UnixNano()))
	defer os.RemoveAll(dir)
	args := append([]string{"train"}, real.Args...)
	args = append(args, fmt.Sprintf("--seed=%d", t.Seed), "--recovery="+t.Strategy,
		fmt.Sprintf("--clocks=%d", t.last()+afterwards), fmt.Sprintf("--compute-ms=%d", ms),
		"--eval-every=1000000", "--quiet", "--out="+dir)
	for _, f := range t.Failures {
		for _, server := range f.Servers {
			args = append(args, fmt.Sprintf("--fault=kill:server:%d@clock:%d,%dms", server, f.Clock, ms/2))
		}
	}
	text, late, err := RunProgram(ctx, real.Program, args, dir, patience)
	switch {
	case ctx.Err() != nil:
		return false, "", context.Cause(ctx)
	case late:
		return false, fmt.Sprintf("it took longer than %v", patience), nil
	case err != nil:
		lines := strings.Split(strings.TrimSpace(text), "\n")
		return false, lines[len(lines)-1], nil
	}
	sum, err := rundir.ReadSummary(dir)
	if err != nil || sum.ModelSHA256 == nil {
		return false, "the run has no model", err
	}
	if *sum.ModelSHA256 != want {
		return false, "a different model", nil
	}
	return true, "", nil
}

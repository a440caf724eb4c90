package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/perdure/perdure/internal/run/study"
)

// evaluations is how many times a run measures its loss, about.
const evaluations = 40

// run is one job of the study.
type run struct {
	Part      string
	Model     string  // as --consistency wants it
	Fraction  float64 // of the data in one clock; 0: the workload's own batch
	Seed      int
	Rate      float64 // step size
	Clocks    int
	ComputeMs int
	Fault     string // "": none
}

// arguments are those of perdure for the run, without its folder.
func (r run) arguments(s settings) []string {
	every := max(1, r.Clocks/evaluations)
	if !r.judged() {
		every = 0 // evaluations take the first worker's time
	}
	args := []string{
		"train", s.Workload, "--workers", strconv.Itoa(s.Workers), "--servers", "1", "--recovery", "none",
		"--consistency", r.Model, "--clocks", strconv.Itoa(r.Clocks), "--eval-every", strconv.Itoa(every),
		"--lr", study.Format(r.Rate), "--seed", strconv.Itoa(r.Seed), "--quiet",
	}
	add := func(wanted bool, flag, value string) {
		if wanted {
			args = append(args, flag, value)
		}
	}
	add(s.Data != "", "--data", s.Data)
	add(r.Fraction > 0, "--clock-fraction", study.Format(r.Fraction))
	add(s.Rank > 0, "--rank", strconv.Itoa(s.Rank))
	add(r.ComputeMs > 0, "--compute-ms", strconv.Itoa(r.ComputeMs))
	add(r.Fault != "", "--fault", r.Fault)
	return args
}

// judged reports whether the run's losses are wanted.
func (r run) judged() bool { return r.Part != differentials && r.Part != timeSplit }

// folder is named for all that the run depends on: other settings, another folder.
func (r run) folder(s settings) string {
	name := fmt.Sprintf("%s-seed-%d", strings.ReplaceAll(r.Model, ":", "-"), r.Seed)
	return study.Folder(filepath.Join(s.Runs, r.Part), name, r.arguments(s))
}

// String is the run in a line of progress.
func (r run) String() string {
	return strings.TrimSpace(fmt.Sprintf("%-13s %4s  %-8s  step %-7s seed %d", r.Part, study.Percent(r.Fraction),
		r.Model, study.Format(r.Rate), r.Seed))
}

// plan lists the runs of all parts but the search for the step size, which comes
// first: rates has its results, by fraction.
func (s settings) plan(rates map[float64]float64) (runs []run) {
	bounded := func(staleness []int) []string {
		models := s.only([]string{"bsp"})
		for _, n := range staleness {
			models = append(models, s.only([]string{fmt.Sprintf("ssp:%d", n), fmt.Sprintf("essp:%d", n)})...)
		}
		return models
	}
	add := func(models []string, seeds []int, r run) {
		for _, seed := range seeds { // the outer loop: a study that is stopped has all models
			for _, model := range models {
				r.Model, r.Seed = model, seed
				runs = append(runs, r)
			}
		}
	}
	fraction, clocks := s.Fractions[0], s.Clocks[0]
	gentle := study.Round(rates[fraction] * s.Gentle)
	for _, part := range s.Parts {
		r := run{Part: part, Fraction: fraction, Clocks: clocks, Rate: gentle, ComputeMs: s.ComputeMs}
		switch part {
		case differentials:
			// With much of the data in a clock nearly every row is read in every clock, so
			// that how old the rows are is up to the model and not to who reads when.
			last := len(s.Fractions) - 1
			r.Fraction, r.Clocks, r.Rate = s.Fractions[last], s.Clocks[last],
				study.Round(rates[s.Fractions[last]]*s.Gentle)
			r.Fault = s.Jitter
			add(bounded(s.Staleness), s.Seeds[:1], r)
			if r.Fault != "" {
				r.Fault = ""
				add(bounded(s.Staleness), s.Seeds[:1], r)
			}
		case convergence:
			r.Fault = s.Straggler
			for i, f := range s.Fractions {
				r.Fraction, r.Clocks, r.Rate = f, s.Clocks[i], study.Round(rates[f]*s.Share)
				add(bounded(s.Staleness), s.Seeds, r)
			}
		case timeSplit:
			models := append(bounded(s.Split), s.only([]string{"asp"})...)
			r.Fault = s.Jitter
			add(models, s.Seeds[:1], r)
			r.Fault, r.ComputeMs = "", 0
			add(models, s.Seeds[:1], r)
		case timeToLoss:
			r.Fault = s.Straggler
			add(s.raced(), s.Seeds, r)
		}
	}
	return runs
}

// raced are the models of time-to-loss.
func (s settings) raced() []string {
	models := []string{"bsp", "ssp:3", "essp:3"}
	for _, v := range s.Bounds {
		models = append(models, "vap:"+study.Format(v))
	}
	return s.only(append(models, "asp"))
}

// only keeps the models of the kinds that were asked for.
func (s settings) only(models []string) []string {
	return slices.DeleteFunc(models, func(m string) bool { return !slices.Contains(s.Kinds, kind(m)) })
}

func kind(model string) string {
	k, _, _ := strings.Cut(model, ":")
	return k
}

// runner runs what has not run yet.
type runner struct {
	settings settings
	screen   io.Writer
	results  map[string]*result // by folder
}

// of returns the runs' results, without those that there are none of.
func (rn *runner) of(runs []run) (results []*result) {
	for _, r := range runs {
		if res := rn.results[r.folder(rn.settings)]; res != nil {
			results = append(results, res)
		}
	}
	return results
}

// runAll runs what has no result yet, and says how it goes and how long it will.
func (rn *runner) runAll(ctx context.Context, runs []run) error {
	var missing []run
	for _, r := range runs {
		if res, err := rn.read(r); err != nil {
			return err
		} else if res == nil {
			missing = append(missing, r)
		}
	}
	fmt.Fprintf(rn.screen, "%d runs, %d of them are there already\n", len(runs), len(runs)-len(missing))
	if rn.settings.Report {
		return nil
	}
	return study.Sweep(rn.screen, missing, run.weight, func(r run) (string, error) {
		res, err := rn.run(ctx, r)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%s  %5.1f s, loss %s %s", r, res.Seconds, study.Short(res.last()), res.Outcome), nil
	})
}

// weight is how long the run takes, in a unit that is the same for all.
func (r run) weight() float64 {
	return float64(r.Clocks) * float64(r.ComputeMs+3) * map[bool]float64{
		true:  2.5,
		false: 1,
	}[strings.HasPrefix(r.Fault, "slow")]
}

// run returns the run's result, and runs it if there is none.
func (rn *runner) run(ctx context.Context, r run) (*result, error) {
	if res, err := rn.read(r); res != nil || err != nil {
		return res, err
	}
	if rn.settings.Report {
		return nil, fmt.Errorf("%s has not run; leave out -report", r)
	}
	folder := r.folder(rn.settings)
	output, late, err := study.Run(ctx, rn.settings.Perdure, r.arguments(rn.settings), folder, rn.settings.Timeout)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("stopped at %s; what has run is kept, the same command goes on", r)
	}
	if err != nil {
		if err := rn.keepEnd(folder, r, late, output); err != nil {
			return nil, err
		}
	}
	res, err := rn.read(r)
	if res == nil && err == nil {
		err = fmt.Errorf("%s: %s left no summary", r, folder)
	}
	return res, err
}

// nonFinite is how perdure says that the training left the numbers.
var nonFinite = regexp.MustCompile(`NaN or Inf|training diverged`)

// keepEnd writes down why a run has no summary, where that is a result: it
// diverged, or took too long. Anything else is an error.
func (rn *runner) keepEnd(folder string, r run, late bool, output string) error {
	lines := strings.Split(strings.TrimSpace(output), "\n")
	why := lines[len(lines)-1]
	if i := slices.IndexFunc(lines, nonFinite.MatchString); i >= 0 {
		why = lines[i]
	}
	end := diverged
	switch {
	case nonFinite.MatchString(why):
	case late:
		end, why = timedOut, "ended after "+rn.settings.Timeout.String()
	default:
		return fmt.Errorf("%s: %s (perdure %s)", r, why, strings.Join(r.arguments(rn.settings), " "))
	}
	if err := os.MkdirAll(folder, 0o777); err != nil { // it may have ended before it made one
		return err
	}
	return os.WriteFile(filepath.Join(folder, endFile), []byte(end+"\n"+why+"\n"), 0o666)
}

// read takes the run's result from its folder; nil: there is none.
func (rn *runner) read(r run) (*result, error) {
	folder := r.folder(rn.settings)
	if res := rn.results[folder]; res != nil {
		return res, nil
	}
	res, err := readResult(folder, r, rn.settings.Losses)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		rn.results[folder] = res
	}
	return res, err
}

// trial is one step size that the search has tried.
type trial struct {
	Fraction, Rate float64
	Results        []*result // seeds until the first that did not stand
	Stands         bool
}

// stepSizes finds the step size of each fraction. The search runs bsp without
// failures and waiting: its loss is a function of seed and clock only.
func (rn *runner) stepSizes(ctx context.Context) (rates map[float64]float64, trials []trial, err error) {
	rates = map[float64]float64{}
	for i, f := range rn.settings.Fractions {
		if rates[f] = rn.settings.LR; rn.settings.LR > 0 {
			continue
		}
		rates[f], err = largest(rn.settings.Start, rn.settings.Bisections, func(rate float64) (bool, error) {
			t := trial{Fraction: f, Rate: rate, Stands: true}
			for _, seed := range rn.settings.Seeds {
				res, err := rn.run(ctx, run{
					Part: stepSize, Model: "bsp", Fraction: f, Seed: seed, Rate: rate,
					Clocks: rn.settings.Clocks[i],
				})
				if err != nil {
					return false, err
				}
				t.Results = append(t.Results, res)
				if t.Stands = res.Outcome == falls; !t.Stands {
					break
				}
			}
			trials = append(trials, t)
			last := t.Results[len(t.Results)-1]
			fmt.Fprintf(rn.screen, "%s  %5.1f s, loss %s %s\n", last.run, last.Seconds, study.Short(last.last()),
				last.Outcome)
			return t.Stands, nil
		})
		if err != nil {
			return nil, nil, err
		}
	}
	return rates, trials, nil
}

// largest finds the largest number at which stands holds, to a factor of 2^(1/2ⁿ)
// for n bisections: it doubles until stands fails, or halves until it holds, and
// then halves the interval on a log scale.
func largest(start float64, bisections int, stands func(float64) (bool, error)) (float64, error) {
	const most = 30
	low, high := 0.0, 0.0
	for at, n := study.Round(start), 0; low == 0 || high == 0; n++ {
		ok, err := stands(at)
		switch {
		case err != nil:
			return 0, err
		case n == most:
			return 0, fmt.Errorf("no step size between where bsp stands and where it does not was found from %s to "+
				"%s; choose another -lr-start", study.Format(start), study.Format(at))
		case ok:
			low, at = at, study.Round(2*at)
		default:
			high, at = at, study.Round(at/2)
		}
	}
	for range bisections {
		middle := study.Round(math.Sqrt(low * high))
		ok, err := stands(middle)
		switch {
		case err != nil:
			return 0, err
		case ok:
			low = middle
		default:
			high = middle
		}
	}
	return low, nil
}

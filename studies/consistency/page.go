package main

import (
	_ "embed"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	"github.com/perdure/perdure/internal/run/study"
)

//go:embed page.md.tmpl
var pageTemplate string

// page is what the template is filled with.
type page struct {
	Study   settings
	Machine study.Machine
	Rates   map[float64]float64
	Trials  []trial
	Results []*result
	Loss    string // the column

	Reads   []readRow
	Calm    []readRow // the same without jitter
	Trained []trained
	SplitOf [2][]splitBar // with compute-ms, and without
	Target  float64
	Races   []race
}

// readRow says how old one model's reads were.
type readRow struct {
	Model                 string
	Shares                histogram
	Mean, Deviation       float64
	Oldest                int
	Missing, MissingBound *float64
}

// trained is how training went at one fraction of the data in a clock.
type trained struct {
	Fraction float64
	Name     string // of its plots
	Models   []string
	Curves   map[string][]curvePoint
	Outcomes map[string][]string
	Last     map[string]study.Spread
	Seconds  map[string]study.Spread
}

func newPage(s settings, m study.Machine, rates map[float64]float64, trials []trial, results []*result) *page {
	p := &page{Study: s, Machine: m, Rates: rates, Trials: trials, Results: results, Loss: "loss"}
	for _, r := range results {
		if r.Column != "" {
			p.Loss = r.Column
			break
		}
	}
	p.readAges()
	for i, f := range s.Fractions {
		rs := study.Where(p.part(convergence), func(r *result) bool { return r.Fraction == f })
		if len(rs) > 0 {
			p.Trained = append(p.Trained, newTrained(f, i, rs))
		}
	}
	for i, ms := range []bool{true, false} {
		for _, r := range p.part(timeSplit) {
			if (r.ComputeMs > 0) == ms && r.Split.known() {
				p.SplitOf[i] = append(p.SplitOf[i], splitBar{r.Model, r.Split})
			}
		}
	}
	p.race()
	return p
}

// HasSplit reports whether the time of any run is known.
func (p *page) HasSplit() bool { return len(p.SplitOf[0])+len(p.SplitOf[1]) > 0 }

// Precision is how far the largest step size may be from the one that was found.
func (p *page) Precision() string {
	return study.Short(math.Pow(2, math.Pow(.5, float64(p.Study.Bisections))))
}

// Steps says which step size each fraction has.
func (p *page) Steps() (lines []string) {
	for _, f := range p.Study.Fractions {
		text := study.Format(p.Rates[f])
		if f > 0 {
			text += " at " + study.Percent(f) + " of the data in a clock"
		}
		lines = append(lines, text)
	}
	return lines
}

// Newer is the share of reads at 0 or above.
func (r readRow) Newer() (share float64) {
	for d, v := range r.Shares {
		if d >= 0 {
			share += v
		}
	}
	return share
}

// Programs are the versions of perdure that the runs are of.
func (p *page) Programs() string {
	versions, _ := study.Group(p.Results, func(r *result) string { return r.Program })
	if len(versions) == 1 {
		return versions[0]
	}
	return "several versions, so that parts may not compare: " + strings.Join(versions, ", ")
}

// slow says in a few words how the straggler is slow.
func (p *page) slow() string {
	kind, target, _ := strings.Cut(p.Study.Straggler, ":")
	times, isSlow := strings.CutPrefix(kind, "slow*")
	target, when, _ := strings.Cut(target, "@")
	switch {
	case p.Study.Straggler == "":
		return "no worker made slow"
	case isSlow && when == "0s" && strings.HasPrefix(target, "worker:") && !strings.HasSuffix(target, "*"):
		return fmt.Sprintf("one worker of %d is %s times slower", p.Study.Workers, times)
	}
	return p.Study.Straggler
}

func (p *page) part(name string) []*result {
	return study.Where(p.Results, func(r *result) bool { return r.Part == name })
}

func (p *page) readAges() {
	for _, r := range p.part(differentials) {
		row := readRow{Model: r.Model, Shares: shares(r.Differential), Missing: r.Missing, MissingBound: r.MissingBound}
		row.Mean, row.Deviation = row.Shares.moments()
		row.Oldest, _ = row.Shares.bounds(0)
		if r.Fault == p.Study.Jitter {
			p.Reads = append(p.Reads, row)
		} else {
			p.Calm = append(p.Calm, row)
		}
	}
}

func newTrained(fraction float64, i int, results []*result) trained {
	t := trained{
		Fraction: fraction, Name: fmt.Sprintf("convergence-%d", i+1),
		Curves: map[string][]curvePoint{}, Outcomes: map[string][]string{}, Last: map[string]study.Spread{},
		Seconds: map[string]study.Spread{},
	}
	models, groups := study.Group(results, byModel)
	t.Models = models
	for m, rs := range groups {
		t.Curves[m] = merge(rs)
		var last, seconds []float64
		for _, r := range rs {
			t.Outcomes[m] = append(t.Outcomes[m], r.Outcome)
			seconds = append(seconds, r.Seconds)
			switch end := r.last(); {
			case !math.IsNaN(end):
				last = append(last, end)
			case r.Outcome == diverged:
				last = append(last, math.Inf(1))
			}
		}
		t.Last[m], t.Seconds[m] = study.SpreadOf(last), study.SpreadOf(seconds)
	}
	return t
}

// race works out when each model reaches the target.
func (p *page) race() {
	models, groups := study.Group(p.part(timeToLoss), byModel)
	if len(models) == 0 {
		return
	}
	p.Target = p.Study.Target
	for _, q := range merge(groups["bsp"]) {
		if p.Study.Target == 0 && q.Clock <= p.Study.Clocks[0]/2 {
			p.Target = q.Loss.Mid
		}
	}
	for _, m := range models {
		r := race{Model: m, Runs: len(groups[m])}
		var seconds, clocks []float64
		for _, res := range groups[m] {
			at, ok := reach(res.Points, p.Target)
			if ok {
				r.Reached++
				seconds, clocks = append(seconds, at.Seconds), append(clocks, float64(at.Clock))
				continue
			}
			seconds, clocks = append(seconds, math.Inf(1)), append(clocks, math.Inf(1))
		}
		r.Seconds, r.Clocks = study.SpreadOf(seconds), study.SpreadOf(clocks)
		p.Races = append(p.Races, r)
	}
}

// write writes the tables, the plots, and then the page that shows them.
func (p *page) write(folder string) error {
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return err
	}
	for name, rows := range p.tables() {
		if err := study.WriteCSV(filepath.Join(folder, name), rows); err != nil {
			return err
		}
	}
	if err := p.plot(folder); err != nil {
		return err
	}
	t, err := template.New("page").Funcs(template.FuncMap{
		"base": filepath.Base, "short": study.Short, "percent": study.Percent, "percent0": study.Percent0,
		"unusual": func(o []string) string {
			if u := unusual(o); u != "" {
				return u
			}
			return "all fall"
		},
		"optional": func(v *float64) string {
			if v == nil {
				return "–"
			}
			return study.Short(*v)
		},
	}).Parse(pageTemplate)
	if err != nil {
		return err
	}
	var text strings.Builder
	if err := t.Execute(&text, p); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, "README.md"), []byte(text.String()), 0o666)
}

func (p *page) plot(folder string) error {
	file := func(name string) string { return filepath.Join(folder, name+".svg") }
	for name, rows := range map[string][]readRow{differentials: p.Reads, differentials + "-calm": p.Calm} {
		var models []string
		all := map[string]histogram{}
		for _, r := range rows {
			models = append(models, r.Model)
			all[r.Model] = r.Shares
		}
		if len(rows) == 0 {
			continue
		}
		if err := plotDifferentials(file(name), models, all); err != nil {
			return err
		}
	}
	for _, t := range p.Trained {
		for _, by := range []string{"clock", "second"} {
			title := "Loss per " + by
			if t.Fraction > 0 {
				title += ", " + study.Percent(t.Fraction) + " of the data in a clock"
			}
			subtitle := fmt.Sprintf("%s: median of %d seeds, the band from least to most; × where it leaves the "+
				"panel; %s",
				p.Loss, len(t.Outcomes["bsp"]), p.slow())
			if err := plotConvergence(file(t.Name+"-per-"+by), title, subtitle, t.Models, t.Curves, t.Outcomes,
				by == "second"); err != nil {
				return err
			}
		}
	}
	if p.HasSplit() {
		heads := [2]string{
			fmt.Sprintf("a clock computes for %d ms at least, jittered", p.Study.ComputeMs),
			fmt.Sprintf("as fast as %d cores go", p.Machine.Cores),
		}
		if err := plotSplit(file(timeSplit), heads, p.SplitOf); err != nil {
			return err
		}
	}
	if len(p.Races) > 0 {
		subtitle := fmt.Sprintf("until %s is %s or less: median of %d seeds, the line from least to most; %s", p.Loss,
			study.Short(p.Target), p.Races[0].Runs, p.slow())
		return plotRace(file(timeToLoss), subtitle, p.Races)
	}
	return nil
}

// tables are the study's numbers, tidy: one row is one observation.
func (p *page) tables() map[string][][]string {
	runs := [][]string{{
		"part", "version", "fraction", "model", "seed", "step_size", "clocks", "compute_ms", "fault",
		"outcome", "seconds", "loss_column", "last_loss", "missing_updates", "missing_bound",
	}}
	steps := [][]string{{"fraction", "step_size", "seed", "outcome", "last_loss"}}
	reads := [][]string{{"model", "fault", "seed", "differential", "reads", "share"}}
	curves := [][]string{{"fraction", "model", "seed", "step_size", "clock", "seconds", "loss"}}
	split := [][]string{append([]string{"model", "compute_ms", "worker"}, splitKinds...)}
	goals := [][]string{{"model", "seed", "target", "reached", "seconds", "clock"}}
	for _, t := range p.Trials {
		for _, r := range t.Results {
			steps = append(steps, study.Record(t.Fraction, t.Rate, r.Seed, r.Outcome, r.last()))
		}
	}
	for _, r := range p.Results {
		runs = append(runs, study.Record(r.Part, r.Program, r.Fraction, r.Model, r.Seed, r.Rate, r.Clocks, r.ComputeMs,
			r.Fault, r.Outcome, r.Seconds, r.Column, r.last(), r.Missing, r.MissingBound))
		switch r.Part {
		case differentials:
			h := shares(r.Differential)
			for _, d := range slices.Sorted(maps.Keys(h)) {
				reads = append(reads, study.Record(r.Model, r.Fault, r.Seed, d, r.Differential[d], h[d]))
			}
		case convergence:
			for _, q := range r.Points {
				curves = append(curves, study.Record(r.Fraction, r.Model, r.Seed, r.Rate, q.Clock, q.Seconds, q.Loss))
			}
		case timeSplit:
			split = append(split, splitRows(r)...)
		case timeToLoss:
			at, ok := reach(r.Points, p.Target)
			if !ok {
				goals = append(goals, study.Record(r.Model, r.Seed, p.Target, ok, "", ""))
			} else {
				goals = append(goals, study.Record(r.Model, r.Seed, p.Target, ok, at.Seconds, at.Clock))
			}
		}
	}
	return map[string][][]string{
		"runs.csv": runs, stepSize + ".csv": steps, differentials + ".csv": reads, convergence + ".csv": curves,
		timeSplit + ".csv": split, timeToLoss + ".csv": goals,
	}
}

func splitRows(r *result) (rows [][]string) {
	if r.Split.known() {
		rows = append(rows, study.Record(r.Model, r.ComputeMs, "all", r.Split[0], r.Split[1], r.Split[2]))
	}
	for slot, w := range r.SplitWorkers {
		rows = append(rows, study.Record(r.Model, r.ComputeMs, slot, w[0], w[1], w[2]))
	}
	return rows
}

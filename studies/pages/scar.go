package main

import (
	"encoding/csv"
	"fmt"
	"math"
	"slices"
	"strings"
	"text/template"

	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/plot"
	"github.com/perdure/perdure/internal/run/study/failurecost"
)

// Strategies that the page compares. Both restore only the lost rows: from full saves, or from saves of an eighth of
// the rows, chosen by priority.
const (
	fullSaves   = "scar:16,1,priority"
	eighthSaves = "scar:16,1/8,priority"
)

// saves maps the names in the template to strategies.
var saves = map[string]string{"full": fullSaves, "eighth": eighthSaves}

// summarized lists the problems of the first table.
var summarized = []struct{ name, problem string }{
	{"quadratic", "quadratic"},
	{"softmax on CoverType", "covtype"},
	{"softmax on MNIST", "mnist"},
	{"als on MovieLens 100k", "als-movielens"},
	{"als on Jester", "als-jester"},
	{"lda on Reuters, document–topic", "lda-reuters-documents"},
	{"lda on 20 Newsgroups, document–topic", "lda-20news-documents"},
	{"lda on Reuters, word–topic", "lda-reuters"},
	{"lda on 20 Newsgroups, word–topic", "lda-20news"},
	{"lda on Reuters, word–topic with `--rebuild`", "lda-reuters-rebuild"},
	{"cnn on MNIST, by row", "cnn-row"},
	{"cnn on MNIST, by layer", "cnn-layer"},
}

// scarPage is the page of scar.yaml.
type scarPage struct{ *page }

func (p scarPage) problem(name string) *cell { return p.cell(labelSet{"problem": name}) }

// scar writes the page of scar.yaml.
func scar(of *page) {
	p := scarPage{of}
	var all []*cell
	for _, s := range summarized {
		all = append(all, p.problem(s.problem))
	}
	p.fill("scar", template.FuncMap{
		"better": func(save string) int {
			if save == "" {
				return len(all)
			}
			return len(better(all, saves[save]))
		},
		"savings": func(save string, lost float64) string {
			return savings(better(all, saves[save]), saves[save], lost)
		},
		"problems": func() string {
			text := "| problem | partial recovery (`scar:16,1,priority`) | with priority (`scar:16,1/8,priority`) | " +
				"paper: 78% to 95% |\n|---|--:|--:|---|\n"
			for i, c := range all {
				text += fmt.Sprintf("| %s | %s | %s | %s |\n", summarized[i].name, c.fewer(fullSaves),
					c.fewer(eighthSaves), c.claim(eighthSaves, 0.78))
			}
			return text
		},
		"tried": p.trialCount, "repeated": func() string { return repeated(p.cells) },
		"fewer": func(problem, save string) string { return p.problem(problem).fewer(saves[save]) },
		"ran": func(problems ...string) bool {
			return !slices.ContainsFunc(problems, func(name string) bool { return p.problem(name).losses == nil })
		},
		"drawn":    func(problem, about string) string { return p.costs(problem, about, true) },
		"costly":   func(problem, about string) string { return p.costs(problem, about, false) },
		"bytes":    p.bytesDrawn,
		"overhead": func() string { return overhead(all) },
		"dominated": func(problems ...string) string {
			return p.dominated("scar:C,1/8,priority", "scar:C,1,priority", problems)
		},
		"bounded": func(problem string) string {
			losses := p.problem(problem).losses
			return losses.BoundsTable() + "\n" + losses.PerturbationTable() + "\n" + p.forks(problem, losses)
		},
	})
}

// costs writes the costs of failures in a problem as a table and, if drawn is set, as a picture, with a link to all
// trials.
func (p scarPage) costs(problem, about string, drawn bool) string {
	losses := p.problem(problem).losses
	if losses == nil {
		return "Not run yet."
	}
	var all []string
	for _, t := range losses.Twins {
		all = append(all, fmt.Sprintf("%.4g", t.Epsilon))
	}
	text := fmt.Sprintf("%s ε of the twins: %s. Measure: %s.\n\n%s\n", about, humanize.Join(all),
		judged(losses), losses.Table())
	if drawn {
		text += p.picture(problem+".svg", losses.Picture())
	}
	return text + p.forks(problem, losses)
}

// judged describes how the quality of a model is measured.
func judged(r *failurecost.Result) string {
	by := map[string]string{
		failurecost.MeasureTrain:    "the training loss",
		failurecost.MeasureTest:     "the test loss",
		failurecost.MeasureDistance: "the distance to x*, the model of the twin after ten times as many clocks",
	}[r.Measure]
	if r.Smooth > 1 {
		return fmt.Sprintf("the mean over %d clocks of %s", r.Smooth, by)
	}
	return by
}

// forks stores a CSV file with a line for each trial of a problem, and returns a link to it.
func (p scarPage) forks(problem string, losses *failurecost.Result) string {
	var text strings.Builder
	_ = csv.NewWriter(&text).WriteAll(losses.Rows()) // into memory
	p.files[problem+".csv"] = []byte(text.String())
	return fmt.Sprintf("[All trials](%s.csv).", problem)
}

// bytesDrawn plots the cost of losing half of the servers against the bytes written. There is a panel for each problem,
// with a curve over the intervals for each strategy.
func (p scarPage) bytesDrawn(problems ...string) string {
	f := &plot.Figure{
		Name:  "Cost of a failure in clocks against MB written: the mean, and its 95% interval",
		Width: width, Columns: 3, PanelHeight: 230,
	}
	seen := map[string]plot.Style{}
	for _, problem := range problems {
		c := p.problem(problem)
		if c.losses == nil {
			continue
		}
		panel := plot.Panel{
			Title: strings.TrimSuffix(p.nameOf(c), "-bytes"), X: plot.Axis{Name: "MB written", FromZero: true},
			Y: plot.Axis{Name: "clocks", FromZero: true},
		}
		for _, of := range c.losses.Families(0.5) {
			look, known := seen[of.Name]
			if !known {
				look = plot.SeriesStyle(len(seen))
				seen[of.Name] = look
				f.Keys = append(f.Keys, plot.Key{Name: of.Name, Look: look})
			}
			panel.Items = append(panel.Items, &plot.Curve{
				Style: look, X: of.MB, Mid: of.Mean, Low: of.Low, High: of.High, PointsAtValues: true, Faint: true,
			})
		}
		f.Panels = append(f.Panels, panel)
	}
	if len(f.Panels) == 0 {
		return ""
	}
	return p.picture("bytes.svg", f)
}

// overhead returns how many times as many bytes saves of an eighth write as full saves, from the least to the most.
func overhead(cells []*cell) string {
	var all []float64
	for _, c := range cells {
		if c.losses != nil && c.losses.Bytes[fullSaves] > 0 {
			all = append(all, float64(c.losses.Bytes[eighthSaves])/float64(c.losses.Bytes[fullSaves]))
		}
	}
	if len(all) == 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f to %.1f times", slices.Min(all), slices.Max(all))
}

// dominated returns how many of a family's points have a point of another family that writes no more bytes and costs
// fewer clocks, by the means.
func (p scarPage) dominated(family, by string, problems []string) string {
	n, all := 0, 0
	for _, problem := range problems {
		c := p.problem(problem)
		if c.losses == nil {
			continue
		}
		points := map[string]*failurecost.Family{family: {}, by: {}}
		for _, of := range c.losses.Families(0.5) {
			points[of.Name] = of
		}
		one, other := points[family], points[by]
		for i := range one.MB {
			all++
			for k := range other.MB {
				if other.MB[k] <= one.MB[i] && other.Mean[k] < one.Mean[i] {
					n++
					break
				}
			}
		}
	}
	return fmt.Sprintf("%d of %d", n, all)
}

// of returns the summary of a strategy's trials that lose the part lost of the servers.
func (c *cell) of(strategy string, lost float64) *failurecost.Cell {
	if c.losses == nil {
		return (&failurecost.Result{}).Cell(strategy, lost)
	}
	return c.losses.Cell(strategy, lost)
}

// saved returns the relative saving in cost compared with the first strategy, with the 95% interval. It is NaN if most
// trials are censored.
func (c *cell) saved(strategy string, lost float64) plot.Spread {
	of := c.of(strategy, lost)
	if of.Saving == nil || 2*of.Censored > of.Trials {
		return plot.SpreadOf(nil)
	}
	v := plot.Spread{Mid: *of.Saving, Low: math.Inf(-1), High: math.Inf(1), N: of.Trials}
	if of.SavingInterval[0] != nil {
		v.Low = *of.SavingInterval[0]
	}
	if of.SavingInterval[1] != nil {
		v.High = *of.SavingInterval[1]
	}
	return v
}

// maxSaving returns an upper bound of the saving of a strategy when half of the servers are lost: the cost of a
// censored trial counts with its lower bound.
func (c *cell) maxSaving(strategy string) float64 {
	cost, base := 0.0, 0.0
	for _, t := range c.losses.Trials {
		switch {
		case t.Lost != 0.5:
		case t.Strategy == strategy:
			cost += float64(t.Cost)
		case t.Strategy == c.losses.Trials[0].Strategy:
			base += float64(t.Cost)
		}
	}
	return 1 - cost/base
}

// fewer formats the saving of a strategy when half of the servers are lost, with the interval in brackets. If trials
// are censored, it formats the upper bound of the saving instead, or that the saving is unknown.
func (c *cell) fewer(strategy string) string {
	of := c.of(strategy, 0.5)
	if 2*of.Censored > of.Trials {
		return fmt.Sprintf("–, %d of %d never reach ε", of.Censored, of.Trials)
	}
	if of.Censored > 0 {
		return fmt.Sprintf("at most %s (%d of %d reach ε)", humanize.Percent0(c.maxSaving(strategy)),
			of.Trials-of.Censored, of.Trials)
	}
	return of.SavingText()
}

// claim returns the verdict about a paper's claim that a strategy saves at least the given part. The claim is rejected
// only if the whole interval is below that part.
func (c *cell) claim(strategy string, part float64) string {
	v := c.saved(strategy, 0.5)
	switch {
	case c.of(strategy, 0.5).Trials == 0:
		return incomparable
	case !known(v): // most runs never reach ε
		return notReproduced
	case v.Mid >= part && c.of(strategy, 0.5).Censored == 0:
		return reproduced
	case v.High < part:
		return notReproduced
	}
	return "inconclusive"
}

// better returns the cells in which a strategy costs significantly less than the first one, and in which every trial
// reaches ε. A mean without the censored trials says nothing about a saving.
func better(cells []*cell, strategy string) []*cell {
	return plot.Where(cells, func(c *cell) bool {
		return c.of(strategy, 0.5).Censored == 0 && c.saved(strategy, 0.5).Low > 0
	})
}

// savings formats the lowest and the highest saving of a strategy over some cells.
func savings(cells []*cell, strategy string, lost float64) string {
	var all []float64
	for _, c := range cells {
		if v := c.saved(strategy, lost); known(v) {
			all = append(all, v.Mid)
		}
	}
	if len(all) == 0 {
		return "–"
	}
	least, most := humanize.Percent0(slices.Min(all)), humanize.Percent0(slices.Max(all))
	if least == most {
		return least
	}
	return least + " to " + most
}

// repeated reports the trials that were repeated with real processes, or "" if there were none.
func repeated(cells []*cell) string {
	n, same, once := 0, 0, 0
	for _, c := range cells {
		if c.losses != nil {
			of, again, first := c.losses.Repeated()
			n, same, once = n+of, same+again, once+first
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d trials were repeated with real servers, killed in the middle of a clock: %d ended with the "+
		"trial's model to the last bit, %d of them at the first attempt.", n, same, once)
}

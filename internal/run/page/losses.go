package page

import (
	"encoding/csv"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"text/template"

	"github.com/perdure/perdure/internal/run/draw"
	"github.com/perdure/perdure/internal/run/losses"
	"github.com/perdure/perdure/internal/run/study"
)

// lossFunctions are those of templates about studies of losses: what failures cost in forks of undisturbed twins.
func (s *Study) lossFunctions() template.FuncMap {
	return template.FuncMap{
		"costs":     func(c *Cell) string { return c.pooled().Table() },
		"perturbed": func(c *Cell) string { return c.pooled().Perturbed() },
		"bounded":   func(c *Cell) string { return c.pooled().Bounded() }, "costsDrawn": s.costsDrawn, "forks": s.forks,
		"bytesDrawn": s.bytesDrawn,
		"saved":      saved, "fewer": fewer, "cost": cost, "better": better, "span": span, "claim": claim,
		"epsilons": epsilons, "bytes": bytes, "judged": judged, "repeated": repeated, "done": done,
		"list": func(all ...*Cell) []*Cell { return all },
	}
}

// pooled is what the trials of all twins gave: nothing, where there is none.
func (c *Cell) pooled() *losses.Result {
	if c.losses == nil {
		return &losses.Result{}
	}
	return c.losses
}

// done reports whether a cell has trials.
func done(c *Cell) bool { return c.losses != nil }

func (c *Cell) of(strategy string, lost float64) *losses.Cell { return c.pooled().Cell(strategy, lost) }

// costsDrawn draws what failures cost under each strategy.
func (s *Study) costsDrawn(file string, c *Cell) (string, error) {
	if !done(c) {
		return "", nil
	}
	return s.keep(file, c.pooled().Picture())
}

// bytesDrawn draws what failures cost against the bytes that were written, of some cells that are done: a curve for
// each strategy over its intervals.
func (s *Study) bytesDrawn(file string, lost float64, cells ...*Cell) (string, error) {
	f := &draw.Figure{
		Name:  "What a failure costs in clocks, against MB written: the mean, and its 95% interval",
		Width: 880, Columns: 3, High: 230,
	}
	looks := map[string]draw.Look{}
	for _, c := range cells {
		if !done(c) {
			continue
		}
		p := draw.Panel{
			Title: strings.Trim(s.name(c), "`"), X: draw.Axis{Name: "MB written", FromZero: true},
			Y: draw.Axis{Name: "clocks", FromZero: true},
		}
		for _, of := range c.pooled().Families(lost) {
			look, seen := looks[of.Name]
			if !seen {
				look = draw.LookOf(len(looks))
				looks[of.Name] = look
				f.Keys = append(f.Keys, draw.Key{Name: of.Name, Look: look})
			}
			p.Items = append(p.Items, &draw.Curve{
				Look: look, X: of.MB, Mid: of.Mean, Low: of.Low, High: of.High, PointsAtValues: true, Faint: true,
			})
		}
		f.Panels = append(f.Panels, p)
	}
	if len(f.Panels) == 0 {
		return "", nil
	}
	return s.keep(file, f)
}

var tableName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]*\.csv$`)

// forks keeps a file with a line for each trial, and returns the Markdown that leads to it.
func (s *Study) forks(file string, c *Cell) (string, error) {
	switch {
	case !done(c):
		return "", nil
	case !tableName.MatchString(file):
		return "", fmt.Errorf("the file %q: name it with small letters, digits and -, and .csv", file)
	case s.files[file] != nil:
		return "", fmt.Errorf("the file %q is written twice", file)
	}
	var text strings.Builder
	if err := csv.NewWriter(&text).WriteAll(c.pooled().Rows()); err != nil {
		return "", err
	}
	s.files[file] = []byte(text.String())
	return fmt.Sprintf("[All trials](%s).", file), nil
}

// spreadOf is a mean with the ends of its 95% interval; NaN where no trial is counted in it, or only the lesser part
// of them, and where the interval has an end that censored trials leave open.
func spreadOf(c *losses.Cell, mean *float64, within losses.Ends) study.Spread {
	if mean == nil || 2*c.Censored > c.Trials {
		return study.SpreadOf(nil)
	}
	v := study.Spread{Mid: *mean, Low: math.Inf(-1), High: math.Inf(1), N: c.Trials}
	if within[0] != nil {
		v.Low = *within[0]
	}
	if within[1] != nil {
		v.High = *within[1]
	}
	return v
}

// saved is by which part a strategy's failures cost less than the first one's.
func saved(c *Cell, strategy string, lost float64) study.Spread {
	of := c.of(strategy, lost)
	return spreadOf(of, of.Fewer, of.FewerIn)
}

// cost is how many clocks a strategy's failures cost.
func cost(c *Cell, strategy string, lost float64) study.Spread {
	of := c.of(strategy, lost)
	return spreadOf(of, of.Mean, of.Within)
}

// fewer writes saved, with its interval in brackets, or why there is none.
func fewer(c *Cell, strategy string, lost float64) string {
	of := c.of(strategy, lost)
	if 2*of.Censored > of.Trials {
		return fmt.Sprintf("–, %d of %d never come to ε", of.Censored, of.Trials)
	}
	return of.Less()
}

// better are the cells in which a strategy's failures cost less than the first one's, beyond the spread of the trials.
func better(cells []*Cell, strategy string, lost float64) []*Cell {
	return study.Where(cells, func(c *Cell) bool { return saved(c, strategy, lost).Low > 0 })
}

// span writes the least and the most that a strategy saves in some cells.
func span(cells []*Cell, strategy string, lost float64) string {
	least, most := math.Inf(1), math.Inf(-1)
	for _, c := range cells {
		if v := saved(c, strategy, lost); known(v) {
			least, most = min(least, v.Mid), max(most, v.Mid)
		}
	}
	switch {
	case least > most:
		return "–"
	case study.Percent0(least) == study.Percent0(most):
		return study.Percent0(least)
	}
	return study.Percent0(least) + " to " + study.Percent0(most)
}

// claim is the verdict about a paper that reports that a strategy saves a part or more: of the mean, unless even the
// upper end of the interval is below it.
func claim(c *Cell, strategy string, lost, part float64) string {
	of, v := c.of(strategy, lost), saved(c, strategy, lost)
	switch {
	case of.Trials == 0:
		return incomparable
	case !known(v): // most runs never come to ε
		return notReproduced
	case v.Mid >= part:
		return reproduced
	case v.High < part:
		return notReproduced
	}
	return "not shown: the interval reaches it"
}

// epsilons lists ε of the twins.
func epsilons(c *Cell) string {
	var all []string
	for _, t := range c.pooled().Twins {
		all = append(all, fmt.Sprintf("%.4g", t.Epsilon))
	}
	return study.Listed(all)
}

// bytes lists what each strategy wrote, in MB.
func bytes(c *Cell) string {
	r := c.pooled()
	var all, seen []string
	for _, of := range r.Cells {
		n, counted := r.Bytes[of.Strategy]
		if counted && !slices.Contains(seen, of.Strategy) {
			seen = append(seen, of.Strategy)
			all = append(all, fmt.Sprintf("`%s` %.2f", of.Strategy, float64(n)/1e6))
		}
	}
	return study.Listed(all)
}

// judged is what a model is judged by.
func judged(c *Cell) string {
	if n := c.pooled().Smooth; n > 1 {
		return fmt.Sprintf("the mean of %d clocks of %s", n, measured(c))
	}
	return measured(c)
}

func measured(c *Cell) string {
	switch c.pooled().Measure {
	case losses.MeasureTrain:
		return "the loss on what it is trained on"
	case losses.MeasureTest:
		return "the loss on test examples"
	case losses.MeasureDistance:
		return "its distance to x*, which is what the twin comes to when it trains for ten times as long"
	}
	return "–"
}

// repeated says how trials went that were repeated with servers that were really killed; "": none was.
func repeated(cells []*Cell) string {
	n, same, once := 0, 0, 0
	for _, c := range cells {
		of, again, first := c.pooled().Repeated()
		n, same, once = n+of, same+again, once+first
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d trials were repeated with servers that were really killed, amid a clock: %d ended with the "+
		"model of the trial to the last bit, %d of them at the first try.", n, same, once)
}

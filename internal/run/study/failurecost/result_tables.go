package failurecost

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/plot"
)

// Table returns the costs of servers' deaths as a Markdown table with a row for each strategy. The row has the MB
// written for all twins until their last failure. For each lost part of the servers it has the mean cost with its
// interval, and how much lower that is than under the first strategy.
func (r *Result) Table() string {
	strategies, lost := r.axes()
	if len(strategies) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("| strategy | MB |")
	for _, part := range lost {
		fmt.Fprintf(&b, " %s lost: clocks | fewer |", partText(part))
	}
	b.WriteString("\n|---|--:|" + strings.Repeat("--:|--:|", len(lost)) + "\n")
	for _, s := range strategies {
		written := "–"
		if r.Bytes != nil {
			written = fmt.Sprintf("%.2f", float64(r.Bytes[s])/1e6)
		}
		fmt.Fprintf(&b, "| `%s` | %s |", s, written)
		for _, part := range lost {
			c := r.Cell(s, part)
			fmt.Fprintf(&b, " %s | %s |", c.cost(), c.SavingText())
		}
		b.WriteString("\n")
	}
	return b.String()
}

// PerturbationTable returns the costs of perturbations other than deaths as a Markdown table, or "" if there are none.
func (r *Result) PerturbationTable() string {
	var b strings.Builder
	for i := range r.Cells {
		if c := &r.Cells[i]; c.Lost == 0 {
			fmt.Fprintf(&b, "| `%s` | %s |\n", c.Strategy, c.cost())
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return "| perturbation | clocks |\n|---|--:|\n" + b.String()
}

// BoundsTable returns the costs of trials and their bounds as a Markdown table, or "" if no trial has a bound.
func (r *Result) BoundsTable() string {
	var b strings.Builder
	for i := range r.Cells {
		c := &r.Cells[i]
		if c.Bounds == nil {
			continue
		}
		lost := "–"
		if c.Lost > 0 {
			lost = partText(c.Lost)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %.1f | %d of %d | %.1f | %d of %d |\n", c.Strategy, lost,
			humanize.Short(c.Bounds.Norm), c.cost(), c.Bounds.Mean, c.Bounds.Below, c.Bounds.Known, c.Bounds.MeanSimple,
			c.Bounds.BelowSimple, c.Bounds.NumSimple)
	}
	if b.Len() == 0 {
		return ""
	}
	return "| | lost | ‖δ‖ | clocks | bound | not above it | neat form | not above it |\n" +
		"|---|--:|--:|--:|--:|--:|--:|--:|\n" + b.String()
}

// axes returns the strategies and the lost parts that were tried, in order.
func (r *Result) axes() (strategies []string, lost []float64) {
	seen := map[any]bool{}
	for _, c := range r.Cells {
		if c.Lost == 0 {
			continue // a perturbation, which has neither
		}
		if !seen[c.Strategy] {
			seen[c.Strategy], strategies = true, append(strategies, c.Strategy)
		}
		if !seen[c.Lost] {
			seen[c.Lost], lost = true, append(lost, c.Lost)
		}
	}
	return strategies, lost
}

// Cell returns the cell of a strategy and a lost part, or an empty cell.
func (r *Result) Cell(strategy string, lost float64) *Cell {
	for i := range r.Cells {
		if c := &r.Cells[i]; c.Strategy == strategy && c.Lost == lost {
			return c
		}
	}
	return &Cell{}
}

// partText formats a lost part in words or as a fraction.
func partText(part float64) string {
	for text, v := range map[string]float64{"nothing": 0, "¼": 0.25, "½": 0.5, "¾": 0.75, "all": 1} {
		if part == v {
			return text
		}
	}
	return humanize.Percent0(part)
}

// cost formats the mean with its interval, and how many trials are censored.
func (c *Cell) cost() string {
	text := "–"
	if c.Mean != nil {
		text = fmt.Sprintf("%.1f [%s]", *c.Mean, c.MeanInterval.text(", ", oneDigit))
	}
	if c.Censored > 0 {
		text += fmt.Sprintf(", %d of %d censored", c.Censored, c.Trials)
	}
	return text
}

func oneDigit(v float64) string { return fmt.Sprintf("%.1f", v) }

// SavingText formats the saving compared with the first strategy, with its interval.
func (c *Cell) SavingText() string {
	if c.Saving == nil {
		return "–"
	}
	return fmt.Sprintf("%s [%s]", humanize.Percent0(*c.Saving), c.SavingInterval.text(", ", humanize.Percent0))
}

// Family is the cost and the MB written of a strategy with each of its checkpoint intervals, in ascending order of
// bytes. Low and High are the ends of the means' 95% intervals, or the means themselves if an interval is open.
type Family struct {
	Name                string // the strategy, with C in place of its interval
	MB, Mean, Low, High []float64
}

var interval = regexp.MustCompile(`:[0-9]+`)

// Families returns the strategies that write checkpoints, sorted by name. It omits cells in which most trials are
// censored.
func (r *Result) Families(lost float64) (all []*Family) {
	named := map[string]*Family{}
	strategies, _ := r.axes()
	slices.SortStableFunc(strategies, func(a, b string) int { return cmp.Compare(r.Bytes[a], r.Bytes[b]) })
	for _, s := range strategies {
		c := r.Cell(s, lost)
		if r.Bytes[s] == 0 || c.Mean == nil || 2*c.Censored > c.Trials {
			continue
		}
		name := interval.ReplaceAllString(s, ":C")
		f := named[name]
		if f == nil {
			f = &Family{Name: name}
			named[name], all = f, append(all, f)
		}
		low, high := *c.Mean, *c.Mean
		if c.MeanInterval[0] != nil && c.MeanInterval[1] != nil {
			low, high = *c.MeanInterval[0], *c.MeanInterval[1]
		}
		f.MB, f.Mean = append(f.MB, float64(r.Bytes[s])/1e6), append(f.Mean, *c.Mean)
		f.Low, f.High = append(f.Low, low), append(f.High, high)
	}
	slices.SortFunc(all, func(a, b *Family) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Picture plots the costs: a panel for each lost part of the servers, with a row for each strategy.
func (r *Result) Picture() *plot.Figure {
	strategies, lost := r.axes()
	f := &plot.Figure{Name: "Cost of a failure in clocks: the mean, and its 95% interval", Width: 880, Columns: 3}
	for _, part := range lost {
		p := plot.Panel{Title: partText(part) + " of the servers lost", X: plot.Axis{Name: "clocks", FromZero: true}}
		for i, s := range strategies {
			p.Rows = append(p.Rows, s)
			c := r.Cell(s, part)
			if c.Mean == nil {
				continue
			}
			d := &plot.Dot{
				Row: i, Mid: *c.Mean, Low: *c.Mean, High: *c.Mean, Style: plot.SeriesStyle(min(i, 1)),
				Text: oneDigit(*c.Mean),
			}
			if c.MeanInterval[0] != nil && c.MeanInterval[1] != nil {
				d.Low, d.High = *c.MeanInterval[0], *c.MeanInterval[1]
			}
			p.Items = append(p.Items, d)
		}
		f.Panels = append(f.Panels, p)
	}
	return f
}

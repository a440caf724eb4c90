package losses

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/perdure/perdure/internal/run/draw"
	"github.com/perdure/perdure/internal/run/study"
)

// Table is what was found, as a table of Markdown: a row for each strategy, and for each part of the servers that died
// the mean cost with its interval, and how much less that is than under the first strategy.
func (r *Result) Table() string {
	strategies, lost := r.axes()
	var b strings.Builder
	b.WriteString("| strategy |")
	for _, part := range lost {
		fmt.Fprintf(&b, " %s lost: clocks | fewer |", share(part))
	}
	b.WriteString("\n|---|" + strings.Repeat("--:|--:|", len(lost)) + "\n")
	for _, s := range strategies {
		fmt.Fprintf(&b, "| `%s` |", s)
		for _, part := range lost {
			c := r.cell(s, part)
			fmt.Fprintf(&b, " %s | %s |", c.cost(), c.less())
		}
		b.WriteString("\n")
	}
	return b.String()
}

// axes are the strategies and the parts that were tried, in their order.
func (r *Result) axes() (strategies []string, lost []float64) {
	seen := map[any]bool{}
	for _, c := range r.Cells {
		if !seen[c.Strategy] {
			seen[c.Strategy], strategies = true, append(strategies, c.Strategy)
		}
		if !seen[c.Lost] {
			seen[c.Lost], lost = true, append(lost, c.Lost)
		}
	}
	return strategies, lost
}

func (r *Result) cell(strategy string, lost float64) *Cell {
	for i := range r.Cells {
		if c := &r.Cells[i]; c.Strategy == strategy && c.Lost == lost {
			return c
		}
	}
	return &Cell{}
}

// share writes a part as people do.
func share(part float64) string {
	for text, v := range map[string]float64{"¼": 0.25, "½": 0.5, "¾": 0.75, "all": 1} {
		if part == v {
			return text
		}
	}
	return study.Percent0(part)
}

// cost is the mean with its interval, and how many trials are in none of both.
func (c *Cell) cost() string {
	text := "–"
	if c.Mean != nil {
		text = fmt.Sprintf("%.1f [%s]", *c.Mean, c.Within.text(", ", oneDigit))
	}
	if c.Censored > 0 {
		text += fmt.Sprintf(", %d of %d censored", c.Censored, c.Trials)
	}
	return text
}

func oneDigit(v float64) string { return fmt.Sprintf("%.1f", v) }

func (c *Cell) less() string {
	if c.Fewer == nil {
		return "–"
	}
	return fmt.Sprintf("%s [%s]", study.Percent0(*c.Fewer), c.FewerIn.text(", ", study.Percent0))
}

// Picture draws the costs: a panel for each part of the servers that died, a row for each strategy.
func (r *Result) Picture() []byte {
	strategies, lost := r.axes()
	f := &draw.Figure{Name: "What a failure costs, in clocks: the mean, and its 95% interval", Width: 880, Columns: 3}
	for _, part := range lost {
		p := draw.Panel{Title: share(part) + " of the servers lost", X: draw.Axis{Name: "clocks", FromZero: true}}
		for i, s := range strategies {
			p.Rows = append(p.Rows, s)
			c := r.cell(s, part)
			if c.Mean == nil {
				continue
			}
			d := &draw.Dot{
				Row: i, Mid: *c.Mean, Low: *c.Mean, High: *c.Mean, Look: draw.LookOf(min(i, 1)),
				Text: oneDigit(*c.Mean),
			}
			if c.Within[0] != nil && c.Within[1] != nil {
				d.Low, d.High = *c.Within[0], *c.Within[1]
			}
			p.Items = append(p.Items, d)
		}
		f.Panels = append(f.Panels, p)
	}
	return f.SVG(true)
}

// writePage writes the table and the picture into a folder.
func (r *Result) writePage(folder string) error {
	if err := os.WriteFile(filepath.Join(folder, "costs.md"), []byte(r.Table()), 0o666); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, "costs.svg"), r.Picture(), 0o666)
}

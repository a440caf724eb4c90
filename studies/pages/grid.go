package main

import (
	"fmt"
	"strings"
	"text/template"
)

// grid writes the page of grid.yaml.
func grid(p *page) {
	calm, two := p.where(labelSet{"failures": "none"}), p.where(labelSet{"failures": "two"})
	worst, best := ends(two, clocks)
	axes, look := []string{"consistency", "recovery"}, styleAxes{colour: "recovery"}
	p.fill("grid", template.FuncMap{
		"most":       func() string { return p.nameOf(best, axes...) },
		"mostClocks": func() string { return best.median(clocks, "%.0f") },
		"least":      func() string { return p.nameOf(worst, axes...) },
		"leastClocks": func() string {
			return worst.median(clocks, "%.0f")
		},
		"count": func(axis string) int { return len(p.labelsOf(axis)) },
		"chains": func() string {
			var all []string
			for _, model := range p.labelsOf("consistency") {
				c := p.cell(labelSet{"consistency": model, "recovery": "chain:2", "failures": "two"})
				all = append(all, fmt.Sprintf("%s s (`%s`)", c.median(away, "%.2f"), model))
			}
			return strings.Join(all, ", ")
		},
		"killed": func() string {
			return p.dots("two.svg", "20 s with two kills", two, axes, look,
				col("clocks done", clocks, "%.0f"),
				col("updates lost", lost, "%.0f"),
				col("clocks redone", redone, "%.0f")) +
				p.table(two, axes,
					col("clocks", clocks, "%.0f"),
					column{"clocks, no kill", clocks, "%.0f", "none"},
					column{"clocks, one kill", clocks, "%.0f", "one"},
					col("accuracy", accuracy, percent),
					column{"accuracy, no kill", accuracy, percent, "none"},
					col("lost", lost, "%.0f"),
					col("redone", redone, "%.0f"),
					col("unavailable, s", away, "%.2f"))
		},
		"calm": func() string {
			return p.dots("none.svg", "20 s without failures", calm, axes, look,
				col("clocks done", clocks, "%.0f"),
				col("waiting for other workers", waiting, percent),
				col("moving rows", moving, percent)) +
				p.table(calm, axes,
					col("clocks", clocks, "%.0f"),
					col("accuracy", accuracy, percent),
					col("waiting", waiting, percent),
					col("moving rows", moving, percent),
					col("CPU s", cpuSeconds, "%.1f"),
					col("stored, MB", mbStored, "%.1f"))
		},
		"dollars": func() string {
			return p.table(two, axes,
				col("on demand, $", cost, "%.4f"),
				column{"without failures", cost, "%.4f", "none"},
				col("as spot machines", costSpot, "%.4f"),
				col("by the month", costMonth, "%.4f"),
				col("$ a clock, on demand", ratio(cost, clocks), "%.7f"),
				column{"without failures", ratio(cost, clocks), "%.7f", "none"})
		},
	})
}

package main

import (
	"fmt"
	"strings"
)

// grid is the page of grid.yaml.
func grid(p *page) {
	calm, two := p.where(at{"failures": "none"}), p.where(at{"failures": "two"})
	worst, best := ends(two, clocks)
	axes, look := []string{"consistency", "recovery"}, looks{colour: "recovery"}
	var chains []string
	for _, model := range p.by("consistency") {
		c := p.cell(at{"consistency": model, "recovery": "chain:2", "failures": "two"})
		chains = append(chains, fmt.Sprintf("%s s (`%s`)", c.show(away, "%.2f"), model))
	}
	p.say("# Consistency and recovery together")
	p.say("In 20 s with two kills, 2 s each, most was trained under `%s`, %s clocks, and least under `%s`, %s. "+
		"Under every model `chain:2` hardly stops: it is away for %s, of 4 s and more where the server's own rows "+
		"are waited for. What is lost or done again is the strategy's and not the model's: `none` and `scar` lose "+
		"updates, `checkpoint:20` does clocks again, the others do neither.",
		p.named(best, axes...), best.show(clocks, "%.0f"),
		p.named(worst, axes...), worst.show(clocks, "%.0f"), strings.Join(chains, ", "))
	p.say("Each of %d consistency models is tried with each of %d recovery strategies, while none, one or two "+
		"servers are killed: no paper has that. `studies/grid.yaml` says all settings.", len(p.by("consistency")),
		len(p.by("recovery")))
	p.command()
	p.facts("two runs at a time, whose workers wait in place of computing")
	p.say("## What two kills cost")
	p.dots("two.svg", "20 s with two kills", two, axes, look,
		col("clocks done", clocks, "%.0f"),
		col("updates lost", lost, "%.0f"),
		col("clocks redone", redone, "%.0f"))
	p.table(two, axes,
		col("clocks", clocks, "%.0f"),
		column{"of those without failures", clocks, "%.0f", "none"},
		column{"with one kill", clocks, "%.0f", "one"},
		col("accuracy", accuracy, percent),
		column{"without", accuracy, percent, "none"},
		col("lost", lost, "%.0f"),
		col("redone", redone, "%.0f"),
		col("away, s", away, "%.2f"))
	p.say("Away: for how long something was missing, over all kills. Each kill keeps its server away for 2 s at least.")
	p.say("## What it costs while nothing fails")
	p.dots("none.svg", "20 s in which nothing fails", calm, axes, look,
		col("clocks done", clocks, "%.0f"),
		col("waiting for rows", waiting, percent),
		col("moving rows", moving, percent))
	p.table(calm, axes,
		col("clocks", clocks, "%.0f"),
		col("accuracy", accuracy, percent),
		col("waiting", waiting, percent),
		col("moving", moving, percent),
		col("processor s", cpuSeconds, "%.1f"),
		col("stored, MB", mbStored, "%.1f"))
	if p.Prices != "" {
		p.say("## What it costs in dollars")
		p.say("Prices are of %s. A machine is paid for as long as it is there, so that what differs is what is had "+
			"for it.", p.Prices)
		p.table(two, axes,
			col("on demand, $", cost, "%.4f"),
			column{"without failures", cost, "%.4f", "none"},
			col("as spot machines", costSpot, "%.4f"),
			col("by the month", costMonth, "%.4f"),
			col("$ a clock, on demand", over(cost, clocks), "%.7f"),
			column{"without failures", over(cost, clocks), "%.7f", "none"})
	}
	if len(p.LeftOut) > 0 {
		p.say("Left out:")
	}
	for _, l := range p.LeftOut {
		p.line("- `%s`: %s", l.Name, l.Why)
	}
	p.line("")
	p.end()
}

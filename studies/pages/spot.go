package main

import (
	"fmt"
	"text/template"
)

// thousand returns a thousand times a measure.
func thousand(of measure) measure { return func(t *trial) float64 { return 1000 * of(t) } }

// perUpdate is the monthly cost divided by the applied updates: idle machines are paid for as well.
var perUpdate = ratio(costMonth, applied)

// spotPage is the page of spot.yaml.
type spotPage struct {
	*page
	axes       []string
	taken, asp []*cell // cells with preempted machines: all, and those under asp
}

// spot writes the page of spot.yaml.
func spot(of *page) {
	p := spotPage{
		of,
		[]string{"consistency", "recovery"},
		of.where(labelSet{"failures": "p3"}),
		of.where(labelSet{"failures": "p3", "consistency": "asp"}),
	}
	asp := func(m measure) func(string) string {
		return func(recovery string) string {
			return p.cell(labelSet{"consistency": "asp", "failures": "p3", "recovery": recovery}).median(m, "%.0f")
		}
	}
	p.fill("spot", template.FuncMap{
		// taken adds the setting with which other servers take over from one that is unavailable.
		"taken":  func(recovery string) string { return recovery + " take-over-after=1s" },
		"clocks": asp(clocks), "lost": asp(lost), "redone": asp(redone),
		"failed": func(recovery string) string {
			return failedRuns(p.where(labelSet{"failures": "p3", "recovery": recovery}))
		},
		"mostBSP": func() string {
			_, most := ends(p.where(labelSet{"consistency": "bsp", "failures": "p3"}), clocks)
			return most.median(clocks, "%.0f")
		},
		"rest": p.remarks, "lefts": p.clocksShares, "dollars": p.dollars, "money": p.costClaim, "updates": p.updates,
		"verdict": p.verdict,
	})
}

// clocksShare returns the clocks finished on spot machines as a share of those on machines that stay.
func (p spotPage) clocksShare(model, recovery string) string {
	labels := labelSet{"consistency": model, "recovery": recovery}
	calm, p3 := p.cell(labels.and("failures", "calm")), p.cell(labels.and("failures", "p3"))
	return shown(100*(p3.mid(clocks)/calm.mid(clocks)), "%.0f%%")
}

// remarks describes the results of the runs, and lists the failed runs.
func (p spotPage) remarks() string {
	axes, taken := p.axes, p.taken
	text := p.curves("accuracy.svg", "Accuracy over time", "test_accuracy", "test accuracy", taken,
		styleAxes{colour: "recovery"},
		"consistency") +
		p.dots("left.svg", "Three minutes, with the removals of an hour", taken, axes, styleAxes{colour: "recovery"},
			col("clocks done", clocks, "%.0f"),
			col("updates lost", lost, "%.0f"),
			col("clocks redone", redone, "%.0f")) +
		p.table(taken, axes,
			col("clocks", clocks, "%.0f"),
			column{"undisturbed", clocks, "%.0f", "calm"},
			col("accuracy", accuracy, percent),
			column{"undisturbed", accuracy, percent, "calm"},
			col("faults", faults, "%.0f"),
			col("lost", lost, "%.0f"),
			col("redone", redone, "%.0f"),
			col("unavailable, s", away, "%.1f"))
	for _, c := range taken {
		for _, f := range c.failed {
			text += fmt.Sprintf("- `%s`, seed %d, failed: %s\n", p.nameOf(c, axes...), f.Seed, f.Why)
		}
	}
	return text
}

func (p spotPage) clocksShares() string {
	text := "| | undisturbed, clocks | on spot machines, clocks | left |\n|---|--:|--:|--:|\n"
	for _, model := range p.labelsOf("consistency") {
		for _, recovery := range p.labelsOf("recovery") {
			labels := labelSet{"consistency": model, "recovery": recovery}
			calm, p3 := p.cell(labels.and("failures", "calm")), p.cell(labels.and("failures", "p3"))
			text += fmt.Sprintf("| `%s %s` | %s | %s | %s |\n", model, recovery, calm.show(clocks, "%.0f"),
				p3.show(clocks, "%.0f"), p.clocksShare(model, recovery))
		}
	}
	return text
}

func (p spotPage) dollars() string {
	return p.table(p.taken, p.axes,
		col("on demand, $", cost, "%.4f"),
		col("spot, $", costSpot, "%.4f"),
		col("by the month, $", costMonth, "%.4f"),
		column{"on demand, undisturbed, $", cost, "%.4f", "calm"},
		col("$ per 1,000 clocks, spot", thousand(ratio(costSpot, clocks)), "%.3f"),
		column{"undisturbed, on demand", thousand(ratio(cost, clocks)), "%.3f", "calm"},
		col("$ to 80%, spot", costTo(costSpot, "test_accuracy", 0.8), "%.4f"),
		column{"undisturbed, on demand", costTo(cost, "test_accuracy", 0.8), "%.4f", "calm"})
}

// costClaim judges the paper's claim that costs are similar.
func (p spotPage) costClaim() string {
	cells := p.asp
	perClock, perMonth := thousand(ratio(cost, clocks)), thousand(ratio(costMonth, clocks))
	cheap, dear := ends(cells, cost)
	similar := "These differ by more than 10%: the claim does not hold here."
	if dear.mid(cost) < 1.1*cheap.mid(cost) {
		similar = "These are within 10% of each other. The claim holds, as it must for runs of equal length."
	}
	low, high := ends(cells, perClock)
	lowMonth, highMonth := ends(cells, perMonth)
	return fmt.Sprintf("- Machines are billed per second of presence, whether they train or not. Under `asp` runs "+
		"cost from $%s (`%s`) to $%s (`%s`). %s\n- The work done for that money differs: 1,000 clocks cost from $%s "+
		"(`%s`) to $%s (`%s`) on demand. With monthly billing, where idle machines cost as much as busy ones, they "+
		"cost from $%s to $%s.", cheap.median(cost, "%.4f"), p.nameOf(cheap, "recovery"), dear.median(cost, "%.4f"),
		p.nameOf(dear, "recovery"), similar, low.median(perClock, "%.3f"), p.nameOf(low, "recovery"),
		high.median(perClock, "%.3f"), p.nameOf(high, "recovery"), lowMonth.median(perMonth, "%.3f"),
		highMonth.median(perMonth, "%.3f"))
}

func (p spotPage) updates() string {
	text := "| recovery | `asp`, $ per million updates, monthly | `bsp` | continuing is cheaper, ranges " +
		"disjoint |\n|---|--:|--:|---|\n"
	for _, recovery := range p.labelsOf("recovery") {
		labels := labelSet{"recovery": recovery, "failures": "p3"}
		goes, waits := p.cell(labels.and("consistency", "asp")), p.cell(labels.and("consistency", "bsp"))
		text += fmt.Sprintf("| `%s` | %s | %s | %s |\n", recovery, shown(1e6*goes.mid(perUpdate), "%.4f"),
			shown(1e6*waits.mid(perUpdate), "%.4f"), above(waits.spread(perUpdate), goes.spread(perUpdate)))
	}
	return text
}

// verdict compares the cheapest strategy that continues with the cheapest one that waits: does it train more for the
// same money?
func (p spotPage) verdict() string {
	cheapest, _ := ends(p.asp, perUpdate)
	patient, _ := ends(p.where(labelSet{"consistency": "bsp", "failures": "p3"}), perUpdate)
	goes, waits := p.nameOf(cheapest, "recovery"), p.nameOf(patient, "recovery")
	switch decision := above(patient.spread(perUpdate), cheapest.spread(perUpdate)); decision {
	case reproduced:
		return fmt.Sprintf("**The claim holds here.** With monthly billing, the cheapest strategy that continues "+
			"(`%s`) applies more updates for the same money than the cheapest that waits (`%s`), and the ranges of "+
			"their trials do not overlap.", goes, waits)
	case notReproduced:
		return fmt.Sprintf("**The claim does not hold here.** With monthly billing, the trials do not show that the "+
			"cheapest strategy that continues (`%s`) applies more updates for the same money than the cheapest that "+
			"waits (`%s`).", goes, waits)
	case incomparable:
		return "Whether the claim holds is unknown: runs or prices are missing."
	default:
		return fmt.Sprintf("For the cheapest strategies the verdict is *%s*, which says nothing about chance.",
			decision)
	}
}

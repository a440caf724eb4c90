package main

import (
	"fmt"
)

// takeOver is how recovery is written where others take over from a server that is away.
const takeOver = " take-over-after=1s"

// perUpdate is the cost of an applied update, by the month: idle machines are paid as well.
var perUpdate = over(costMonth, applied)

// spot is the page of spot.yaml.
func spot(p *page) {
	taken := p.where(at{"failures": "p3"})
	axes := []string{"consistency", "recovery"}
	spotSummary(p, taken)
	p.command()
	p.facts(p.atATime())
	for _, note := range p.Notes {
		p.line("- %s", note)
	}
	p.line("")
	p.say("## What is left")
	p.curves("accuracy.svg", "Accuracy over time", "test_accuracy", "test accuracy", taken, looks{colour: "recovery"},
		"consistency")
	p.dots("left.svg", "Three minutes of an hour's removals", taken, axes, looks{colour: "recovery"},
		col("clocks done", clocks, "%.0f"),
		col("updates lost", lost, "%.0f"),
		col("clocks redone", redone, "%.0f"))
	p.table(taken, axes,
		col("clocks", clocks, "%.0f"),
		column{"undisturbed", clocks, "%.0f", "calm"},
		col("accuracy", accuracy, percent),
		column{"undisturbed", accuracy, percent, "calm"},
		col("faults", faults, "%.0f"),
		col("lost", lost, "%.0f"),
		col("redone", redone, "%.0f"),
		col("away, s", away, "%.1f"))
	for _, c := range taken {
		for _, f := range c.failed {
			p.line("- `%s`, seed %d, did not end: %s", p.named(c, axes...), f.Seed, f.Why)
		}
	}
	p.say("")
	p.say("What is left of the clocks that the same choice does on machines that stay:")
	p.line("| | undisturbed, clocks | on spot machines, clocks | left |\n|---|--:|--:|--:|")
	for _, model := range p.by("consistency") {
		for _, recovery := range p.by("recovery") {
			labels := at{"consistency": model, "recovery": recovery}
			calm, p3 := p.cell(labels.and("failures", "calm")), p.cell(labels.and("failures", "p3"))
			p.line("| `%s %s` | %s | %s | %s |", model, recovery, calm.show(clocks, "%.0f"), p3.show(clocks, "%.0f"),
				left(calm, p3))
		}
	}
	p.line("")
	spotCost(p, taken, axes)
	spotClaims(p)
	p.end()
}

// left is the share of clocks that are done on spot machines, of those on machines that stay.
func left(calm, p3 *cell) string { return shown(100*(p3.mid(clocks)/calm.mid(clocks)), "%.0f%%") }

// spotSummary writes the main findings.
func spotSummary(p *page, taken []*cell) {
	asp := at{"consistency": "asp", "failures": "p3"}
	under := func(recovery string) *cell { return p.cell(asp.and("recovery", recovery)) }
	share := func(recovery string) string {
		labels := at{"consistency": "asp", "recovery": recovery}
		return left(p.cell(labels.and("failures", "calm")), p.cell(labels.and("failures", "p3")))
	}
	_, mostBSP := ends(p.where(at{"consistency": "bsp", "failures": "p3"}), clocks)
	_, most := ends(taken, clocks)
	chains := at{"failures": "p3", "recovery": "chain:2"}
	p.say("# Spot machines that are taken away")
	p.say("On machines that are taken away as Bamboo's record has it, take `asp` with `suspend-after`, so that "+
		"nobody waits for a worker that is away, and with `take-over-after`, so that others take over from a "+
		"server. Of the clocks that each does on machines that stay, `resend:auto` did %s so, `scar` %s, "+
		"`stateless` %s and `chain:2` %s; where a server's next process is awaited it is %s, %s and %s of the first "+
		"three, and %s of `chain:2` ended, since a second server of a chain went before the first was back (%s with "+
		"`take-over-after`).",
		share("resend:auto"+takeOver), share("scar"+takeOver), share("stateless"+takeOver), share("chain:2"+takeOver),
		share("resend:auto"), share("scar"), share("stateless"), failedRuns(p.where(chains)),
		failedRuns(p.where(chains.and("recovery", "chain:2"+takeOver))))
	p.say("If no update may be lost, take `stateless` or `chain:2`, which lost %s and %s and did next to nothing "+
		"again; `scar` lost %s, `none` %s, and `resend:auto` did %s clocks again. Under `bsp` all wait for each "+
		"worker that is away: no strategy did more than %s clocks, where `asp` did up to %s. A second of a run "+
		"stands for twenty of the record.",
		under("stateless"+takeOver).show(lost, "%.0f"), under("chain:2"+takeOver).show(lost, "%.0f"),
		under("scar"+takeOver).show(lost, "%.0f"), under("none").show(lost, "%.0f"),
		under("resend:auto"+takeOver).show(redone, "%.0f"), mostBSP.show(clocks, "%.0f"), most.show(clocks, "%.0f"))
	p.say("An hour of the record of AWS p3 machines in Bamboo (Thorpe et al., NSDI 2023), from its minute 220 on, " +
		"goes by in three minutes. The job has 12 machines, 8 workers and 4 servers: which machine is which, the " +
		"seed draws. A machine that is taken away is killed, what is taken away at once is killed at once, and the " +
		"next machine that comes takes the place that has been empty longest. `studies/spot.yaml` says all settings.")
}

// spotCost writes about the cost of runs.
func spotCost(p *page, taken []*cell, axes []string) {
	p.say("## What it costs")
	if p.Prices != "" {
		p.line("Prices are of %s.", p.Prices)
	}
	p.say("Dollars for these three minutes, of all machines: on demand, as spot machines, and by the month, where " +
		"what stands idle is paid, too.")
	p.table(taken, axes,
		col("on demand, $", cost, "%.4f"),
		col("spot, $", costSpot, "%.4f"),
		col("by the month, $", costMonth, "%.4f"),
		column{"on demand, undisturbed, $", cost, "%.4f", "calm"},
		col("$ a thousand clocks, spot", over(costSpot, clocks), "%.6f"),
		column{"undisturbed, on demand", over(cost, clocks), "%.6f", "calm"},
		col("$ to 80%, spot", costTo(costSpot, "test_accuracy", 0.8), "%.4f"),
		column{"undisturbed, on demand", costTo(cost, "test_accuracy", 0.8), "%.4f", "calm"})
	p.say("Two columns are dollars for each clock, and the last two what it costs to come to a test accuracy of " +
		"80%%: on spot machines that are taken away, and on machines on demand that are not.")
}

// spotClaims judges a paper's claims about cost.
func spotClaims(p *page) {
	cells := p.where(at{"consistency": "asp", "failures": "p3"})
	perClock, perMonth := over(cost, clocks), over(costMonth, clocks)
	cheap, dear := ends(cells, cost)
	similar := "That is more than a tenth apart: the claim does not hold here."
	if dear.mid(cost) < 1.1*cheap.mid(cost) {
		similar = "That is within a tenth: the costs are similar. The claim holds, as it must for runs of the same " +
			"time."
	}
	low, high := ends(cells, perClock)
	lowMonth, highMonth := ends(cells, perMonth)
	p.say("## The paper's claims about money")
	p.say("*Training Through Failure* says that its strategies cost about the same \"due to the pricing " +
		"structure\", and that going on through failures uses machines better. Both follow from what is paid for.")
	p.line("- Machines are paid by the second that they are there, trained or not: under `asp` runs cost from $%s "+
		"(`%s`) to $%s (`%s`). %s", cheap.show(cost, "%.4f"), p.named(cheap, "recovery"), dear.show(cost, "%.4f"),
		p.named(dear, "recovery"), similar)
	p.say("- What differs is what is had for it: a clock costs from $%s (`%s`) to $%s (`%s`), on demand; with a fixed "+
		"term, where a machine that stands idle is paid as one that works, from $%s to $%s.",
		low.show(perClock, "%.6f"), p.named(low, "recovery"), high.show(perClock, "%.6f"), p.named(high, "recovery"),
		lowMonth.show(perMonth, "%.6f"), highMonth.show(perMonth, "%.6f"))
	p.say("Better use of machines where idle time is paid anyway is a claim about going on beside waiting: under " +
		"`asp` workers go on without who is away, under `bsp` all wait. It is judged by the dollars that an update " +
		"in the model costs by the month: a clock in which a worker is away has fewer.")
	p.line("| recovery | `asp`, $ a million updates by the month | `bsp` | going on is cheaper, and the ranges do " +
		"not meet |\n|---|--:|--:|---|")
	for _, recovery := range p.by("recovery") {
		labels := at{"recovery": recovery, "failures": "p3"}
		goes, waits := p.cell(labels.and("consistency", "asp")), p.cell(labels.and("consistency", "bsp"))
		p.line("| `%s` | %s | %s | %s |", recovery, shown(1e6*goes.mid(perUpdate), "%.4f"),
			shown(1e6*waits.mid(perUpdate), "%.4f"), above(waits.spread(perUpdate), goes.spread(perUpdate)))
	}
	goes, _ := ends(cells, perUpdate)
	waits, _ := ends(p.where(at{"consistency": "bsp", "failures": "p3"}), perUpdate)
	p.say("\n%s\nAn update under `asp` is worth less than one under `bsp` where rows are old: accuracy is in the "+
		"first table.",
		spotVerdict(above(waits.spread(perUpdate), goes.spread(perUpdate)), p.named(goes, "recovery"),
			p.named(waits, "recovery")))
}

// spotVerdict writes whether the cheapest strategy that continues trains more for the same money than the cheapest one
// that waits.
func spotVerdict(verdict, goes, waits string) string {
	switch verdict {
	case reproduced:
		return fmt.Sprintf("**The claim holds here**: where idle time is paid anyway, the cheapest strategy that "+
			"goes on (`%s`) has more for the same money than the cheapest that waits (`%s`), and the ranges of "+
			"their trials do not meet.", goes, waits)
	case notReproduced:
		return fmt.Sprintf("**The claim does not hold here**: where idle time is paid anyway, the trials do not "+
			"show that the cheapest strategy that goes on (`%s`) has more for the same money than the cheapest that "+
			"waits (`%s`).",
			goes, waits)
	case incomparable:
		return "Whether the claim holds is not known: runs are still to be done, or there are no prices."
	}
	return fmt.Sprintf("The claim is %s, which says nothing of chance.", verdict)
}

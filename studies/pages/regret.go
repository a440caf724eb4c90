package main

import "math"

// leastLoss is the least that any run of the study's model came to.
const leastLoss = 0.42

// regret is the page of regret.yaml.
func regret(p *page) {
	sum := regretOf("test_loss", leastLoss)
	byRoot := over(sum, func(t *trial) float64 { return math.Sqrt(clocks(t)) })
	of := func(model, clocks string) string {
		return p.cell(at{"consistency": model, "clocks": clocks}).show(byRoot, "%.2f")
	}
	p.say("# Regret on a convex problem")
	p.say("From the shortest runs to those of 16 times the clocks the regret divided by √T goes from %s to %s under "+
		"`bsp`, from %s to %s under `ssp:30`, and from %s to %s under `asp`. Where that does not grow the regret is "+
		"O(√T), as the theory has it for `ssp:S` with steps η/√t; for `asp` nothing is proved. How much staleness "+
		"costs is how far the lines of the table are apart at the same T.",
		of("bsp", "250"), of("bsp", "4000"), of("ssp:30", "250"),
		of("ssp:30", "4000"), of("asp", "250"), of("asp", "4000"))
	p.say("The problem is softmax regression, which is convex; T is the number of clocks, the step of clock t is "+
		"1/√t, and one worker of four is three times slower. The regret is the sum over the clocks of the loss on "+
		"the test set above %v, the least that any run of this model came to. `studies/regret.yaml` says all "+
		"settings.", leastLoss)
	p.command()
	p.facts(p.atATime())
	axes := []string{"consistency", "clocks"}
	p.dots("regret.svg", "Regret divided by √T", p.cells, axes, looks{colour: "consistency"},
		col("regret / √T", byRoot, "%.2f"),
		col("loss at the end", loss, "%.4f"))
	p.table(p.cells, axes,
		col("regret", sum, "%.1f"),
		col("regret / √T", byRoot, "%.2f"),
		col("loss at the end", loss, "%.4f"),
		col("most missing updates", missing(highest), "%.0f"),
		col("bound, P(2s + 1)", missingBound, "%.0f"))
	p.end()
}

package main

// bound is the page of bound.yaml.
func bound(p *page) {
	under := func(delay, model string) *cell { return p.cell(at{"delay": delay, "consistency": model}) }
	test := atEnd("test_rmse")
	p.say("# What a bound on values costs")
	p.say("Where messages take 10 ms, as long as a clock computes, workers wait for the bound for %s of their time "+
		"under `vap:2` and for %s under `vap:0.02`; where they take 1 ms, for %s and %s. A worker waits until what "+
		"it sent before has reached all, whatever V is, once each of its updates changes some value by more than "+
		"V/√(clock+1): so it is with %s of 600 updates under `vap:2`, and with %s under `vap:0.02`. `essp:3` took "+
		"%s s where `vap:0.1` took %s s, and came to an error of %s beside %s.",
		under("10ms", "vap:2").show(waiting, percent), under("10ms", "vap:0.02").show(waiting, percent),
		under("1ms", "vap:2").show(waiting, percent), under("1ms", "vap:0.02").show(waiting, percent),
		under("10ms", "vap:2").show(beyondBound, "%.0f"), under("10ms", "vap:0.02").show(beyondBound, "%.0f"),
		under("10ms", "essp:3").show(seconds, "%.1f"), under("10ms", "vap:0.1").show(seconds, "%.1f"),
		under("10ms", "essp:3").show(test, "%.3f"), under("10ms", "vap:0.1").show(test, "%.3f"))
	p.say("*High-Performance Distributed ML at Scale through Parameter Server Consistency Models* (Dai, Kumar, Wei, " +
		"Ho, Gibson, Xing, AAAI 2015) has `vap` in theory alone, as too dear to be had, and offers `essp` in its " +
		"place. This page has both. The problem and the step size are those of [the study of " +
		"consistency](../consistency/README.md), at 10%% of the data in a clock; every clock is drawn out at random " +
		"(`jitter*2:worker:*@0s`). `studies/bound.yaml` says all settings.")
	p.command()
	p.facts(p.atATime())
	for _, delay := range p.by("delay") {
		p.say("## Messages of %s", delay)
		cells, axes := p.where(at{"delay": delay}), []string{"consistency"}
		p.dots("time-"+delay+".svg", "What the workers' time goes to, messages of "+delay, cells, axes,
			looks{colour: "consistency"},
			col("waiting for rows or the bound", waiting, percent),
			col("moving rows", moving, percent),
			col("seconds in all", seconds, "%.1f"))
		p.table(cells, axes,
			col("seconds", seconds, "%.1f"),
			col("waiting", waiting, percent),
			col("moving rows", moving, percent),
			col("updates beyond the bound", beyondBound, "%.0f"),
			col("clock differential", differential(mean), "%.2f"),
			col("RMSE at the end", test, "%.3f"))
	}
	p.end()
}

package main

// topics is the page of topics.yaml.
func topics(p *page) {
	moved := func(model string) string { return p.cell(at{"consistency": model}).show(moving, percent) }
	waited := func(model string) string { return p.cell(at{"consistency": model}).show(waiting, percent) }
	p.say("# Topic models: what the workers' time goes to")
	p.say("Moving rows takes %s of the time under `ssp:2`, %s under `ssp:4` and %s under `ssp:8`; under `essp` with "+
		"the same S it takes %s, %s and %s. The paper has 17%% to 26%%, and 4%%. Waiting for others is added to "+
		"that: %s under `ssp:2`, %s under `essp:2`.",
		moved("ssp:2"), moved("ssp:4"), moved("ssp:8"), moved("essp:2"), moved("essp:4"),
		moved("essp:8"), waited("ssp:2"), waited("essp:2"))
	p.say("This page repeats the LDA part of figure 2 of *High-Performance Distributed ML at Scale through "+
		"Parameter Server Consistency Models* (Dai, Kumar, Wei, Ho, Gibson, Xing, AAAI 2015), with 20 Newsgroups, "+
		"100 topics, clocks of half of the data and 4 workers that share %d cores, in place of NYTimes on 8 "+
		"machines. Every clock is drawn out at random (`jitter*2:worker:*@0s`), messages are held back for 1 ms, "+
		"and a process sends 125 MB in a second at most. `studies/topics.yaml` says all settings.", p.Machine.Cores)
	p.command()
	p.facts(p.atATime())
	axes, look := []string{"consistency"}, looks{colour: "consistency"}
	p.dots("time.svg", "What the workers' time goes to", p.cells, axes, look,
		col("waiting for rows or the bound", waiting, percent),
		col("moving rows", moving, percent),
		col("seconds in all", seconds, "%.1f"))
	p.table(p.cells, axes,
		col("seconds", seconds, "%.1f"),
		col("computing", computing, percent),
		col("waiting", waiting, percent),
		col("moving rows", moving, percent),
		col("clock differential", differential(mean), "%.2f"),
		col("loss at the end", loss, "%.4f"))
	p.say("The loss is the mean of −log p(word) of held-out documents, in nats.")
	p.curves("loss.svg", "Loss on held-out documents", "test_loss", "test loss",
		only(p.cells, "consistency", "bsp", "ssp:2", "essp:2", "ssp:8", "essp:8"), look, "")
	p.end()
}

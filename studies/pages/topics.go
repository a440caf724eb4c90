package main

import "text/template"

// topics writes the page of topics.yaml.
func topics(p *page) {
	of := func(m measure) func(string) string {
		return func(model string) string { return p.cell(labelSet{"consistency": model}).median(m, percent) }
	}
	axes, look := []string{"consistency"}, styleAxes{colour: "consistency"}
	p.fill("topics", template.FuncMap{
		"moved": of(moving), "waited": of(waiting),
		"seconds": func(model string) string {
			return p.cell(labelSet{"consistency": model}).median(seconds, "%.1f")
		},
		"time": func() string {
			return p.dots("time.svg", "How the workers spend their time", p.cells, axes, look,
				col("waiting for other workers", waiting, percent),
				col("moving rows", moving, percent),
				col("run time in seconds", seconds, "%.1f")) +
				p.table(p.cells, axes,
					col("seconds", seconds, "%.1f"),
					col("computing", computing, percent),
					col("waiting", waiting, percent),
					col("moving rows", moving, percent),
					col("clock differential", differential(mean), "%.2f"),
					col("final loss", loss, "%.4f"))
		},
		"losses": func() string {
			return p.curves("loss.svg", "Loss on held-out documents", "test_loss", "test loss",
				only(p.cells, "consistency", "bsp", "ssp:2", "essp:2", "ssp:8", "essp:8"), look, "")
		},
	})
}

package main

import "text/template"

// bound writes the page of bound.yaml.
func bound(p *page) {
	of := func(m measure, format string) func(delay, model string) string {
		return func(delay, model string) string {
			return p.cell(labelSet{"delay": delay, "consistency": model}).median(m, format)
		}
	}
	p.fill("bound", template.FuncMap{
		"waiting": of(waiting, percent), "beyond": of(beyondBound, "%.0f"), "seconds": of(seconds, "%.1f"),
		"test": of(rmse, "%.3f"), "delays": func() []string { return p.labelsOf("delay") },
		"time": func(delay string) string {
			cells, axes := p.where(labelSet{"delay": delay}), []string{"consistency"}
			return p.dots("time-"+delay+".svg", "How the workers spend their time, messages of "+delay, cells, axes,
				styleAxes{colour: "consistency"},
				col("waiting for other workers", waiting, percent),
				col("moving rows", moving, percent),
				col("run time in seconds", seconds, "%.1f")) +
				p.table(cells, axes,
					col("seconds", seconds, "%.1f"),
					col("waiting", waiting, percent),
					col("moving rows", moving, percent),
					col("updates beyond the bound", beyondBound, "%.0f"),
					col("clock differential", differential(mean), "%.2f"),
					col("RMSE of the final model", rmse, "%.3f"))
		},
	})
}

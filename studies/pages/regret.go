package main

import (
	"math"
	"text/template"
)

// minLoss is the lowest loss that any run of the study's model reached.
const minLoss = 0.42

// regret writes the page of regret.yaml.
func regret(p *page) {
	sum, axes := regretOf("test_loss", minLoss), []string{"consistency", "clocks"}
	byRoot := ratio(sum, func(t *trial) float64 { return math.Sqrt(clocks(t)) })
	p.fill("regret", template.FuncMap{
		"leastLoss": func() float64 { return minLoss },
		"byRoot": func(model, clocks string) string {
			return p.cell(labelSet{"consistency": model, "clocks": clocks}).median(byRoot, "%.2f")
		},
		"regrets": func() string {
			return p.dots("regret.svg", "Regret divided by √T", p.cells, axes, styleAxes{colour: "consistency"},
				col("regret / √T", byRoot, "%.2f"),
				col("loss at the end", loss, "%.4f")) +
				p.table(p.cells, axes,
					col("regret", sum, "%.1f"),
					col("regret / √T", byRoot, "%.2f"),
					col("final loss", loss, "%.4f"),
					col("max missing updates", missing(highest), "%.0f"),
					col("bound, P(2s + 1)", missingBound, "%.0f"))
		},
	})
}

package main

import (
	"encoding/csv"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/perdure/perdure/internal/run/plain"
	"github.com/perdure/perdure/internal/run/plot"
	"github.com/perdure/perdure/internal/run/study/failurecost"
)

// Strategies that the page speaks of: rows that come back alone, from full saves, and from saves of an eighth of the
// rows, by priority.
const (
	fullSaves   = "scar:16,1,priority"
	eighthSaves = "scar:16,1/8,priority"
)

// scarPage is the page of scar.yaml.
type scarPage struct{ *page }

func (p scarPage) problem(name string) *cell { return p.cell(at{"problem": name}) }

// scar is the page of scar.yaml.
func scar(of *page) {
	p := scarPage{of}
	p.summary()
	p.method()
	p.reasons()
	p.problems()
	p.variants()
	p.bytes()
	p.models()
	p.bounds()
}

// summary writes the main findings.
func (p scarPage) summary() {
	var all []*cell
	rows := []struct{ name, problem string }{
		{"quadratic", "quadratic"},
		{"softmax on CoverType", "covtype"},
		{"softmax on MNIST", "mnist"},
		{"als on MovieLens 100k", "als-movielens"},
		{"als on Jester", "als-jester"},
		{"lda on Reuters, document–topic", "lda-reuters-documents"},
		{"lda on 20 Newsgroups, document–topic", "lda-20news-documents"},
		{"lda on Reuters, word–topic", "lda-reuters"},
		{"lda on 20 Newsgroups, word–topic", "lda-20news"},
		{"lda on Reuters, workers remember and `--rebuild`", "lda-reuters-rebuild"},
		{"cnn on MNIST, by row", "cnn-row"},
		{"cnn on MNIST, by layer", "cnn-layer"},
	}
	for _, row := range rows {
		all = append(all, p.problem(row.problem))
	}
	full, eighth := better(all, fullSaves), better(all, eighthSaves)
	p.say("# What a lost server costs, in iterations")
	p.say("With half of the servers lost, rows that come back alone, each as it was saved last, cost %s fewer "+
		"clocks than full recovery on %d of %d problems; saved by priority an eighth at a time, %s fewer on %d. On "+
		"the others the gain is within the spread of the trials, or runs never come to their loss again. The paper "+
		"has 31%% to 62%% for the former, and 78%% to 95%% for the latter.",
		savings(full, fullSaves, 0.5), len(full), len(all),
		savings(eighth, eighthSaves, 0.5), len(eighth))
	p.line("| problem | only the lost rows, from full saves (`scar:16,1`) | and saved by priority " +
		"(`scar:16,1/8,priority`) | the paper's 78%% to 95%% |\n|---|--:|--:|---|")
	for i, row := range rows {
		p.line("| %s | %s | %s | %s |", row.name, all[i].fewer(fullSaves), all[i].fewer(eighthSaves),
			all[i].claim(eighthSaves, 0.78))
	}
	p.line("")
	p.say("In brackets are 95%% intervals. The rule of the last column: *reproduced* where the mean saves 78%% or " +
		"more; *not reproduced* where even the upper end of the interval saves less, or most runs never come to ε.")
	p.say("The paper is Qiao, Aragam, Zhang and Xing, *Fault Tolerance in Iterative-Convergent Machine Learning* "+
		"(ICML 2019, arXiv 1810.07354). Its partial recovery alone saves 59%% to 89%% of the iterations with a "+
		"quarter of the parameters lost, 31%% to 62%% with half and 12%% to 42%% with three quarters; here it is "+
		"%s, %s and %s on the problems where it saves. Its headline is that partial failures cost 78%% to 95%% "+
		"fewer iterations than with full checkpoints, with half of the parameters lost and an eighth of them saved "+
		"at a time by priority. It does not say its ε, intervals between checkpoints, batches, ranks or topics. So "+
		"these are ours:",
		savings(full, fullSaves, 0.25), savings(full, fullSaves, 0.5), savings(full, fullSaves, 0.75))
}

// method writes how the experiment was done.
func (p scarPage) method() {
	for _, text := range []string{
		"A training has 2 workers, 4 servers and 16 shards, under `bsp`. Full checkpoints are 16 clocks apart; " +
			"`scar:16,R` saves R of the rows each R · 16 clocks. So all have the same budget of rows. MB in the " +
			"tables are what was written for all twins until their last failures. Files also have headers, and what " +
			"compaction asks for, which counts in models as small as these.",
		"There are " + p.tried() + " undisturbed twins of each, each with its own seed, and 5 failures of each. The " +
			"clock of a failure is drawn from a geometric distribution whose mean is a third of the clocks, and " +
			"lies within the first 80%. Which servers die is drawn, too. All strategies meet the same failures.",
		"A failure strikes between two clocks. Lost rows come back as they were saved last; before their first save " +
			"they are initial, as they are under `none`. Under `checkpoint:16` all go back, and its cost is the " +
			"clocks that are done again, exactly.",
		"Where clocks take batches a model is judged by the mean of 10 clocks: see [below](#single-clocks). Else it " +
			"is judged at each clock.",
		"ε is what the twin has at 90% of its clocks, and keeps. A run is disturbed when it comes to ε for good " +
			"only later; it goes on until 130%, and is censored if it is not there. Censored trials are in no mean; " +
			"they are counted.",
		"`resend:16` and `chain:2` lose nothing under `bsp`, so they cost 0 iterations here. They cost what they " +
			"always do: memory of workers, and twice the servers' memory and messages.",
	} {
		p.line("- %s", text)
	}
	p.say("\nThe trainings ran in memory, by the servers' own tables, ledger and files of rows "+
		"([how](../../guide/itercost.md#hundreds-of-failures-in-memory)). %s", repeated(p.cells))
	p.command()
	p.facts("nothing here is a time")
}

// reasons explains the findings.
func (p scarPage) reasons() {
	p.say("## Why")
	for _, text := range []string{
		"**Where each clock takes the model nearer by a factor** (quadratic, softmax), a loss costs the logarithm " +
			"of how far it throws the model back. Going back to a checkpoint costs the clocks since then, 8 in the " +
			"mean. Half of the rows as old as that is half of the way back, and a little less in clocks; where the " +
			"rows that change most are saved an eighth at a time, what comes back is younger in what counts. For " +
			"78% a loss must cost no more than 2 clocks: most of the change has to be in few rows.",
		"**Alternating least squares** solves one side from the other: what is lost of one side is back when it is " +
			"solved next, as good as the other side is. So the costs are few clocks, and differ by more than the " +
			"strategies do.",
		"**Topics** change slowly once a training is under way, and a document whose topics are drawn again is as " +
			"good as before in a pass or two. That is why the paper's headline comes back there, and only there. It " +
			"needs counts that fit the topics: where the counts alone come back old, and nothing mends them, they " +
			"contradict the topics from then on, and runs may never come to their loss again.",
		"**Adam's network** is judged by batches of 64 in its first 100 clocks: what trials of one strategy differ " +
			"by is more than what any strategy saves.",
	} {
		p.line("- %s", text)
	}
	p.line("")
}

// problems writes about the problems of the paper.
func (p scarPage) problems() {
	p.say("## quadratic")
	p.drawn("quadratic", "A bowl of 4,000 values and condition 100, step 1; 100 clocks.")
	p.say("## softmax on CoverType")
	p.drawn("covtype", "A sample of 11,340 examples in 7 classes, batches of 500; 100 clocks.")
	p.say("## softmax on MNIST")
	p.drawn("mnist", "60,000 pictures, batches of 500; 100 clocks.")
	p.say("## als on MovieLens 100k")
	p.drawn("als-movielens", "Rank 10; a clock solves all users or all items; 80 clocks.")
	p.say("## als on Jester")
	p.drawn("als-jester", "Rank 5; a clock solves all users or all items; 60 clocks.")
	p.say("## lda, document–topic")
	p.say("Documents' topics are on the servers alone (`--doc-topics table --rebuild`), as the paper has them: " +
		"documents whose rows are lost go back to the topics that were saved, and the words' counts are made those " +
		"of all assignments.")
	p.drawn("lda-reuters-documents", "Reuters: 20 topics, collapsed Gibbs sampling, a clock is a pass; 50 clocks.")
	p.drawn("lda-20news-documents", "20 Newsgroups: 20 topics, a clock is a pass over 11,269 documents; 50 clocks.")
	p.say("## lda, word–topic")
	p.say("Workers know the topics that they have drawn, and only the words' counts come back old. They contradict " +
		"the topics, and nothing mends that:")
	p.drawn("lda-reuters", "Reuters, likewise.")
	p.drawn("lda-20news", "20 Newsgroups, likewise.")
	p.say("With `--rebuild` the workers mend them by what they know:")
	p.drawn("lda-reuters-rebuild", "Reuters, likewise.")
	p.say("## cnn on MNIST")
	p.drawn("cnn-row", "A convolutional network, Adam with step 0.001, batches of 64; 100 clocks. Rows of its "+
		"layers lie on all servers.")
	p.say("With `--partition layer` each layer lies on one server:")
	p.drawn("cnn-layer", "")
}

// variants writes about other measures and other kinds of loss.
func (p scarPage) variants() {
	covtype, mnist := p.problem("covtype"), p.problem("mnist")
	p.say("## Single clocks")
	p.line("From clock to clock a loss on minibatches goes up and down by more than it falls. ε, which a run must " +
		"keep, is then the twin's last peak, and a run that is hardly behind is above ε until the peak after that " +
		"is over: whatever was lost, it costs as much.")
	if a, b := p.problem("covtype-single"), p.problem("mnist-single"); a.losses != nil && b.losses != nil {
		p.line("By them `scar:16,1/8,priority` saves %s on CoverType and %s on MNIST; by the mean of 10 clocks it "+
			"is %s and %s.",
			a.fewer(eighthSaves), b.fewer(eighthSaves), covtype.fewer(eighthSaves), mnist.fewer(eighthSaves))
	}
	p.say("")
	p.costly("covtype-single", "CoverType:")
	p.costly("mnist-single", "MNIST:")
	p.say("## Which rows are lost")
	p.line("Half of MNIST's servers have half of the picture: pixels that are neighbours. Below, as many rows are " +
		"lost, but of 112 shards any half: strips of 7 pixels all over the picture.")
	if a, b := p.problem("mnist-scattered"), p.problem("mnist-shards"); a.losses != nil && b.losses != nil {
		p.line("Then `scar:16,1` saves %s, and `scar:16,1/8,priority` %s; where servers have neighbours of these "+
			"112 shards, it is %s and %s.",
			a.fewer(fullSaves), a.fewer(eighthSaves), b.fewer(fullSaves), b.fewer(eighthSaves))
	}
	p.say("")
	p.costly("mnist-scattered", "")
	p.say("## Three failures")
	p.costly("covtype-thrice", "CoverType as above, with three failures in each fork, at clocks that are drawn. "+
		"Rows are saved in between.")
	p.say("## Rows that come back rounded")
	p.costly("covtype-rounded", "CoverType as above; rows that come back under scar are rounded to bfloat16. Bytes "+
		"are those of float32 all the same, of which bfloat16 would take half.")
}

// bytes compares costs with the bytes written.
func (p scarPage) bytes() {
	p.say("## Cost against bytes")
	p.say("Who saves more often loses less, and writes more. Of each strategy below, the interval C is varied; half " +
		"of the servers are lost. MB are those written for all twins.")
	p.bytesDrawn("quadratic-bytes", "covtype-bytes", "als-movielens-bytes")
	p.costly("quadratic-bytes", "The bowl:")
	p.costly("covtype-bytes", "CoverType:")
	p.costly("als-movielens-bytes", "MovieLens:")
}

// models compares consistency models.
func (p scarPage) models() {
	p.say("## Consistency models")
	p.say("CoverType as above, with four workers, of which each takes a time for a clock that is drawn, from half " +
		"of the mean to half as much again. Reads see what has arrived. A failure strikes when the last worker has " +
		"done a clock; updates that are under way then are applied to the rows that came back. Full recovery is not " +
		"tried here, since what is done again is not the same: all are compared with `scar:16,1`. Under `bsp`:")
	p.costly("covtype-bsp", "")
	p.say("Under `ssp:3`:")
	p.costly("covtype-ssp", "")
	p.say("Under `asp`:")
	p.costly("covtype-asp", "")
}

// bounds compares costs with the paper's bounds.
func (p scarPage) bounds() {
	p.say("## Bounds")
	p.say("Where each clock takes a model nearer to x\\* by a factor of c at least, the paper bounds what " +
		"perturbations cost. *Bound* is its bound of κ less κ of the twin, with the largest factor that the twin or " +
		"the trial itself showed; the *neat form* is log(1 + Δ/‖x₀ − x\\*‖)/log(1/c), with the twin's typical c, " +
		"which knows neither. Beside each is how many trials cost no more. `random:X` and `adversarial:X` move a " +
		"model by X · ‖x₀ − x\\*‖, in a random direction or straight away from x\\*; `reset:P` makes a part of its " +
		"rows initial. With `stale:S` all reads are S clocks older throughout.")
	for _, of := range []struct{ problem, about string }{
		{"quadratic-bounds", "Of the bowl, whose distance contracts by 0.99 in its slowest direction:"},
		{"softmax-bounds", "Of softmax on CoverType, by full batches and with weight decay 0.05:"},
	} {
		if c := p.problem(of.problem); c.losses != nil {
			p.say("%s", of.about)
			p.say("%s\n%s", c.losses.Bounded(), c.losses.Perturbed())
			p.forks(of.problem, c)
		}
	}
}

// drawn writes the costs of failures in a problem as a table and as a picture.
func (p scarPage) drawn(problem, about string) {
	c := p.problem(problem)
	p.costs(c, about)
	if c.losses != nil {
		p.picture(problem+".svg", c.losses.Picture())
	}
	p.forks(problem, c)
}

// costly writes the costs of failures in a problem.
func (p scarPage) costly(problem, about string) {
	c := p.problem(problem)
	p.costs(c, about)
	p.forks(problem, c)
}

// costs writes the table of the costs of failures.
func (p scarPage) costs(c *cell, about string) {
	if c.losses == nil {
		p.say("It is not run yet.")
		return
	}
	var all []string
	for _, t := range c.losses.Twins {
		all = append(all, fmt.Sprintf("%.4g", t.Epsilon))
	}
	p.say("%s ε is %s, one for each twin. The model is judged by %s.", about, plain.Listed(all), judged(c.losses))
	p.say("%s", c.losses.Table())
}

// judged names the measure of a model's quality.
func judged(r *failurecost.Result) string {
	by := map[string]string{
		failurecost.MeasureTrain: "the loss on what it is trained on",
		failurecost.MeasureTest:  "the loss on test examples",
		failurecost.MeasureDistance: "its distance to x*, which is what the twin comes to when it trains for ten " +
			"times as long",
	}[r.Measure]
	if r.Smooth > 1 {
		return fmt.Sprintf("the mean of %d clocks of %s", r.Smooth, by)
	}
	return by
}

// forks keeps a file with a line for each trial of a problem, and leads to it.
func (p scarPage) forks(problem string, c *cell) {
	if c.losses == nil {
		return
	}
	var text strings.Builder
	_ = csv.NewWriter(&text).WriteAll(c.losses.Rows()) // into memory
	p.files[problem+".csv"] = []byte(text.String())
	p.say("[All trials](%s.csv).", problem)
}

// bytesDrawn draws the cost of losing half of the servers against the bytes written: a panel for each problem, a curve
// for each strategy over its intervals.
func (p scarPage) bytesDrawn(problems ...string) {
	f := &plot.Figure{
		Name:  "What a failure costs in clocks, against MB written: the mean, and its 95% interval",
		Width: width, Columns: 3, High: 230,
	}
	seen := map[string]plot.Look{}
	for _, problem := range problems {
		c := p.problem(problem)
		if c.losses == nil {
			continue
		}
		panel := plot.Panel{
			Title: p.named(c), X: plot.Axis{Name: "MB written", FromZero: true},
			Y: plot.Axis{Name: "clocks", FromZero: true},
		}
		for _, of := range c.losses.Families(0.5) {
			look, known := seen[of.Name]
			if !known {
				look = plot.LookOf(len(seen))
				seen[of.Name] = look
				f.Keys = append(f.Keys, plot.Key{Name: of.Name, Look: look})
			}
			panel.Items = append(panel.Items, &plot.Curve{
				Look: look, X: of.MB, Mid: of.Mean, Low: of.Low, High: of.High, PointsAtValues: true, Faint: true,
			})
		}
		f.Panels = append(f.Panels, panel)
	}
	if len(f.Panels) > 0 {
		p.picture("bytes.svg", f)
	}
}

// of returns the summary of the trials of a strategy in which a part of the servers is lost.
func (c *cell) of(strategy string, lost float64) *failurecost.Cell {
	if c.losses == nil {
		return (&failurecost.Result{}).Cell(strategy, lost)
	}
	return c.losses.Cell(strategy, lost)
}

// saved returns by which part a strategy's failures cost less than the first strategy's, with the 95% interval; NaN if
// most trials are censored.
func (c *cell) saved(strategy string, lost float64) plot.Spread {
	of := c.of(strategy, lost)
	if of.Fewer == nil || 2*of.Censored > of.Trials {
		return plot.SpreadOf(nil)
	}
	v := plot.Spread{Mid: *of.Fewer, Low: math.Inf(-1), High: math.Inf(1), N: of.Trials}
	if of.FewerIn[0] != nil {
		v.Low = *of.FewerIn[0]
	}
	if of.FewerIn[1] != nil {
		v.High = *of.FewerIn[1]
	}
	return v
}

// fewer writes the savings of a strategy when half of the servers are lost, with the interval in brackets, or why they
// are not known.
func (c *cell) fewer(strategy string) string {
	of := c.of(strategy, 0.5)
	if 2*of.Censored > of.Trials {
		return fmt.Sprintf("–, %d of %d never come to ε", of.Censored, of.Trials)
	}
	return of.Less()
}

// claim is the verdict about a paper that reports that a strategy saves a part or more: of the mean, unless even the
// upper end of the interval is below it.
func (c *cell) claim(strategy string, part float64) string {
	v := c.saved(strategy, 0.5)
	switch {
	case c.of(strategy, 0.5).Trials == 0:
		return incomparable
	case !known(v): // most runs never reach ε
		return notReproduced
	case v.Mid >= part:
		return reproduced
	case v.High < part:
		return notReproduced
	}
	return "not shown: the interval reaches it"
}

// better are the cells in which a strategy's failures cost less than the first one's, beyond the spread of the trials.
func better(cells []*cell, strategy string) []*cell {
	return plot.Where(cells, func(c *cell) bool { return c.saved(strategy, 0.5).Low > 0 })
}

// savings writes the least and the most that a strategy saves in some cells.
func savings(cells []*cell, strategy string, lost float64) string {
	var all []float64
	for _, c := range cells {
		if v := c.saved(strategy, lost); known(v) {
			all = append(all, v.Mid)
		}
	}
	if len(all) == 0 {
		return "–"
	}
	least, most := plain.Percent0(slices.Min(all)), plain.Percent0(slices.Max(all))
	if least == most {
		return least
	}
	return least + " to " + most
}

// repeated says how trials went that were repeated with servers that were really killed; "": none was.
func repeated(cells []*cell) string {
	n, same, once := 0, 0, 0
	for _, c := range cells {
		if c.losses != nil {
			of, again, first := c.losses.Repeated()
			n, same, once = n+of, same+again, once+first
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d trials were repeated with servers that were really killed, amid a clock: %d ended with the "+
		"model of the trial to the last bit, %d of them at the first try.", n, same, once)
}

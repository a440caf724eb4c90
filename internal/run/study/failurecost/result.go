package failurecost

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/itercost"
	"github.com/perdure/perdure/internal/run/humanize"
)

// Schema is the version of costs.json.
const Schema = 2

// Result is the result of a plan, stored as costs.json.
type Result struct {
	Schema   int              `json:"schema"`
	Version  string           `json:"version"`
	Workload string           `json:"workload"`
	Args     []string         `json:"args"`   // of perdure train, for the twins
	Strike   string           `json:"strike"` // when failures strike
	SavedAs  string           `json:"saved_as"`
	Lose     string           `json:"lose"` // servers or shards
	Measure  string           `json:"measure"`
	Smooth   int              `json:"smooth"` // clocks over which the measure is averaged
	Clocks   perdure.Clock    `json:"clocks"`
	Twins    []Twin           `json:"twins"`
	Cells    []Cell           `json:"cells"`
	Trials   []Trial          `json:"trials"`
	Repeats  []Repeat         `json:"repeats"` // trials repeated with real servers
	Bytes    map[string]int64 `json:"bytes"`   // by strategy, of all twins until their last failure; nil: unknown
}

// Twin is an undisturbed run.
type Twin struct {
	Seed    uint64  `json:"seed"`
	Epsilon float64 `json:"epsilon"`
	Reached int     `json:"reached"` // the clock from which on its loss is at most ε
}

// Cell summarizes the trials of a strategy and a lost part. Costs are in clocks. Censored trials count for the range of
// the median, but not for the mean.
type Cell struct {
	Strategy       string     `json:"strategy"`
	Lost           float64    `json:"lost"`
	Trials         int        `json:"trials"`
	Censored       int        `json:"censored"`
	Mean           *float64   `json:"mean"`    // null if all are censored
	MeanInterval   Interval   `json:"within"`  // 95% bootstrap interval
	Median         [2]float64 `json:"median"`  // lowest and highest possible median; the latter is -1 if unbounded
	Saving         *float64   `json:"fewer"`   // relative saving compared with the first strategy
	SavingInterval Interval   `json:"between"` // its 95% interval; the first strategy's mean is taken as exact
	Bounds         *Bounds    `json:"bounds,omitempty"`
}

// Bounds compares the costs of a cell's trials with their bounds.
type Bounds struct {
	Norm        float64 `json:"norm"`  // mean ‖δ‖ of a failure
	Known       int     `json:"known"` // trials that have a bound
	Below       int     `json:"below"` // of these, trials that cost no more
	Mean        float64 `json:"mean"`  // of the bounds
	NumSimple   int     `json:"neats"` // trials with a neat form
	BelowSimple int     `json:"under"` // of these, trials that cost no more than it, rounded up
	MeanSimple  float64 `json:"neat"`  // mean of the neat form
}

// Interval are the ends of an interval. An end is nil if too many censored trials leave it open.
type Interval [2]*float64

func newInterval(low, high float64) (e Interval) {
	for i, v := range []float64{low, high} {
		if !math.IsInf(v, 0) && !math.IsNaN(v) {
			e[i] = &v
		}
	}
	return e
}

// text formats both ends.
func (e Interval) text(between string, write func(float64) string) string {
	both := [2]string{"−∞", "∞"}
	for i, v := range e {
		if v != nil {
			both[i] = write(*v)
		}
	}
	return both[0] + between + both[1]
}

// addTwin adds the results of a twin.
func (r *Result) addTwin(u *twin, trials []Trial) {
	r.Twins = append(r.Twins, Twin{u.seed, u.epsilon, u.reach.Clock})
	r.Trials = append(r.Trials, trials...)
	if r.Bytes == nil {
		r.Bytes = map[string]int64{}
	}
	for strategy, n := range u.bytes {
		r.Bytes[strategy] += n
	}
}

// costsOf returns the costs of a cell's trials, and the seed of each trial's twin.
func (r *Result) costsOf(strategy string, lost float64) (costs []itercost.Cost, twins []int) {
	for _, t := range r.Trials {
		if t.Strategy == strategy && t.Lost == lost {
			costs = append(costs, itercost.Cost{Clocks: t.Cost, Censored: t.Censored})
			twins = append(twins, int(t.Seed))
		}
	}
	return costs, twins
}

// sum computes the cells from the trials, in order. All are compared with the first strategy.
func (r *Result) sum() error {
	r.Cells = nil
	for _, t := range r.Trials {
		if slices.ContainsFunc(r.Cells, func(c Cell) bool { return c.Strategy == t.Strategy && c.Lost == t.Lost }) {
			continue
		}
		costs, twins := r.costsOf(t.Strategy, t.Lost)
		var base []itercost.Cost // nil: not compared
		if first := r.Trials[0].Strategy; t.Strategy != first && t.Lost > 0 {
			base, _ = r.costsOf(first, t.Lost)
		}
		c, err := cellOf(costs, base, twins, len(r.Twins) > 1)
		if err != nil {
			return err
		}
		c.Strategy, c.Lost = t.Strategy, t.Lost
		c.Bounds = r.bounds(t.Strategy, t.Lost)
		r.Cells = append(r.Cells, c)
	}
	return nil
}

// bounds summarizes the bounds of a cell's trials. It returns nil if none has a bound.
func (r *Result) bounds(strategy string, lost float64) *Bounds {
	var b Bounds
	failures := 0
	for i := range r.Trials {
		t := &r.Trials[i]
		if t.Strategy != strategy || t.Lost != lost {
			continue
		}
		for _, f := range t.Failures {
			b.Norm += f.Norm
			failures++
		}
		if t.Bound != nil {
			b.Known++
			b.Mean += float64(*t.Bound)
			if t.Cost <= *t.Bound {
				b.Below++
			}
		}
		if t.SimpleBound != nil {
			b.NumSimple++
			b.MeanSimple += *t.SimpleBound
			if float64(t.Cost) <= math.Ceil(*t.SimpleBound) {
				b.BelowSimple++
			}
		}
	}
	if b.Known == 0 && b.NumSimple == 0 {
		return nil
	}
	b.Norm /= float64(max(1, failures))
	b.Mean /= float64(max(1, b.Known))
	b.MeanSimple /= float64(max(1, b.NumSimple))
	return &b
}

// cellOf summarizes costs and compares them with the costs of the same failures under the first strategy.
func cellOf(costs, base []itercost.Cost, twins []int, many bool) (c Cell, err error) {
	s, err := itercost.Summarize(costs)
	if err != nil {
		return c, err
	}
	c.Trials, c.Censored = s.Runs, s.Censored
	c.Median = [2]float64{s.Median.Low, s.Median.High}
	if s.Median.High > 1e15 {
		c.Median[1] = -1
	}
	b := itercost.Bootstrap{Seed: 1}
	if many {
		b.Baselines = twins
	}
	mean, err := b.Mean(costs)
	if errors.Is(err, itercost.ErrSample) {
		return c, nil
	}
	if err != nil {
		return c, err
	}
	c.Mean, c.MeanInterval = &mean.Estimate, newInterval(mean.Low, mean.High)
	if len(base) == 0 {
		return c, nil
	}
	of, err := itercost.Summarize(base)
	if err != nil || !(of.Mean > 0) {
		return c, err
	}
	pairs := make([]itercost.Pair, len(costs))
	for i := range costs {
		pairs[i] = itercost.Pair{First: costs[i], Second: base[i]}
	}
	d, err := b.Difference(pairs)
	if err != nil {
		return c, err
	}
	fewer := -d.Estimate / of.Mean
	c.Saving, c.SavingInterval = &fewer, newInterval(-d.High/of.Mean, -d.Low/of.Mean)
	return c, nil
}

// Print prints the cells as a table.
func (r *Result) Print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "STRATEGY\tLOST\tTRIALS\tCOST IN CLOCKS\t95%\tMEDIAN\tCENSORED\tFEWER\t95%")
	for _, c := range r.Cells {
		mean, within, fewer, between := "-", "-", "-", "-"
		if c.Mean != nil {
			mean, within = humanize.Short(*c.Mean), c.MeanInterval.text(" to ", humanize.Short)
		}
		if c.Saving != nil {
			fewer = humanize.Percent0(*c.Saving)
			between = c.SavingInterval.text(" to ", humanize.Percent0)
		}
		median := humanize.Short(c.Median[0])
		if c.Median[1] < 0 {
			median += " or more"
		} else if c.Median[1] > c.Median[0] {
			median += " to " + humanize.Short(c.Median[1])
		}
		lost := "-"
		if c.Lost > 0 {
			lost = humanize.Short(c.Lost)
		}
		fmt.Fprintln(w, strings.Join([]string{
			c.Strategy, lost, fmt.Sprint(c.Trials), mean, within, median, fmt.Sprint(c.Censored), fewer,
			between,
		}, "\t"))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for i := range r.Cells {
		if c := &r.Cells[i]; c.Bounds != nil {
			fmt.Fprintf(
				out,
				"%s, %s lost: %d of %d trials cost no more than their bounds, on average %s clocks; %d "+
					"of %d no more than the neat form, %s\n",
				c.Strategy,
				partText(c.Lost),
				c.Bounds.Below,
				c.Bounds.Known,
				humanize.Short(c.Bounds.Mean),
				c.Bounds.BelowSimple,
				c.Bounds.NumSimple,
				humanize.Short(c.Bounds.MeanSimple),
			)
		}
	}
	if n, same, once := r.Repeated(); n > 0 {
		fmt.Fprintf(out, "%d trials were repeated with real servers that were killed; %d ended with the same model, "+
			"to the last bit, %d of them at the first attempt\n", n, same, once)
	}
	return nil
}

// Repeated returns how many trials were repeated with real servers, how many of these ended with the same model, and
// how many of those at the first attempt.
func (r *Result) Repeated() (n, same, once int) {
	for _, t := range r.Repeats {
		n++
		if t.Same {
			same++
		}
		if t.Same && t.Tries == 1 {
			once++
		}
	}
	return n, same, once
}

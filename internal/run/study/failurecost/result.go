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
	"github.com/perdure/perdure/internal/run/plain"
)

// Schema is that of costs.json.
const Schema = 2

// Result is what came of a plan: costs.json.
type Result struct {
	Schema   int              `json:"schema"`
	Version  string           `json:"version"`
	Workload string           `json:"workload"`
	Args     []string         `json:"args"`   // of perdure train, of the twins
	Strike   string           `json:"strike"` // when failures strike
	SavedAs  string           `json:"saved_as"`
	Lose     string           `json:"lose"` // servers, or shards
	Measure  string           `json:"measure"`
	Smooth   int              `json:"smooth"` // clocks whose mean it is
	Clocks   perdure.Clock    `json:"clocks"`
	Twins    []Twin           `json:"twins"`
	Cells    []Cell           `json:"cells"`
	Trials   []Trial          `json:"trials"`
	Repeats  []Repeat         `json:"repeats"` // with servers that were really killed
	Bytes    map[string]int64 `json:"bytes"`   // by strategy: written for all twins, up to their last failure
}

// Twin is an undisturbed run.
type Twin struct {
	Seed    uint64  `json:"seed"`
	Epsilon float64 `json:"epsilon"`
	Reached int     `json:"reached"` // the clock from which on its loss is ε at most
}

// Cell is what the trials of a strategy and a lost part gave. Costs are in clocks; of censored trials nothing is
// supposed: they are in the median's range and in no mean.
type Cell struct {
	Strategy string     `json:"strategy"`
	Lost     float64    `json:"lost"`
	Trials   int        `json:"trials"`
	Censored int        `json:"censored"`
	Mean     *float64   `json:"mean"`    // null: all are censored
	Within   Ends       `json:"within"`  // its 95% interval, by bootstrap
	Median   [2]float64 `json:"median"`  // its least and its most; the latter is -1 where there is none
	Fewer    *float64   `json:"fewer"`   // by which part the mean is below that of the first strategy
	FewerIn  Ends       `json:"between"` // its 95% interval, that mean being taken as it is
	Bounds   *Bounds    `json:"bounds,omitempty"`
}

// Bounds are what bounds say of a cell's trials.
type Bounds struct {
	Norm  float64 `json:"norm"`  // ‖δ‖ of a failure, the mean
	Known int     `json:"known"` // trials that have a bound
	Below int     `json:"below"` // of these, trials that cost no more
	Mean  float64 `json:"mean"`  // of the bounds
	Neats int     `json:"neats"` // trials for which the neat form is known
	Under int     `json:"under"` // of these, trials that cost no more than it, rounded up
	Neat  float64 `json:"neat"`  // the mean of the neat form
}

// Ends are those of an interval; nil: it has no end there, since too many trials are censored.
type Ends [2]*float64

func endsOf(low, high float64) (e Ends) {
	for i, v := range []float64{low, high} {
		if !math.IsInf(v, 0) && !math.IsNaN(v) {
			e[i] = &v
		}
	}
	return e
}

// text writes both ends.
func (e Ends) text(between string, write func(float64) string) string {
	both := [2]string{"−∞", "∞"}
	for i, v := range e {
		if v != nil {
			both[i] = write(*v)
		}
	}
	return both[0] + between + both[1]
}

// take takes over what a twin gave.
func (r *Result) take(u *undisturbed, trials []Trial) {
	r.Twins = append(r.Twins, Twin{u.seed, u.epsilon, u.reach.Clock})
	r.Trials = append(r.Trials, trials...)
	if r.Bytes == nil {
		r.Bytes = map[string]int64{}
	}
	for strategy, n := range u.bytes {
		r.Bytes[strategy] += n
	}
}

// of are the costs of a cell, and the number of the twin of each.
func (r *Result) of(strategy string, lost float64) (costs []itercost.Cost, twins []int) {
	for _, t := range r.Trials {
		if t.Strategy == strategy && t.Lost == lost {
			costs = append(costs, itercost.Cost{Clocks: t.Cost, Censored: t.Censored})
			twins = append(twins, int(t.Seed))
		}
	}
	return costs, twins
}

// sum makes the cells of the trials, in their order. All are compared with the first strategy that was tried.
func (r *Result) sum() error {
	r.Cells = nil
	for _, t := range r.Trials {
		if slices.ContainsFunc(r.Cells, func(c Cell) bool { return c.Strategy == t.Strategy && c.Lost == t.Lost }) {
			continue
		}
		costs, twins := r.of(t.Strategy, t.Lost)
		var base []itercost.Cost // else it is compared with nothing
		if first := r.Trials[0].Strategy; t.Strategy != first && t.Lost > 0 {
			base, _ = r.of(first, t.Lost)
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

// bounds sums up what bounds say of the trials of a cell; nil: none has any.
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
		if t.Neat != nil {
			b.Neats++
			b.Neat += *t.Neat
			if float64(t.Cost) <= math.Ceil(*t.Neat) {
				b.Under++
			}
		}
	}
	if b.Known == 0 && b.Neats == 0 {
		return nil
	}
	b.Norm /= float64(max(1, failures))
	b.Mean /= float64(max(1, b.Known))
	b.Neat /= float64(max(1, b.Neats))
	return &b
}

// cellOf sums costs up, beside those of the same failures under the first strategy.
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
		b.Twins = twins
	}
	mean, err := b.Mean(costs)
	if errors.Is(err, itercost.ErrSample) {
		return c, nil
	}
	if err != nil {
		return c, err
	}
	c.Mean, c.Within = &mean.Estimate.Low, endsOf(mean.Low, mean.High)
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
	fewer := -d.Estimate.Low / of.Mean
	c.Fewer, c.FewerIn = &fewer, endsOf(-d.High/of.Mean, -d.Low/of.Mean)
	return c, nil
}

// Print prints a table.
func (r *Result) Print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "STRATEGY\tLOST\tTRIALS\tCOST IN CLOCKS\t95%\tMEDIAN\tCENSORED\tFEWER\t95%")
	for _, c := range r.Cells {
		mean, within, fewer, between := "-", "-", "-", "-"
		if c.Mean != nil {
			mean, within = plain.Short(*c.Mean), c.Within.text(" to ", plain.Short)
		}
		if c.Fewer != nil {
			fewer = plain.Percent0(*c.Fewer)
			between = c.FewerIn.text(" to ", plain.Percent0)
		}
		median := plain.Short(c.Median[0])
		if c.Median[1] < 0 {
			median += " or more"
		} else if c.Median[1] > c.Median[0] {
			median += " to " + plain.Short(c.Median[1])
		}
		lost := "-"
		if c.Lost > 0 {
			lost = plain.Short(c.Lost)
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
			fmt.Fprintf(out, "%s, %s lost: %d of %d trials cost no more than their bounds, on average %s clocks; %d "+
				"of %d no more than the neat form, %s\n", c.Strategy, share(c.Lost), c.Bounds.Below, c.Bounds.Known,
				plain.Short(c.Bounds.Mean), c.Bounds.Under, c.Bounds.Neats, plain.Short(c.Bounds.Neat))
		}
	}
	if n, same, once := r.Repeated(); n > 0 {
		fmt.Fprintf(out, "%d trials were repeated with servers that were really killed; %d ended with the same model, "+
			"to the last bit, %d of them at the first try\n", n, same, once)
	}
	return nil
}

// Repeated is how many trials were repeated with real servers, how many of them ended with the same model, and how
// many of these at the first try.
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

package mf

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/dataset"
	"github.com/perdure/perdure/internal/run/workload/api"
)

// alternating trains by alternating least squares. With fixed item rows, each user's row has a unique optimum, and vice
// versa. A pass takes 1/ClockFraction clocks for users, and as many for items. A slot owns the rows that it solves in a
// clock and overwrites them completely, under the rule set. Neither earlier values of the rows nor the number of slots
// affects the result, so under bsp any number of workers computes the same model.
type alternating struct {
	*factors
	sides [2]*side // users, then items
	solve *normalEquations
	given *rows // the other side, as read
	own   []float32
	eval  [2]rows // users, then items
}

// side is one of the two tables, with the ratings that its rows are solved from.
type side struct {
	table, from string
	starts      []int   // by row, with one more entry: the index of its first rating
	other       []int32 // by rating: the row of the other table
	value       []float32
	weight      []int // by row, with one more entry: the cost of the rows before it
}

// openAlternating opens the workload with the solver als.
func openAlternating(p api.Params) (api.Workload, error) {
	if r := p.Rule; r.Kind != perdure.RuleSGD || r.Rate != 0 || r.Decay != 0 || r.ClipValue != 0 || r.ClipNorm != 0 ||
		r.Schedule != "" && r.Schedule != perdure.ScheduleConst {
		return nil, perdure.Usagef("mf: the solver als computes rows directly, without an update rule or learning " +
			"rate; remove these options")
	}
	if p.Slots < 1 || p.Slots > perdure.MaxSlots {
		return nil, perdure.Usagef("invalid number of workers %d; choose 1 to %d", p.Slots, perdure.MaxSlots)
	}
	data, err := dataset.OpenRatings(p.Data)
	if err != nil {
		return nil, err
	}
	return newAlternating(data, Options{p.Seed, p.Slots, p.Factors})
}

func newAlternating(data *dataset.Ratings, o Options) (*alternating, error) {
	f, err := newFactors(data, o)
	switch {
	case err != nil:
		return nil, err
	case o.WholeUsers:
		return nil, perdure.Usagef("mf: the solver als always processes all of a user's ratings in one clock; remove " +
			"--whole-users")
	case o.L2 == 0:
		return nil, perdure.Usagef("mf: l2 is 0; the solver als needs l2 above 0, because otherwise rows with few " +
			"ratings have no unique solution")
	case !(o.Implicit >= 0) || o.Implicit > maxImplicit:
		return nil, perdure.Usagef("mf: invalid implicit %v; choose 0 to %g", o.Implicit, float64(maxImplicit))
	}
	if o.Implicit > 0 {
		for _, s := range []*dataset.RatingSplit{&data.Train, &data.Test} {
			if i := slices.IndexFunc(s.Value, func(v float32) bool { return v < 0 }); i >= 0 {
				return nil, perdure.Usagef("mf: user %d has the value %v for item %d; with --implicit, values must "+
					"be ≥ 0", s.User[i], s.Value[i], s.Item[i])
			}
		}
		f.setScale(0, 1)
	}
	a := &alternating{factors: f, solve: newNormalEquations(o.Rank)}
	t := &data.Train
	a.sides[0] = a.newSide(Users, Items, data.Users, t.User, t.Item)
	a.sides[1] = a.newSide(Items, Users, data.Items, t.Item, t.User)
	a.eval = [2]rows{{table: Users}, {table: Items}}
	a.given = &rows{place: make([]int32, max(data.Users, data.Items))}
	return a, nil
}

// maxImplicit bounds the confidence in a count. It is far above practical values.
const maxImplicit = 1e6

// newSide groups the ratings by row of a table. Ratings of the same row stay in the order of the data.
func (a *alternating) newSide(table, from string, rows int, own, other []int32) *side {
	s := &side{
		table: table, from: from, starts: make([]int, rows+1), other: make([]int32, len(own)),
		value: make([]float32, len(own)), weight: make([]int, rows+1),
	}
	for _, row := range own {
		s.starts[row+1]++
	}
	for i, n := range s.starts[1:] {
		// Solving for a row costs as much as adding Rank/3 ratings.
		s.weight[i+1] = s.weight[i] + 1 + n
		if n > 0 {
			s.weight[i+1] += a.options.Rank / 3
		}
		s.starts[i+1] += s.starts[i]
	}
	next := slices.Clone(s.starts)
	for i, row := range own {
		at := next[row]
		next[row]++
		s.other[at], s.value[at] = other[i], a.data.Train.Value[i]
	}
	return s
}

// cut returns the first row of the k-th of n parts that cost about the same.
func (s *side) cut(k, n int) int {
	total := s.weight[len(s.weight)-1]
	row, _ := slices.BinarySearch(s.weight, total/n*k+total%n*k/n)
	return row
}

// sideOf returns the side that a clock solves, the index of the clock's part, and the number of parts.
func (a *alternating) sideOf(clock perdure.Clock) (s *side, part, of int) {
	of = a.clocksPerSide()
	part = int(int64(clock) % int64(2*of))
	return a.sides[part/of], part % of, of
}

// Describe implements api.Workload.
func (a *alternating) Describe() api.Description { return a.describe() }

// Tables implements api.Workload. Users are initially zeros, because no clock reads them before they are solved.
func (a *alternating) Tables() []perdure.TableSpec {
	specs := a.tables()
	for i := range specs {
		specs[i].Rule = perdure.Rule{Kind: perdure.RuleSet}
	}
	specs[0].Init = perdure.Init{Kind: perdure.InitZeros}
	return specs
}

// Constants implements api.Workload. With implicit ratings, u·v predicts the preference for an item, from about 0 to 1.
func (a *alternating) Constants() map[string]string {
	c := a.factors.Constants()
	if a.options.Implicit > 0 {
		c["implicit"] = strconv.FormatFloat(a.options.Implicit, 'g', -1, 64)
	}
	return c
}

// Step implements api.Workload. It computes the loss from the rows just solved and the rows that they were solved from.
func (a *alternating) Step(
	ctx context.Context, t api.Tables, share api.Share, clock perdure.Clock,
) (api.Metrics, error) {
	if err := share.Validate(clock); err != nil {
		return api.Metrics{}, fmt.Errorf("mf: %w", err)
	}
	s, part, parts := a.sideOf(clock)
	first, end := s.cut(part*share.Of+share.Rank, parts*share.Of), s.cut(part*share.Of+share.Rank+1, parts*share.Of)
	if first == end {
		return api.Metrics{TrainLoss: math.NaN(), TrainRMSE: math.NaN()}, nil
	}
	if err := a.read(ctx, t, s, first, end); err != nil {
		return api.Metrics{}, err
	}
	squares, err := a.solveRows(s, first, end, a.given)
	if err != nil {
		return api.Metrics{}, fmt.Errorf("mf: clock %d: %w", clock, err)
	}
	if err := t.Inc(ctx, s.table, perdure.RowID(first), a.own); err != nil {
		if errors.Is(err, perdure.ErrNonFinite) {
			err = fmt.Errorf("mf: rows are no longer finite in clock %d; choose a larger l2: %w", clock, err)
		}
		return api.Metrics{}, err
	}
	n := s.starts[end] - s.starts[first]
	loss := a.loss(squares, n)
	return api.Metrics{TrainLoss: loss, TrainRMSE: math.Sqrt(loss), Samples: n}, nil
}

// read reads the rows of the other side that are needed to solve the rows [first, end) of a side.
func (a *alternating) read(ctx context.Context, t api.Tables, s *side, first, end int) error {
	g, last := a.given, a.data.Items-1
	if s.from == Users {
		last = a.data.Users - 1
	}
	g.table = s.from
	if a.options.Implicit > 0 { // unobserved items also count
		g.take(0, int32(last), true)
	} else {
		g.needRows(s.other[s.starts[first]:s.starts[end]], int32(last))
	}
	if len(g.list) == 0 {
		return nil
	}
	return g.fetch(ctx, t, a.options.Rank)
}

// solveRows solves a run of rows from given rows, and returns the sum of the squared errors of their ratings.
func (a *alternating) solveRows(s *side, first, end int, given *rows) (squares float64, err error) {
	rank := a.options.Rank
	a.own = slices.Grow(a.own[:0], (end-first)*rank)[:(end-first)*rank]
	if a.options.Implicit > 0 {
		a.solve.sumAll(given.got)
	}
	for row := first; row < end; row++ {
		to := a.own[(row-first)*rank:][:rank]
		at, until := s.starts[row], s.starts[row+1]
		if at == until {
			clear(to) // no ratings: predict the mean
			continue
		}
		e, err := a.solveRow(to, given, s.other[at:until], s.value[at:until])
		if err != nil {
			return 0, fmt.Errorf("row %d of table %s: %w", row, s.table, err)
		}
		squares += e
	}
	return squares, nil
}

// solveRow solves one row.
func (a *alternating) solveRow(to []float32, given *rows, other []int32, value []float32) (squares float64, err error) {
	n, implicit := a.solve, float32(a.options.Implicit)
	n.start(implicit > 0)
	for i, o := range other {
		v := given.got[int(given.place[o])*len(to):][:len(to)]
		if implicit > 0 { // Hu, Koren, Volinsky 2008: the item was observed, with this confidence
			more := float32(implicit * value[i])
			n.add(v, more, 1+more)
		} else {
			n.add(v, 1, a.target(value[i]))
		}
	}
	hold := a.options.L2
	if implicit == 0 {
		hold *= float64(len(other))
	}
	if err := n.solve(to, hold); err != nil {
		return 0, err
	}
	for i, o := range other {
		v := given.got[int(given.place[o])*len(to):][:len(to)]
		target := float32(1)
		if implicit == 0 {
			target = a.target(value[i])
		}
		e := float64(target - inner(to, v))
		squares += float64(e * e)
	}
	return squares, nil
}

// inner returns the inner product of two rows of any length.
func inner(u, v []float32) (sum float32) {
	whole := len(u) &^ 7
	if whole > 0 {
		sum = dot(u[:whole], v[:whole])
	}
	for i := whole; i < len(u); i++ {
		sum += float32(u[i] * v[i])
	}
	return sum
}

// Evaluate implements api.Workload on the held-out ratings. It reports the prediction error or, for implicit ratings,
// the rank of the observed items in each user's list.
func (a *alternating) Evaluate(ctx context.Context, t api.Tables) (api.Eval, error) {
	if a.options.Implicit == 0 {
		return a.errorOf(ctx, t, &a.eval[0], &a.eval[1])
	}
	rank, err := a.percentileRank(ctx, t)
	return api.Eval{Loss: rank, Accuracy: math.NaN(), RMSE: math.NaN()}, err
}

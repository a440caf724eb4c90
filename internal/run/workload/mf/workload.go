package mf

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/dataset"
	"github.com/perdure/perdure/internal/run/workload/api"
)

// Names of the workload and its tables.
const (
	Name  = "mf"
	Users = "users"
	Items = "items"
)

// Solvers.
const (
	SolverSGD = "sgd" // the default
	SolverALS = "als"
)

// Default values. The default rate depends on the data, see goodRate.
const DefaultData = dataset.DefaultRatings

// Defaults are the default options for the solver sgd, and AlternatingDefaults those for als.
var (
	Defaults            = api.Factors{Rank: 100, L2: 0.07, ClockFraction: 0.1}
	AlternatingDefaults = api.Factors{Rank: 32, L2: 0.1, ClockFraction: 1, Solver: SolverALS}
)

// AlternatingClocks is the default number of clocks for als: 15 passes over users and items.
const AlternatingClocks = 30

// initScale is the standard deviation of the initial values of rows.
const initScale = 0.1

// program implements a workload for a model.
type program struct {
	*model
	params       api.Params
	samples      []sample
	users, items rows
}

// rows holds the rows of one table that a clock uses.
type rows struct {
	table string
	list  []perdure.RowID // increasing
	got   []float32       // rows of Rank values, as returned by Get; later the deltas
	wide  []float32       // rows of stride values, which are trained
	place []int32         // by row of the table: its index in list, if it is listed
}

// Open loads the data and returns the workload.
func Open(p api.Params) (api.Workload, error) {
	switch s := p.Factors.Solver; {
	case s == SolverALS:
		return openAlternating(p)
	case s != "" && s != SolverSGD:
		return nil, perdure.Usagef("mf: unknown solver %q; choose %s or %s", s, SolverSGD, SolverALS)
	case p.Factors.Implicit != 0:
		return nil, perdure.Usagef("mf: only the solver %s supports implicit ratings; choose it, or remove --implicit",
			SolverALS)
	}
	return openDescent(p)
}

func openDescent(p api.Params) (api.Workload, error) {
	if r := p.Rule; r.Kind != perdure.RuleSGD || r.Decay != 0 || r.ClipValue != 0 || r.ClipNorm != 0 {
		return nil, perdure.Usagef("mf does not support rule %s; it supports only sgd without settings, which "+
			"workers compute themselves; use l2 for decay", p.Rule.Kind)
	}
	chosen := p.Rule.Rate == 0
	if chosen {
		p.Rule.Rate = maxRate // so that it is validated with the other options
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	data, err := dataset.OpenRatings(p.Data)
	if err != nil {
		return nil, err
	}
	m, err := newModel(data, Options{p.Seed, p.Slots, p.Factors})
	if err != nil {
		return nil, err
	}
	if chosen {
		p.Rule.Rate = m.goodRate()
	}
	return &program{
		model: m, params: p,
		users: rows{table: Users, place: make([]int32, data.Users)},
		items: rows{table: Items, place: make([]int32, data.Items)},
	}, nil
}

// Describe implements api.Workload.
func (p *program) Describe() api.Description {
	d := p.describe()
	d.Rate = p.params.Rule.Rate
	return d
}

func (f *factors) describe() api.Description {
	return api.Description{
		Name: Name, Data: f.data.Name, Train: f.data.Train.Len(), Test: f.data.Test.Len(),
		Parameters: (f.data.Users + f.data.Items) * f.options.Rank, DataBytes: f.data.Bytes(),
	}
}

// Digest implements api.Workload.
func (f *factors) Digest() string { return f.data.Digest() }

// Constants implements api.Workload. A rating is mean + deviation·(u·v). If users or items have names, the constants
// include them: line i is the name of row i.
func (f *factors) Constants() map[string]string {
	text := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	c := map[string]string{"mean": text(f.ratingMean), "deviation": text(f.ratingDeviation)}
	for table, names := range map[string][]string{Users: f.data.UserNames, Items: f.data.ItemNames} {
		if names != nil {
			c[table+namesSuffix] = strings.Join(names, "\n")
		}
	}
	return c
}

// CheckWarmStart implements api.WarmStartChecker. Where the data have names, the model file must assign the same names
// to the rows. The mean and deviation of the ratings may differ.
func (f *factors) CheckWarmStart(_ context.Context, _ api.Tables, constants map[string]string) error {
	was, has := constants["implicit"]
	if implicit := f.options.Implicit > 0; has != implicit {
		return fmt.Errorf("it was trained on %s, but this run uses %s", meaning(has), meaning(implicit))
	} else if v, err := strconv.ParseFloat(was, 64); has && (err != nil || !(v > 0)) {
		return fmt.Errorf("its metadata field implicit is %q, but must be a number above 0", was)
	}
	is := f.Constants()
	for _, table := range []string{Users, Items} {
		was, is := constants[table+namesSuffix], is[table+namesSuffix]
		if was == is {
			continue
		}
		if was == "" || is == "" {
			return fmt.Errorf("the model and the data disagree: only one of them names its %s", table)
		}
		a, b := strings.Split(was, "\n"), strings.Split(is, "\n")
		row := 0
		for row < min(len(a), len(b))-1 && a[row] == b[row] {
			row++
		}
		return fmt.Errorf("row %d of its table %s is %.40q, but %.40q in the data", row, table, a[row], b[row])
	}
	return nil
}

// meaning describes the values of the ratings.
func meaning(implicit bool) string {
	if implicit {
		return "counts (--implicit)"
	}
	return "ratings"
}

// maxRate is a good rate for one worker on all data sets that were tried.
const maxRate = 0.05

// goodRate returns a rate that is stable under bsp. Steps of other slots on the same item in the same clock do not see
// each other. Their sum overshoots if they are too many or too large. On Jester with rank 100 and 4 workers, let x be
// the rate times the number of such steps on an item. bsp was stable for x up to 6.9 with a tenth of the data per
// clock, and up to 3.5 with a hundredth. It diverged at 12 and 5.6. goodRate keeps x at or below 3.
func (m *model) goodRate() float64 {
	perItem := make([]float64, m.data.Items)
	for _, i := range m.data.Train.Item {
		perItem[i]++
	}
	squares := 0.0
	for _, n := range perItem {
		squares += float64(n * n)
	}
	slots := float64(m.options.Slots)
	others := squares / float64(m.data.Train.Len()) * m.options.ClockFraction * (slots - 1) / slots
	if others*maxRate <= 3 {
		return maxRate
	}
	// Two digits, because users see the rate and may want to repeat it.
	rate, _ := strconv.ParseFloat(strconv.FormatFloat(3/others, 'g', 2, 64), 64)
	return rate
}

// Tables implements api.Workload.
func (p *program) Tables() []perdure.TableSpec {
	specs := p.tables()
	for i := range specs {
		if p.params.Sparse {
			specs[i].Sparse, specs[i].Rows = true, 0
		}
	}
	return specs
}

// tables lists the two tables. Workers perform the steps, so servers only add.
func (f *factors) tables() []perdure.TableSpec {
	spec := perdure.TableSpec{
		Dim: f.options.Rank, Rule: perdure.Rule{Kind: perdure.RuleAdd},
		Init: perdure.Init{Kind: perdure.InitNormal, Scale: initScale},
	}
	users, items := spec, spec
	users.Name, users.Rows = Users, int64(f.data.Users)
	items.Name, items.Rows = Items, int64(f.data.Items)
	return []perdure.TableSpec{users, items}
}

// Step implements api.Workload.
func (p *program) Step(
	ctx context.Context, t api.Tables, share api.Share, clock perdure.Clock,
) (api.Metrics, error) {
	if err := share.Validate(clock); err != nil {
		return api.Metrics{}, fmt.Errorf("mf: %w", err)
	}
	if err := p.setSlots(share.Of); err != nil {
		return api.Metrics{}, err
	}
	slot := perdure.Slot(share.Rank)
	ratings := p.clock(&p.data.Train, slot, clock)
	if len(ratings) == 0 {
		return api.Metrics{TrainLoss: math.NaN(), TrainRMSE: math.NaN()}, nil
	}
	p.gather(slot, ratings)
	for _, r := range []*rows{&p.users, &p.items} {
		if err := r.get(ctx, t, p.factors); err != nil {
			return api.Metrics{}, err
		}
	}
	squares := p.train(p.samples, p.users.wide, p.items.wide, p.params.Rule.RateAt(clock))
	for _, r := range []*rows{&p.users, &p.items} {
		err := r.inc(ctx, t, p.factors)
		if errors.Is(err, perdure.ErrNonFinite) {
			err = fmt.Errorf("mf: training diverged in clock %d of slot %d; choose a rate below %v: %w", clock, slot,
				p.params.Rule.Rate, err)
		}
		if err != nil {
			return api.Metrics{}, err
		}
	}
	loss := p.loss(squares, len(ratings))
	return api.Metrics{TrainLoss: loss, TrainRMSE: math.Sqrt(loss), Samples: len(ratings)}, nil
}

// gather lists the rows that ratings need, and the ratings with the indexes of their rows.
func (p *program) gather(slot perdure.Slot, ratings []int32) {
	s := &p.data.Train
	first, last := p.userSpan(s, slot, ratings)
	p.users.need(s.User, ratings, first, last)
	p.items.need(s.Item, ratings, 0, int32(p.data.Items-1))
	p.samples = slices.Grow(p.samples[:0], len(ratings))[:len(ratings)]
	users, items := p.users.place, p.items.place
	for k, i := range ratings {
		p.samples[k] = sample{users[s.User[i]], items[s.Item[i]], p.target(s.Value[i])}
	}
}

// denseThreshold is the number of ratings per row in the range of needed rows from which all rows of the range are
// read. Then almost every row is needed, and looking for exceptions costs more than reading them.
const denseThreshold = 8

// need lists the rows in [first, last] that ratings need. ratings are indexes in the split, and all holds the row of
// each rating.
func (r *rows) need(all, ratings []int32, first, last int32) {
	wanted := int(last-first+1)*denseThreshold <= len(ratings)
	if !wanted {
		r.forget(first, last)
		for _, i := range ratings {
			r.place[all[i]] = 0
		}
	}
	r.take(first, last, wanted)
}

// needRows is need for a list of rows, in which each row occurs once per rating.
func (r *rows) needRows(rows []int32, last int32) {
	wanted := int(last+1)*denseThreshold <= len(rows)
	if !wanted {
		r.forget(0, last)
		for _, row := range rows {
			r.place[row] = 0
		}
	}
	r.take(0, last, wanted)
}

// forget marks rows as not needed.
func (r *rows) forget(first, last int32) {
	for i := first; i <= last; i++ {
		r.place[i] = -1
	}
}

// take lists the rows that are marked as needed, or all rows.
func (r *rows) take(first, last int32, all bool) {
	r.list = r.list[:0]
	place := r.place[first : last+1]
	for i := range place {
		if all || place[i] == 0 {
			place[i] = int32(len(r.list))
			r.list = append(r.list, perdure.RowID(first)+perdure.RowID(i))
		}
	}
}

// isRun reports whether the rows are consecutive, so that they need no list.
func (r *rows) isRun() bool {
	return int(r.list[len(r.list)-1]-r.list[0]) == len(r.list)-1
}

// get reads the rows in one call and widens them.
func (r *rows) get(ctx context.Context, t api.Tables, f *factors) error {
	if err := r.fetch(ctx, t, f.options.Rank); err != nil {
		return err
	}
	n := len(r.list)
	r.wide = slices.Grow(r.wide[:0], n*f.stride)[:n*f.stride]
	f.widen(r.wide, r.got)
	return nil
}

// fetch reads the rows in one call.
func (r *rows) fetch(ctx context.Context, t api.Tables, rank int) error {
	n := len(r.list) * rank
	r.got = slices.Grow(r.got[:0], n)[:n]
	if r.isRun() {
		return t.Get(ctx, r.table, r.list[0], r.got)
	}
	return t.GetRows(ctx, r.table, r.list, r.got)
}

// inc adds the changes in one call.
func (r *rows) inc(ctx context.Context, t api.Tables, f *factors) error {
	for i := range r.list {
		old := r.got[i*f.options.Rank:][:f.options.Rank]
		for j, v := range r.wide[i*f.stride:][:len(old)] {
			old[j] = v - old[j]
		}
	}
	if r.isRun() {
		return t.Inc(ctx, r.table, r.list[0], r.got)
	}
	return t.IncRows(ctx, r.table, r.list, r.got)
}

// evalUsers is the number of users' rows per read during evaluation: 6.5 MB at rank 100.
const evalUsers = 1 << 14

// Evaluate implements api.Workload on the held-out ratings.
func (p *program) Evaluate(ctx context.Context, t api.Tables) (api.Eval, error) {
	return p.errorOf(ctx, t, &p.users, &p.items)
}

// errorOf computes the error of predictions of the held-out ratings.
func (f *factors) errorOf(ctx context.Context, t api.Tables, users, items *rows) (api.Eval, error) {
	if err := items.all(ctx, t, f, 0, f.data.Items); err != nil {
		return api.Eval{}, err
	}
	squares, at := 0.0, 0
	test := &f.data.Test
	for first := 0; first < f.data.Users && at < test.Len(); first += evalUsers {
		end := min(first+evalUsers, f.data.Users)
		if err := users.all(ctx, t, f, first, end); err != nil {
			return api.Eval{}, err
		}
		squares, at = f.squaredErrors(squares, test, at, int32(first), int32(end), users.wide, items.wide)
	}
	loss := f.loss(squares, test.Len())
	return api.Eval{Loss: loss, Accuracy: math.NaN(), RMSE: math.Sqrt(loss)}, nil
}

// all reads consecutive rows of a table.
func (r *rows) all(ctx context.Context, t api.Tables, f *factors, first, end int) error {
	r.list = r.list[:0]
	for i := first; i < end; i++ {
		r.list = append(r.list, perdure.RowID(i))
	}
	return r.get(ctx, t, f)
}

package mf

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/dataset"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/run/workload/api"
)

// jesterLike returns ratings of 100 items from -10 to 10. They follow five random tastes, with a standard deviation of
// about 3, plus noise of 2.
func jesterLike(users int) *dataset.Ratings {
	const items, tastes = 100, 5
	r := rand.New(rand.NewPCG(7, 7))
	likes := func(n int) [][tastes]float64 {
		list := make([][tastes]float64, n)
		for i := range list {
			for k := range list[i] {
				list[i][k] = 1.16 * r.NormFloat64()
			}
		}
		return list
	}
	us, vs := likes(users), likes(items)
	d := &dataset.Ratings{Name: "like Jester", Users: users, Items: items}
	for u := range users {
		for i := range items {
			if r.IntN(4) == 0 {
				continue
			}
			v := 2 * r.NormFloat64()
			for k := range tastes {
				v += us[u][k] * vs[i][k]
			}
			s := &d.Train
			if r.IntN(10) == 0 {
				s = &d.Test
			}
			s.User, s.Item = append(s.User, int32(u)), append(s.Item, int32(i))
			s.Value = append(s.Value, float32(min(max(v, -10), 10)))
		}
	}
	squares := 0.0
	for _, v := range d.Train.Value {
		squares += float64(v * v)
	}
	d.Deviation = math.Sqrt(squares / float64(d.Train.Len())) // the mean is near 0
	return d
}

func constant(rate float32) func(perdure.Clock) float32 {
	return func(perdure.Clock) float32 { return rate }
}

func newPlain(t testing.TB, d *dataset.Ratings, o Options, rate float32) *Plain {
	t.Helper()
	p, err := NewPlain(d, o, constant(rate))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPlainLearns(t *testing.T) {
	d := jesterLike(1000)
	squares := 0.0
	for _, v := range d.Test.Value {
		e := float64(v) - d.Mean
		squares += e * e
	}
	always := math.Sqrt(squares / float64(d.Test.Len()))
	for _, whole := range []bool{false, true} {
		p := newPlain(t, d, Options{
			Seed: 1, Slots: 1, Factors: api.Factors{Rank: 10, L2: 0.1, ClockFraction: 0.25, WholeUsers: whole},
		}, 0.03)
		first, _ := 0.0, 0
		for pass := range 20 {
			n, rmse := p.Run(p.ClocksPerPass())
			if n != d.Train.Len() {
				t.Fatalf("a pass of %d ratings, there are %d", n, d.Train.Len())
			}
			if pass == 0 {
				first = rmse
			} else if pass == 19 && !(rmse < first*0.75) {
				t.Errorf("training RMSE %v in the first pass, %v in the last", first, rmse)
			}
		}
		if got := p.HeldOut(); !(got < 0.75*always) {
			t.Errorf("held-out RMSE %v; the mean alone has %v", got, always)
		}
	}
}

func TestPlainIsDeterministic(t *testing.T) {
	d := jesterLike(200)
	o := Options{Seed: 1, Slots: 1, Factors: api.Factors{Rank: 12, L2: 0.1, ClockFraction: 0.3}}
	a, b := newPlain(t, d, o, 0.01), newPlain(t, d, o, 0.01)
	a.Run(5)
	b.Run(2)
	b.Run(3)
	if !slices.Equal(a.users, b.users) || !slices.Equal(a.items, b.items) {
		t.Error("the same training ends with other bits")
	}
	o.Seed = 2
	c := newPlain(t, d, o, 0.01)
	c.Run(5)
	if slices.Equal(a.items, c.items) {
		t.Error("another seed ends with the same bits")
	}
}

// TestOrder checks that in each pass every rating occurs once, that each user's ratings are in one slot, and that each
// clock's ratings depend only on the arguments.
func TestOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s dataset.RatingSplit
		users := rapid.IntRange(1, 60).Draw(t, "users")
		for u := range users {
			for range rapid.IntRange(0, 20).Draw(t, "ratings") {
				s.User, s.Item, s.Value = append(s.User, int32(u)), append(s.Item, 0), append(s.Value, 0)
			}
		}
		slots, clocks := rapid.IntRange(1, 4).Draw(t, "slots"), rapid.IntRange(1, 7).Draw(t, "clocks")
		whole := rapid.Bool().Draw(t, "whole users")
		o, again := newOrder(&s, users, 3, slots, clocks, whole), newOrder(&s, users, 3, slots, clocks, whole)
		for pass := range 3 {
			times := make([]int, s.Len())
			slotOf := make([]int, users)
			for slot := range slots {
				clockOf := make([]int, users)
				for part := range clocks {
					clock := perdure.Clock(pass*clocks + part)
					list := slices.Clone(o.clock(&s, perdure.Slot(slot), clock))
					if !whole && !slices.IsSorted(list) {
						t.Fatalf("slot %d, clock %d: %v is not in order", slot, clock, list)
					}
					if n := o.slots[slot].ratings(); !whole && (len(list) < n/clocks || len(list) > n/clocks+1) {
						t.Fatalf("%d of %d ratings in one of %d clocks", len(list), n, clocks)
					}
					for _, i := range list {
						times[i]++
						u := s.User[i]
						if slotOf[u] != 0 && slotOf[u] != slot+1 || whole && clockOf[u] != 0 && clockOf[u] != part+1 {
							t.Fatalf("user %d is in two slots or clocks", u)
						}
						slotOf[u], clockOf[u] = slot+1, part+1
					}
					// Repeated later, out of order.
					again.clock(&s, perdure.Slot(slot), perdure.Clock(9*clocks))
					if !slices.Equal(again.clock(&s, perdure.Slot(slot), clock), list) {
						t.Fatalf("slot %d, clock %d, asked again, is another", slot, clock)
					}
				}
			}
			for i, n := range times {
				if n != 1 {
					t.Fatalf("pass %d has rating %d %d times", pass, i, n)
				}
			}
		}
	})
}

// TestOrderIsEven checks that slots have about the same number of ratings and that passes differ.
func TestOrderIsEven(t *testing.T) {
	d := jesterLike(400)
	o := newOrder(&d.Train, d.Users, 1, 4, 10, false)
	for i := range o.slots {
		if n := o.slots[i].ratings(); math.Abs(float64(n)*4/float64(d.Train.Len())-1) > 0.02 {
			t.Errorf("slot %d has %d of %d ratings", i, n, d.Train.Len())
		}
	}
	first := slices.Clone(o.clock(&d.Train, 0, 0))
	if slices.Equal(first, o.clock(&d.Train, 0, 10)) {
		t.Error("two passes have the same clocks")
	}
	other := newOrder(&d.Train, d.Users, 2, 4, 10, false)
	if slices.Equal(first, other.clock(&d.Train, 0, 0)) {
		t.Error("two seeds have the same clocks")
	}
}

func TestOptionsRefused(t *testing.T) {
	d := jesterLike(50)
	good := Options{Slots: 1, Factors: api.Factors{Rank: 4, ClockFraction: 0.1}}
	for want, change := range map[string]func(*Options){
		"number of workers 0":    func(o *Options) { o.Slots = 0 },
		"rank 0":                 func(o *Options) { o.Rank = 0 },
		"rank 5000":              func(o *Options) { o.Rank = 5000 },
		"l2 -1":                  func(o *Options) { o.L2 = -1 },
		"l2 NaN":                 func(o *Options) { o.L2 = math.NaN() },
		"l2 +Inf":                func(o *Options) { o.L2 = math.Inf(1) },
		"clock fraction 0;":      func(o *Options) { o.ClockFraction = 0 },
		"clock fraction 1.1":     func(o *Options) { o.ClockFraction = 1.1 },
		"clock fraction NaN":     func(o *Options) { o.ClockFraction = math.NaN() },
		"would have 0 ratings":   func(o *Options) { o.Slots = 60 },
		"for the 50000 clocks":   func(o *Options) { o.ClockFraction = 2e-5 },
		"choose 2e-05 to 1":      func(o *Options) { o.ClockFraction = 1e-5 },
		"choose fewer workers o": func(o *Options) { o.ClockFraction, o.Slots = 0.01, 49 },
	} {
		o := good
		change(&o)
		if _, err := NewPlain(d, o, constant(1)); !errors.Is(err, perdure.ErrUsage) ||
			!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
	}
}

// server is a parameter server for a single thread under bsp: Incs wait until tick.
type server struct {
	parts   map[string]*table.Part
	pending []func() error
	calls   map[string]int // Gets and Incs by table since the last tick
	clock   perdure.Clock
}

func newServer(w api.Workload, seed uint64) *server {
	s := &server{parts: map[string]*table.Part{}, calls: map[string]int{}}
	for i, spec := range w.Tables() {
		s.parts[spec.Name] = table.New(spec, perdure.TableID(i), seed, 0, int(spec.Rows))
	}
	return s
}

func (s *server) Get(_ context.Context, name string, first perdure.RowID, dst []float32) error {
	s.calls["get "+name]++
	p := s.parts[name]
	return p.ReadRows(dst, first, nil, len(dst)/p.Spec.Dim)
}

func (s *server) GetRows(_ context.Context, name string, rows []perdure.RowID, dst []float32) error {
	s.calls["get "+name]++
	return s.parts[name].ReadRows(dst, 0, rows, len(rows))
}

func (s *server) Inc(_ context.Context, name string, first perdure.RowID, delta []float32) error {
	return s.inc(name, first, nil, len(delta)/s.parts[name].Spec.Dim, delta)
}

func (s *server) IncRows(_ context.Context, name string, rows []perdure.RowID, delta []float32) error {
	return s.inc(name, 0, slices.Clone(rows), len(rows), delta)
}

func (s *server) inc(name string, first perdure.RowID, ids []perdure.RowID, n int, delta []float32) error {
	s.calls["inc "+name]++
	if table.FirstNonFinite(delta) >= 0 {
		return perdure.ErrNonFinite
	}
	delta = slices.Clone(delta)
	s.pending = append(s.pending, func() error { return s.parts[name].ApplyRows(first, ids, n, delta, s.clock) })
	return nil
}

func (s *server) tick(t *testing.T) {
	for _, apply := range s.pending {
		if err := apply(); err != nil {
			t.Fatal(err)
		}
	}
	s.pending = s.pending[:0]
	s.clock++
	clear(s.calls)
}

func goodParams() api.Params {
	return api.Params{
		Seed: 3, Slots: 1, Data: "synthetic:0.0005",
		Rule:    perdure.Rule{Kind: perdure.RuleSGD, Rate: 0.02, Schedule: perdure.ScheduleSqrt},
		Factors: api.Factors{Rank: 12, L2: 0.05, ClockFraction: 0.2},
	}
}

// TestWorkloadIsPlain checks that one slot with tables computes the bits of the plain loop with the same rounding, and
// nearly those of the plain loop without it, and that it makes one call per table.
func TestWorkloadIsPlain(t *testing.T) {
	for _, whole := range []bool{false, true} {
		params := goodParams()
		params.Factors.WholeUsers = whole
		w, err := Open(params)
		if err != nil {
			t.Fatal(err)
		}
		d, err := dataset.OpenRatings(params.Data)
		if err != nil {
			t.Fatal(err)
		}
		o := Options{Seed: params.Seed, Slots: 1, Factors: params.Factors}
		var plain [2]*Plain
		for i := range plain {
			if plain[i], err = NewPlain(d, o, params.Rule.RateAt); err != nil {
				t.Fatal(err)
			}
			plain[i].Rounded = i == 0
		}
		s := newServer(w, params.Seed)
		for clock := range perdure.Clock(12) {
			m, err := w.Step(t.Context(), s, api.Share{Of: 1}, clock)
			if err != nil {
				t.Fatal(err)
			}
			for _, call := range []string{"get users", "get items", "inc users", "inc items"} {
				if s.calls[call] != 1 {
					t.Errorf("%d × %s in a clock", s.calls[call], call)
				}
			}
			s.tick(t)
			n, rmse := plain[0].Run(1)
			plain[1].Run(1)
			if n != m.Samples || rmse != m.TrainRMSE || m.TrainRMSE != math.Sqrt(m.TrainLoss) {
				t.Fatalf("clock %d: %d ratings, RMSE %v; plain %d, %v", clock, m.Samples, m.TrainRMSE, n, rmse)
			}
		}
		for name, rows := range map[string][]float32{Users: plain[0].users, Items: plain[0].items} {
			p := s.parts[name]
			got, err := p.Run(0, p.Rows)
			if err != nil {
				t.Fatal(err)
			}
			wide := make([]float32, len(rows))
			w.(*program).widen(wide, got)
			if !slices.Equal(wide, rows) {
				t.Errorf("table %s ends with other bits than the plain loop", name)
			}
		}
		e, err := w.Evaluate(t.Context(), s)
		if err != nil || e.RMSE != plain[0].HeldOut() || e.Loss != e.RMSE*e.RMSE && math.Sqrt(e.Loss) != e.RMSE ||
			!math.IsNaN(e.Accuracy) {
			t.Errorf("%+v, %v; plain %v", e, err, plain[0].HeldOut())
		}
		if d := plain[1].HeldOut() - e.RMSE; math.Abs(d) > 1e-5 {
			t.Errorf("without rounding at the clocks' ends the RMSE is %v off", d)
		}
	}
}

// TestWholeUsersReadOnce checks that only one clock of a pass reads a user's row.
func TestWholeUsersReadOnce(t *testing.T) {
	params := goodParams()
	params.Factors.WholeUsers, params.Slots = true, 3
	w, err := Open(params)
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(w, params.Seed)
	times := map[perdure.RowID]int{}
	for slot := range perdure.Slot(3) {
		for clock := range perdure.Clock(5) {
			if _, err := w.Step(t.Context(), s, api.Share{Rank: int(slot), Of: params.Slots}, clock); err != nil {
				t.Fatal(err)
			}
			for _, row := range w.(*program).users.list {
				times[row]++
			}
		}
	}
	if len(times) < w.(*program).data.Users/2 {
		t.Errorf("rows of %d users were read", len(times))
	}
	for row, n := range times {
		if n != 1 {
			t.Errorf("user %d is read in %d clocks", row, n)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	for want, change := range map[string]func(*api.Params){
		"does not support rule adam": func(p *api.Params) { p.Rule = perdure.Rule{Kind: perdure.RuleAdam} },
		"use l2 for decay":           func(p *api.Params) { p.Rule.Decay = 0.1 },
		"sgd without settings":       func(p *api.Params) { p.Rule.ClipNorm = 1 },
		"learning rate -1":           func(p *api.Params) { p.Rule.Rate = -1 },
		"number of workers 0":        func(p *api.Params) { p.Slots = 0 },
		"choose 0.0001 to 1":         func(p *api.Params) { p.Data = "synthetic:2" },
		"rank 0":                     func(p *api.Params) { p.Factors.Rank = 0 },
	} {
		p := goodParams()
		change(&p)
		if w, err := Open(p); w != nil || !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v, want %q", p, err, want)
		}
	}
}

// TestDivergenceIsTold checks that divergence is reported in one line that says what to do.
func TestDivergenceIsTold(t *testing.T) {
	params := goodParams()
	params.Rule.Rate = 1000
	w, err := Open(params)
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(w, 1)
	_, err = w.Step(t.Context(), s, api.Share{Of: 1}, 0)
	if !errors.Is(err, perdure.ErrNonFinite) || !strings.Contains(err.Error(), "choose a rate below 1000") {
		t.Errorf("error %v", err)
	}
}

// TestClocksAllocateNothing holds after the lists and rows have reached their full size.
func TestClocksAllocateNothing(t *testing.T) {
	w, err := Open(goodParams())
	if err != nil {
		t.Fatal(err)
	}
	s := &still{}
	clock := perdure.Clock(0)
	next := func() {
		if _, err := w.Step(t.Context(), s, api.Share{Of: 1}, clock); err != nil {
			t.Fatal(err)
		}
		clock++
	}
	for range 30 {
		next()
	}
	if n := testing.AllocsPerRun(10, next); n > 1 { // one for t.Context
		t.Errorf("%v allocations in a clock", n)
	}
}

// still is tables of zeros that ignore updates.
type still struct{}

func (still) Get(context.Context, string, perdure.RowID, []float32) error       { return nil }
func (still) GetRows(context.Context, string, []perdure.RowID, []float32) error { return nil }
func (still) Inc(context.Context, string, perdure.RowID, []float32) error       { return nil }
func (still) IncRows(context.Context, string, []perdure.RowID, []float32) error { return nil }

// HeldOut returns the root mean squared error on the held-out ratings.
func (p *Plain) HeldOut() float64 {
	test := &p.m.data.Test
	squares, _ := p.m.squaredErrors(0, test, 0, 0, math.MaxInt32, p.users, p.items)
	return math.Sqrt(p.m.loss(squares, test.Len()))
}

// ClocksPerPass returns the number of clocks that process all ratings once.
func (p *Plain) ClocksPerPass() perdure.Clock { return perdure.Clock(p.m.clocks) }

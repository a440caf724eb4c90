package table

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/perdure/perdure"
)

// stateful and stateless are rules of every kind, with settings large enough to have a visible effect.
var (
	stateless = []perdure.Rule{
		{Kind: perdure.RuleAdd},
		{Kind: perdure.RuleSet},
		{Kind: perdure.RuleSGD, Rate: 0.1},
	}
	stateful = []perdure.Rule{
		{Kind: perdure.RuleMomentum, Rate: 0.05, Momentum: 0.8},
		{Kind: perdure.RuleNesterov, Rate: 0.05, Momentum: 0.8},
		{Kind: perdure.RuleAdagrad, Rate: 0.5, Epsilon: 0.25},
		{Kind: perdure.RuleRowwiseAdagrad, Rate: 0.5, Epsilon: 0.25},
		{Kind: perdure.RuleAdam, Rate: 0.05, Beta1: 0.9, Beta2: 0.95, Epsilon: 0.25},
		{Kind: perdure.RuleFTRL, Rate: 0.5, Beta: 0.75, L1: 1.5, L2: 0.25},
	}
)

// variants returns a rule with all its options: schedules, decay, clipping.
func variants(rule perdure.Rule) []perdure.Rule {
	if rule.Kind == perdure.RuleAdd || rule.Kind == perdure.RuleSet {
		return []perdure.Rule{rule}
	}
	with := func(change func(*perdure.Rule)) perdure.Rule {
		r := rule
		change(&r)
		return r
	}
	all := []perdure.Rule{
		rule,
		with(func(r *perdure.Rule) { r.Schedule = perdure.ScheduleSqrt }),
		with(func(r *perdure.Rule) { r.Schedule, r.Every, r.Factor = perdure.ScheduleStep, 7, 0.75 }),
		with(func(r *perdure.Rule) { r.ClipValue = 0.75 }),
		with(func(r *perdure.Rule) { r.ClipNorm = 1.25 }),
		with(func(r *perdure.Rule) { r.ClipValue, r.ClipNorm = 1, 1.5 }),
	}
	if rule.Kind != perdure.RuleFTRL {
		all = append(all,
			with(func(r *perdure.Rule) { r.Decay = 0.3 }),
			with(func(r *perdure.Rule) { r.Decay, r.ClipNorm, r.Schedule = 0.2, 1, perdure.ScheduleSqrt }),
			with(func(r *perdure.Rule) { r.Decay, r.ClipValue, r.ClipNorm = 0.2, 0.5, 1 }),
		)
	}
	return all
}

func allRules() (all []perdure.Rule) {
	for _, r := range slices.Concat(stateless, stateful) {
		all = append(all, variants(r)...)
	}
	return all
}

// newPlanes returns n rows of dim values from next, with zero state.
func newPlanes(rule perdure.Rule, dim, n int, next func() float32) planes {
	full, perRow := StateShape(rule)
	p := planes{values: make([]float32, n*dim)}
	for i := range p.values {
		p.values[i] = next()
	}
	for i := range full {
		p.state[i] = make([]float32, n*dim)
	}
	if perRow {
		p.row = make([]float32, n)
	}
	return p
}

func (p planes) clone() planes {
	return planes{
		slices.Clone(p.values),
		[2][]float32{slices.Clone(p.state[0]), slices.Clone(p.state[1])},
		slices.Clone(p.row),
	}
}

func (p planes) same(q planes) bool {
	return sameBits(p.values, q.values) && sameBits(p.state[0], q.state[0]) && sameBits(p.state[1], q.state[1]) &&
		sameBits(p.row, q.row)
}

// paperRow is one row under a rule, in float64. It is written from the papers, not from the kernels, and without regard
// to speed.
type paperRow struct {
	rule          perdure.Rule
	w, s, r       []float64 // r: second moments of adam, n of ftrl
	updates, mean float64   // t of adam; rowwise-adagrad's sum of mean squares
}

func newPaperRow(rule perdure.Rule, w []float32) *paperRow {
	p := &paperRow{rule: rule, s: make([]float64, len(w)), r: make([]float64, len(w))}
	for _, v := range w {
		p.w = append(p.w, float64(v))
	}
	return p
}

func (p *paperRow) rate(clock int) float64 {
	switch p.rule.Schedule {
	case perdure.ScheduleSqrt:
		return p.rule.Rate / math.Sqrt(float64(clock+1))
	case perdure.ScheduleStep:
		return p.rule.Rate * math.Pow(p.rule.Factor, math.Floor(float64(clock)/float64(p.rule.Every)))
	}
	return p.rule.Rate
}

// gradient returns a row's update as the rule sees it.
func (p *paperRow) gradient(delta []float32) (g []float64, meanSquare float64) {
	norm := 0.0
	for _, d := range delta {
		v := float64(d)
		if c := p.rule.ClipValue; c > 0 {
			v = math.Max(-c, math.Min(c, v))
		}
		g, norm = append(g, v), math.Hypot(norm, v)
	}
	for i := range g {
		if p.rule.ClipNorm > 0 && norm > p.rule.ClipNorm {
			g[i] *= p.rule.ClipNorm / norm
		}
		if p.rule.Kind != perdure.RuleAdam {
			g[i] += p.rule.Decay * p.w[i]
		}
		meanSquare += g[i] * g[i] / float64(len(delta))
	}
	return g, meanSquare
}

func (p *paperRow) update(delta []float32, clock int) {
	rule, eta := p.rule, p.rate(clock)
	g, meanSquare := p.gradient(delta)
	p.updates++
	p.mean += meanSquare
	for i, g := range g {
		switch rule.Kind {
		case perdure.RuleAdd:
			p.w[i] += g
		case perdure.RuleSet:
			p.w[i] = g
		case perdure.RuleSGD:
			p.w[i] -= eta * g
		case perdure.RuleMomentum: // Polyak: a step is -η·(the decayed sum of gradients)
			p.s[i] = rule.Momentum*p.s[i] + g
			p.w[i] -= eta * p.s[i]
		case perdure.RuleNesterov: // Sutskever et al., where w is the point that looks ahead
			old := p.s[i]
			p.s[i] = rule.Momentum*old + g
			p.w[i] -= eta * ((1+rule.Momentum)*p.s[i] - rule.Momentum*old)
		case perdure.RuleAdagrad:
			p.s[i] += g * g
			p.w[i] -= eta / (math.Sqrt(p.s[i]) + rule.Epsilon) * g
		case perdure.RuleRowwiseAdagrad:
			p.w[i] -= eta / (math.Sqrt(p.mean) + rule.Epsilon) * g
		case perdure.RuleAdam: // Algorithm 1 of Kingma and Ba, with AdamW's decay
			p.w[i] -= eta * rule.Decay * p.w[i]
			p.s[i] = rule.Beta1*p.s[i] + (1-rule.Beta1)*g
			p.r[i] = rule.Beta2*p.r[i] + (1-rule.Beta2)*g*g
			m := p.s[i] / (1 - math.Pow(rule.Beta1, p.updates))
			v := p.r[i] / (1 - math.Pow(rule.Beta2, p.updates))
			p.w[i] -= eta * m / (math.Sqrt(v) + rule.Epsilon)
		case perdure.RuleFTRL: // Algorithm 1 of McMahan et al.: s is z, r is n
			sigma := (math.Sqrt(p.r[i]+g*g) - math.Sqrt(p.r[i])) / eta
			p.s[i] += g - sigma*p.w[i]
			p.r[i] += g * g
			p.w[i] = 0
			if z := p.s[i]; math.Abs(z) > rule.L1 {
				p.w[i] = -1 / ((rule.Beta+math.Sqrt(p.r[i]))/eta + rule.L2) * (z - math.Copysign(rule.L1, z))
			}
		}
	}
}

// TestRulesLikePapers: every rule with all its options stays within 5e-6 of its paper in float64, relative to the
// largest value of the row so far (and at least 1), over 300 clocks; float32 has a precision of 6e-8.
func TestRulesLikePapers(t *testing.T) {
	const dim, rows, clocks, tolerance = 19, 4, 300, 5e-6
	worst := 0.0
	for i, rule := range allRules() {
		seed := sequence(i)
		next := func() float32 { return seed.ordinary() / 10 }
		if rule.Kind == perdure.RuleFTRL {
			next = func() float32 { return 0 } // w is a function of z and n
		}
		p, u := newPlanes(rule, dim, rows, next), newUpdater(rule, dim)
		var papers []*paperRow
		for r := range rows {
			papers = append(papers, newPaperRow(rule, p.values[r*dim:][:dim]))
		}
		slope := seed.fill(dim, seed.ordinary)
		largest := 1.0
		for clock := range clocks {
			from := int(seed.bits() % rows) // rows differ in their number of updates
			to := from + 1 + int(seed.bits()%uint64(rows-from))
			g := make([]float32, (to-from)*dim)
			for j := range g {
				g[j] = slope[j%dim]/20 + seed.ordinary()/10
			}
			u.apply(p.rows(dim, from, to), g, perdure.Clock(clock))
			for r := from; r < to; r++ {
				papers[r].update(g[(r-from)*dim:][:dim], clock)
				for j, want := range papers[r].w {
					largest = max(largest, math.Abs(want))
					off := math.Abs(float64(p.values[r*dim+j])-want) / largest
					worst = max(worst, off)
					if !(off <= tolerance) {
						t.Fatalf("%+v, clock %d, row %d, value %d: %v, want %v", rule, clock, r, j, p.values[r*dim+j],
							want)
					}
				}
			}
		}
	}
	t.Logf("at most %.1e off", worst)
}

// TestRunLikeRows: an update changes a run of rows bit for bit as it changes them one by one, whatever their length and
// state.
func TestRunLikeRows(t *testing.T) {
	rules := allRules()
	rapid.Check(t, func(t *rapid.T) {
		rule := rapid.SampledFrom(rules).Draw(t, "rule")
		dim := rapid.SampledFrom([]int{
			1, 2, 3, 8, 10, 64, 100, blockValues - 1, blockValues,
			2*blockValues + 5,
		}).Draw(t, "dim")
		rows := rapid.IntRange(0, max(3, min(40, 3*blockValues/dim))).Draw(t, "rows")
		seed := sequence(rapid.Uint64().Draw(t, "seed"))
		value := seed.ordinary
		if rapid.IntRange(0, 3).Draw(t, "wild") == 0 {
			value = seed.value
		}
		whole := newPlanes(rule, dim, rows, value)
		for i := range whole.row {
			whole.row[i] = float32(seed.bits() % 3)
		}
		single := whole.clone()
		u, v := newUpdater(rule, dim), newUpdater(rule, dim)
		for clock := range perdure.Clock(3) {
			g := seed.fill(rows*dim, value)
			before := slices.Clone(g)
			u.apply(whole, g, clock)
			for r := range rows {
				v.apply(single.rows(dim, r, r+1), g[r*dim:(r+1)*dim], clock)
			}
			if !whole.same(single) {
				t.Fatalf("clock %d:\n%v\nrow by row\n%v", clock, whole, single)
			}
			if !sameBits(g, before) {
				t.Fatal("the update was changed")
			}
		}
	})
}

// TestRulesLikePlain: a rule gives the same bits with and without vectors.
func TestRulesLikePlain(t *testing.T) {
	if !vectors {
		t.Skip("this machine has the plain loops only")
	}
	defer func() { vectors = true }()
	for i, rule := range allRules() {
		for _, dim := range []int{1, 10, 64, 1500} {
			seed := sequence(i)
			fast := newPlanes(rule, dim, 7, seed.ordinary)
			plain := fast.clone()
			u := newUpdater(rule, dim)
			for clock := range perdure.Clock(5) {
				g := seed.fill(7*dim, seed.ordinary)
				vectors = true
				u.apply(fast, g, clock)
				vectors = false
				u.apply(plain, g, clock)
				if !fast.same(plain) {
					t.Fatalf("%+v of %d, clock %d:\n%v\nplain\n%v", rule, dim, clock, fast, plain)
				}
			}
		}
	}
}

// TestApplyBits compares the plain rules with naive ones that round each operation.
func TestApplyBits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rule := rules().Draw(t, "rule")
		clock := perdure.Clock(rapid.IntRange(0, 9).Draw(t, "clock"))
		rows := rapid.SliceOfN(floats(), 0, 68).Draw(t, "rows")
		delta := rapid.SliceOfN(floats(), len(rows), len(rows)).Draw(t, "delta")
		want := naiveApply(rule, rows, delta, clock)
		if Apply(rule, 1, rows, delta, clock); !sameBits(rows, want) {
			t.Fatalf("%x\nwant %x", rows, want)
		}
	})
}

// TestApplyLeavesStateToShards: a rule with state is computed only by the shard.
func TestApplyLeavesStateToShards(t *testing.T) {
	for _, rule := range stateful {
		rows := []float32{1, 2, 3}
		Apply(rule, 3, rows, []float32{4, 5, 6}, 0)
		if !slices.Equal(rows, []float32{1, 2, 3}) {
			t.Errorf("%s: %v", rule.Kind, rows)
		}
	}
}

func TestStateShape(t *testing.T) {
	for kind, want := range map[perdure.RuleKind]string{
		perdure.RuleAdd: "0 false", perdure.RuleSet: "0 false", perdure.RuleSGD: "0 false",
		perdure.RuleMomentum: "1 false", perdure.RuleNesterov: "1 false",
		perdure.RuleAdagrad: "1 false", perdure.RuleRowwiseAdagrad: "0 true",
		perdure.RuleAdam: "2 true", perdure.RuleFTRL: "2 false",
	} {
		rule := perdure.Rule{Kind: kind}
		full, perRow := StateShape(rule)
		if got := fmt.Sprint(full, perRow); got != want {
			t.Errorf("%s: %s, want %s", kind, got, want)
		}
		if rule.KeepsState() != (full > 0 || perRow) {
			t.Errorf("%s: the vocabulary says that it keeps state: %v", kind, rule.KeepsState())
		}
	}
}

func TestFirstNonFinite(t *testing.T) {
	bad := []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), math.Float32frombits(0xff800001)}
	for n := range 100 {
		values := slices.Repeat([]float32{math.MaxFloat32, -math.MaxFloat32, 0, math.SmallestNonzeroFloat32}, 25)[:n]
		if got := FirstNonFinite(values); got != -1 {
			t.Fatalf("none of %d: found one at %d", n, got)
		}
		for i := range n {
			v := slices.Clone(values)
			v[i] = bad[i%len(bad)]
			v[min(n-1, i+3)] = bad[i%len(bad)] // a later one must not matter
			if got := FirstNonFinite(v); got != i {
				t.Fatalf("%d of %d: found at %d", i, n, got)
			}
		}
	}
}

// TestClipEdges: a gradient whose squares overflow float32 is still scaled to its bound, and clipping keeps NaN.
func TestClipEdges(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, tc := range []struct {
		what                string
		clipValue, clipNorm float64
		g, want             []float32
	}{
		{"norm of huge values", 0, 5, []float32{3e30, -4e30}, []float32{-3, 4}},
		{"norm below the bound", 0, 5, []float32{3, 3.9}, []float32{-3, -3.9}},
		{"norm at the bound", 0, 5, []float32{3, 4}, []float32{-3, -4}},
		{"zeros", 0, 5, []float32{0, 0}, []float32{0, 0}},
		{"values", 2, 0, []float32{3, -1}, []float32{-2, 1}},
		{"an infinite value", 2, 0, []float32{inf, -inf}, []float32{-2, 2}},
		{"values before the norm", 4, 5, []float32{3, inf}, []float32{-3, -4}},
		{"NaN in values", 2, 0, []float32{nan, 7}, []float32{nan, -2}},
		{"NaN in a norm", 0, 5, []float32{nan, 7}, []float32{nan, -7}},
		{"an infinite norm", 0, 5, []float32{-inf, 7}, []float32{nan, 0}},
	} {
		rule := perdure.Rule{Kind: perdure.RuleSGD, Rate: 1, ClipValue: tc.clipValue, ClipNorm: tc.clipNorm}
		rows := []float32{0, 0}
		if Apply(rule, 2, rows, tc.g, 0); !sameBits(rows, tc.want) {
			t.Errorf("%s: %v, want %v", tc.what, rows, tc.want)
		}
	}
}

// TestNothingToLearn: rules whose rate or state is zero leave rows unchanged.
func TestNothingToLearn(t *testing.T) {
	for _, rule := range []perdure.Rule{
		{Kind: perdure.RuleRowwiseAdagrad, Rate: 1, Epsilon: 1e-45},
		{Kind: perdure.RuleFTRL, Rate: 1e-40, Beta: 1},
	} {
		p := newPlanes(rule, 2, 1, func() float32 { return 0.5 })
		newUpdater(rule, 2).apply(p, []float32{0, 0}, 0)
		if !slices.Equal(p.values, []float32{0.5, 0.5}) {
			t.Errorf("%s: %v", rule.Kind, p.values)
		}
	}
}

// TestAdamCounts: adam counts each row's updates up to the limit of float32, and no further.
func TestAdamCounts(t *testing.T) {
	rule := perdure.Rule{Kind: perdure.RuleAdam, Rate: 1}.WithDefaults()
	u := newUpdater(rule, 1)
	p := newPlanes(rule, 1, 4, func() float32 { return 0 })
	copy(p.row, []float32{0, 1 << 20, 1<<24 - 1, 1 << 24})
	for range 2 {
		u.apply(p, []float32{1, 1, 1, 1}, 0)
	}
	if !slices.Equal(p.row, []float32{2, 1<<20 + 2, 1 << 24, 1 << 24}) {
		t.Errorf("%v", p.row)
	}
}

// TestBias: the corrections are accurate for every count: within half a unit in the last place of a float32, plus the
// rounding error of the powers.
func TestBias(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const beta1 = 0.9
		beta2 := rapid.SampledFrom([]float64{0.5, 0.9, 0.999, 0.999999, 1 - 0x1p-24}).Draw(t, "beta2")
		var b biases
		b.beta1.init(beta1)
		b.beta2.init(beta2)
		n := rapid.OneOf(rapid.IntRange(1, 600), rapid.IntRange(1, maxUpdates)).Draw(t, "t")
		for _, n := range []int{n, maxUpdates} {
			first, second := b.at(float32(n))
			want1, want2 := 1-math.Pow(beta1, float64(n)), 1/math.Sqrt(1-math.Pow(beta2, float64(n)))
			if math.Abs(float64(first)/want1-1) > 0x1.01p-24 || math.Abs(float64(second)/want2-1) > 0x1.01p-24 {
				t.Fatalf("%d: %v and %v, want %v and %v", n, first, second, want1, want2)
			}
		}
	})
}

func TestNoAllocations(t *testing.T) {
	const dim, rows = 37, 60
	g := slices.Repeat([]float32{1}, dim*rows)
	for _, rule := range allRules() {
		p, u := newPlanes(rule, dim, rows, func() float32 { return 0 }), newUpdater(rule, dim)
		for what, do := range map[string]func(){
			"apply":          func() { u.apply(p, g, 3) },
			"Apply":          func() { Apply(rule, dim, p.values, g, 3) },
			"FirstNonFinite": func() { FirstNonFinite(g) },
		} {
			if n := testing.AllocsPerRun(10, do); n != 0 {
				t.Errorf("%s of %+v: %v allocations", what, rule, n)
			}
		}
	}
}

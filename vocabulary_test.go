package perdure_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/perdure/perdure"
)

// oneLine checks that an error is ErrUsage in one line that says what to do.
func oneLine(t *testing.T, what string, err error, says ...string) {
	t.Helper()
	if !errors.Is(err, perdure.ErrUsage) {
		t.Errorf("%s: %v; want ErrUsage", what, err)
		return
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%s: %q does not say %q", what, err, s)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("%s: %q has more than one line", what, err)
	}
}

func TestConsistency(t *testing.T) {
	for s, want := range map[string]perdure.Consistency{
		"bsp":            {Kind: perdure.BSP},
		"asp":            {Kind: perdure.ASP},
		"ssp:0":          {Kind: perdure.SSP},
		"ssp:3":          {Kind: perdure.SSP, Staleness: 3},
		"ssp:2147483647": {Kind: perdure.SSP, Staleness: math.MaxInt32},
		"essp:0":         {Kind: perdure.ESSP},
		"essp:3":         {Kind: perdure.ESSP, Staleness: 3},
		"vap:0.5":        {Kind: perdure.VAP, Bound: 0.5},
		"vap:1e-09":      {Kind: perdure.VAP, Bound: 1e-9},
	} {
		got, err := perdure.ParseConsistency(s)
		if err != nil || got != want || got.String() != s {
			t.Errorf("%q is read as %+v (%s), %v; want %+v", s, got, got, err, want)
		}
		if got.TwoStep() != (s == "bsp") {
			t.Errorf("%q: two steps: %v", s, got.TwoStep())
		}
		var back struct{ C perdure.Consistency }
		b, err := json.Marshal(struct{ C perdure.Consistency }{want})
		if err != nil || string(b) != `{"C":"`+s+`"}` || json.Unmarshal(b, &back) != nil || back.C != want {
			t.Errorf("%q in JSON is %s, which is read as %+v", s, b, back.C)
		}
	}
	for s, says := range map[string]string{
		"": "choose bsp, ssp:S, essp:S, asp or vap:V", "BSP": "choose", " bsp": "choose", "bsp:": "write bsp",
		"bsp:1": "write bsp", "asp:1": "write asp",
		"ssp": "ssp:3", "ssp:": "ssp:3", "ssp:-1": "ssp:3", "ssp:1.5": "ssp:3", "ssp:two": "ssp:3",
		"ssp:2147483648": "ssp:3",
		"ssp:1:1":        "ssp:3", "bsp\nasp": "choose",
		"essp": "essp:3 for the default", "essp:-1": "essp:3", "essp:x": "essp:3",
		"vap": "no default", "vap:0": "number > 0", "vap:-1": "number > 0", "vap:nan": "number > 0",
		"vap:inf": "number > 0", "vap:x": "vap:0.5",
	} {
		_, err := perdure.ParseConsistency(s)
		oneLine(t, s, err, says)
		var c perdure.Consistency
		oneLine(t, s+" as text", c.UnmarshalText([]byte(s)), says)
	}
}

func TestRecovery(t *testing.T) {
	for s, want := range map[string]perdure.Recovery{
		"none":                  {Kind: perdure.RecoverNone},
		"checkpoint:1":          {Kind: perdure.RecoverCheckpoint, Every: 1},
		"checkpoint:20":         {Kind: perdure.RecoverCheckpoint, Every: 20},
		"checkpoint:2147483647": {Kind: perdure.RecoverCheckpoint, Every: math.MaxInt32},
		"resend:1":              {Kind: perdure.RecoverResend, Every: 1},
		"resend:20":             {Kind: perdure.RecoverResend, Every: 20},
		"resend:20,partial":     {Kind: perdure.RecoverResend, Every: 20, Partial: true},
		"resend:auto,partial":   {Kind: perdure.RecoverResend, Auto: true, Partial: true},
		"checkpoint:20,async":   {Kind: perdure.RecoverCheckpoint, Every: 20, Async: true},
		"chain:2":               {Kind: perdure.RecoverChain, Replicas: 2},
		"chain:3,async":         {Kind: perdure.RecoverChain, Replicas: 3, Async: true},
		"chain:3,every:100":     {Kind: perdure.RecoverChain, Replicas: 3, Every: 100},
		"chain:2,checkpoint:1":  {Kind: perdure.RecoverChain, Replicas: 2, Every: 1, Checkpoints: true},
		"chain:3,checkpoint:20": {Kind: perdure.RecoverChain, Replicas: 3, Every: 20, Checkpoints: true},

		"checkpoint:auto":         {Kind: perdure.RecoverCheckpoint, Auto: true},
		"checkpoint:auto,async":   {Kind: perdure.RecoverCheckpoint, Auto: true, Async: true},
		"resend:auto":             {Kind: perdure.RecoverResend, Auto: true},
		"chain:2,checkpoint:auto": {Kind: perdure.RecoverChain, Replicas: 2, Auto: true, Checkpoints: true},
		"chain:2,checkpoint:auto,async": {
			Kind: perdure.RecoverChain, Replicas: 2, Auto: true, Checkpoints: true,
			Async: true,
		},

		"chain:3,checkpoint:20,async": {
			Kind: perdure.RecoverChain, Replicas: 3, Every: 20, Checkpoints: true,
			Async: true,
		},
	} {
		got, err := perdure.ParseRecovery(s)
		if err != nil || got != want || got.String() != s {
			t.Errorf("%q is read as %+v (%s), %v; want %+v", s, got, got, err, want)
		}
		var back struct{ R perdure.Recovery }
		b, err := json.Marshal(struct{ R perdure.Recovery }{want})
		if err != nil || string(b) != `{"R":"`+s+`"}` || json.Unmarshal(b, &back) != nil || back.R != want {
			t.Errorf("%q in JSON is %s, which is read as %+v", s, b, back.R)
		}
	}
	for s, says := range badRecoveries {
		_, err := perdure.ParseRecovery(s)
		oneLine(t, s, err, says)
		var r perdure.Recovery
		oneLine(t, s+" as text", r.UnmarshalText([]byte(s)), says)
	}
}

// badRecoveries are refused, with what the message says.
var badRecoveries = map[string]string{
	"": "choose none, checkpoint:C, resend:C, chain:N", "None": "choose", "none:": "choose", "none:1": "choose",
	"none,async": "choose",
	"chain":      "for example, chain:2", "chain:": "for example, chain:2", "chain:0": "2 or more",
	"chain:1": "2 or more", "chain:-2": "2 or more", "chain:x": "2 or more",
	"chain:2,": "async, every:K", "chain:2,sync": "async, every:K", "chain:2,every": "async, every:K",
	"chain:2,every:0": "chain:2,every:100",
	"chain:2,every:x": "chain:2,every:100", "chain:2,async,every:3": "2 options",
	"chain:2,checkpoint:0": "chain:2,checkpoint:100", "chain:3,checkpoint:-1": "chain:3,checkpoint:100",
	"chain:2,checkpoint:": "chain:2,checkpoint:100",
	"chain:2,checkpoint":  "checkpoint:C after the comma", "chain:1,checkpoint:20": "2 or more",
	"chain:2,checkpoint:1.5":              "chain:2,checkpoint:100",
	"chain:2,checkpoint:20,checkpoint:30": "one of async", "chain:2,checkpoint:20,": "one of async",
	"chain:2,checkpoint:20,async,async": "may lose acknowledged updates",
	"chain:2,async,checkpoint:20":       "may lose acknowledged updates",
	"chain:3,every:4,checkpoint:20":     "use, for example, chain:3,checkpoint:100",
	"resend:":                           "resend:20", "resend:0": "resend:20", "resend:x": "resend:20",
	"resend:20,async": "only partial may follow resend:20", "resend,chain:2": "only partial may follow resend",
	"resend:20,partial,async": "only partial may follow resend:20",
	"resend:0,partial":        "resend:20", "resend:20,": "partial",
	"checkpoint:20,partial": "only async", "chain:2,partial": "async, every:K", "none,partial": "choose",
	"chain:2,checkpoint:20,async,checkpoint:30": "may lose acknowledged updates",
	"chain:2,checkpoint:,async":                 "chain:2,checkpoint:100",
	"checkpoint:20,sync":                        "only async may follow", "checkpoint:20,": "only async",
	"checkpoint:20,async,async": "only async", "checkpoint:20,chain:2": "chain:2,checkpoint:20",
	"checkpoint:x,async": "checkpoint:20", "checkpoint:Auto": "or checkpoint:auto",
	"resend:auto,async":  "only partial may follow resend:auto",
	"chain:2,every:auto": "chain:2,every:100", "checkpoint:auto:5": "or checkpoint:auto", "auto": "choose",
	"checkpoint": "checkpoint:20", "checkpoint:": "checkpoint:20", "checkpoint:0": "checkpoint:20",
	"checkpoint:-1":  "checkpoint:20",
	"checkpoint:1.5": "checkpoint:20", "checkpoint:often": "checkpoint:20",
	"checkpoint:2147483648": "checkpoint:20", "checkpoint:1\n": "checkpoint:20",
}

// Resend alone is written as what it stands for.
func TestResendAlone(t *testing.T) {
	for s, want := range map[string]string{"resend": "resend:auto", "resend,partial": "resend:auto,partial"} {
		if r, err := perdure.ParseRecovery(s); err != nil || r.String() != want {
			t.Errorf("%s is read as %s, %v; want %s", s, r, err, want)
		}
	}
}

func TestRule(t *testing.T) {
	sgd := func(change func(*perdure.Rule)) perdure.Rule {
		r := perdure.Rule{Kind: perdure.RuleSGD, Rate: 0.5}
		change(&r)
		return r
	}
	step := func(every perdure.Clock, factor float64) perdure.Rule {
		return sgd(func(r *perdure.Rule) { r.Schedule, r.Every, r.Factor = perdure.ScheduleStep, every, factor })
	}
	for _, r := range []perdure.Rule{
		{Kind: perdure.RuleAdd},
		{Kind: perdure.RuleMomentum, Rate: 1, Momentum: 0.9, Decay: 0.1, ClipValue: 1, ClipNorm: 2},
		perdure.Rule{Kind: perdure.RuleNesterov, Rate: 1}.WithDefaults(),
		perdure.Rule{Kind: perdure.RuleAdagrad, Rate: 1}.WithDefaults(),
		perdure.Rule{Kind: perdure.RuleRowwiseAdagrad, Rate: 1}.WithDefaults(),
		perdure.Rule{Kind: perdure.RuleAdam, Rate: 1}.WithDefaults(),
		perdure.Rule{Kind: perdure.RuleFTRL, Rate: 1}.WithDefaults(),
		{Kind: perdure.RuleFTRL, Rate: 1, Beta: 1, L1: 1, L2: 0.5},
		sgd(func(*perdure.Rule) {}), sgd(func(r *perdure.Rule) { r.Schedule = perdure.ScheduleConst }),
		sgd(func(r *perdure.Rule) { r.Schedule = perdure.ScheduleSqrt }), step(1, 1), step(100, 0.5),
	} {
		if err := r.Validate(); err != nil {
			t.Errorf("%+v: %v", r, err)
		}
	}
	for what, r := range map[string]perdure.Rule{
		"choose add, set, sgd, momentum, nesterov, adagrad, rowwise-adagrad, adam or ftrl": {},
		"choose const, sqrt or step":    sgd(func(r *perdure.Rule) { r.Schedule = "cosine" }),
		"learning rate 0":               sgd(func(r *perdure.Rule) { r.Rate = 0 }),
		"learning rate -1":              sgd(func(r *perdure.Rule) { r.Rate = -1 }),
		"learning rate NaN":             sgd(func(r *perdure.Rule) { r.Rate = math.NaN() }),
		"learning rate +Inf":            sgd(func(r *perdure.Rule) { r.Rate = math.Inf(1) }),
		"rule add has no learning rate": {Kind: perdure.RuleAdd, Rate: math.NaN()},
		"rule add has no clip value":    {Kind: perdure.RuleAdd, ClipValue: 1},
		"rule ftrl has no decay":        {Kind: perdure.RuleFTRL, Rate: 1, Beta: 1, Decay: 1},
		"momentum 0 of rule momentum":   {Kind: perdure.RuleMomentum, Rate: 1},
		"momentum 1 of rule nesterov":   {Kind: perdure.RuleNesterov, Rate: 1, Momentum: 1},
		// 1 as a float32
		"beta2 0.9999999999":       {Kind: perdure.RuleAdam, Rate: 1, Beta1: 0.9, Beta2: 0.9999999999, Epsilon: 1e-8},
		"epsilon 1e-60":            {Kind: perdure.RuleAdagrad, Rate: 1, Epsilon: 1e-60}, // 0 as a float32
		"epsilon 0":                {Kind: perdure.RuleAdam, Rate: 1, Beta1: 0.9, Beta2: 0.99},
		"beta 0":                   {Kind: perdure.RuleFTRL, Rate: 1},
		"l1 -1":                    {Kind: perdure.RuleFTRL, Rate: 1, Beta: 1, L1: -1},
		"decay -0.1":               sgd(func(r *perdure.Rule) { r.Decay = -0.1 }),
		"clip norm +Inf":           sgd(func(r *perdure.Rule) { r.ClipNorm = math.Inf(1) }),
		"rule sgd has no momentum": sgd(func(r *perdure.Rule) { r.Momentum = 0.5 }),
		"every 0":                  step(0, 0.5), "factor 0": step(1, 0), "factor 1.5": step(1, 1.5),
		"factor NaN": step(1, math.NaN()),
	} {
		oneLine(t, what, r.Validate(), what)
	}
}

func TestParseRule(t *testing.T) {
	for s, want := range map[string]perdure.Rule{
		"add": {Kind: perdure.RuleAdd}, "set": {Kind: perdure.RuleSet}, "sgd": {Kind: perdure.RuleSGD},
		"sgd,clip-norm=5,decay=1e-4": {Kind: perdure.RuleSGD, ClipNorm: 5, Decay: 1e-4},
		"momentum":                   {Kind: perdure.RuleMomentum, Momentum: 0.9},
		"nesterov,momentum=0.5":      {Kind: perdure.RuleNesterov, Momentum: 0.5},
		"adam,beta1=0.8,clip-value=1": {
			Kind: perdure.RuleAdam, Beta1: 0.8, Beta2: 0.999, Epsilon: 1e-8, ClipValue: 1,
		},
		"adam,beta2=0.99,epsilon=1e-6": {Kind: perdure.RuleAdam, Beta1: 0.9, Beta2: 0.99, Epsilon: 1e-6},
		"adagrad":                      {Kind: perdure.RuleAdagrad, Epsilon: 1e-10},
		"rowwise-adagrad":              {Kind: perdure.RuleRowwiseAdagrad, Epsilon: 1e-10},
		"ftrl,beta=2,l1=3,l2=4":        {Kind: perdure.RuleFTRL, Beta: 2, L1: 3, L2: 4},
	} {
		if got, err := perdure.ParseRule(s); err != nil || got != want {
			t.Errorf("%q is read as %+v, %v; want %+v", s, got, err, want)
		}
	}
	for s, says := range map[string]string{
		"": "choose add, set, sgd", "adamw": "choose", "adam ": "choose", "sgd,": `no setting ""`,
		"sgd,momentum=0.9": `rule sgd has no setting "momentum"`,
		"adam,rate=1":      "no setting", "adam,beta1": "beta1=NUMBER", "adam,beta1=x": "beta1=NUMBER",
		"adam,beta1=0.5,beta1=0.6": "once", "add,decay=1": "no setting",
	} {
		_, err := perdure.ParseRule(s)
		oneLine(t, s, err, says)
	}
}

// The rates are exact: server and worker must compute the same bits.
func TestRateAt(t *testing.T) {
	r := perdure.Rule{Kind: perdure.RuleSGD, Rate: 0.5, Every: 10, Factor: 0.5}
	for _, c := range []struct {
		schedule perdure.Schedule
		clock    perdure.Clock
		want     float32
	}{
		{"", 0, 0.5},
		{"", 1000, 0.5},
		{perdure.ScheduleConst, 7, 0.5},
		{perdure.ScheduleSqrt, 0, 0.5},
		{perdure.ScheduleSqrt, 3, 0.25},
		{perdure.ScheduleSqrt, 99, 0.05},
		{perdure.ScheduleStep, 0, 0.5},
		{perdure.ScheduleStep, 9, 0.5},
		{perdure.ScheduleStep, 10, 0.25},
		{perdure.ScheduleStep, 29, 0.125},
	} {
		r.Schedule = c.schedule
		if got := r.RateAt(c.clock); got != c.want {
			t.Errorf("schedule %q at clock %d: %v, want %v", c.schedule, c.clock, got, c.want)
		}
	}
}

func table(change func(*perdure.TableSpec)) perdure.TableSpec {
	s := perdure.TableSpec{
		Name: "w", Rows: 10, Dim: 3, Rule: perdure.Rule{Kind: perdure.RuleAdd},
		Consistency: perdure.Consistency{Kind: perdure.BSP},
	}
	change(&s)
	return s
}

func sparse(change func(*perdure.TableSpec)) perdure.TableSpec {
	s := table(func(s *perdure.TableSpec) { s.Sparse, s.Rows = true, 0 })
	change(&s)
	return s
}

func TestTableSpec(t *testing.T) {
	for what, s := range map[string]perdure.TableSpec{
		"plain":          table(func(*perdure.TableSpec) {}),
		"as many shards": table(func(s *perdure.TableSpec) { s.Rows = 4 }),
		"longest name":   table(func(s *perdure.TableSpec) { s.Name = "a" + strings.Repeat("-", 63) }),
		"all in a name":  table(func(s *perdure.TableSpec) { s.Name = "Ab_0.-" }),
		"largest row":    table(func(s *perdure.TableSpec) { s.Dim = perdure.MaxDim }),
		"zeros":          table(func(s *perdure.TableSpec) { s.Init.Kind = perdure.InitZeros }),
		"uniform": table(func(s *perdure.TableSpec) {
			s.Init = perdure.Init{
				Kind:  perdure.InitUniform,
				Scale: 0.1,
			}
		}),
		"normal, no spread": table(func(s *perdure.TableSpec) { s.Init.Kind = perdure.InitNormal }),
		"sparse":            sparse(func(*perdure.TableSpec) {}),
		"sparse, evicting":  sparse(func(s *perdure.TableSpec) { s.Evict, s.NonFinite = 100, perdure.AllowNonFinite }),
		"whole":             table(func(s *perdure.TableSpec) { s.Whole, s.Shard = true, 3 }),
		"combined":          table(func(s *perdure.TableSpec) { s.Combine = perdure.CombineSum }),
		"combined, sparse":  sparse(func(s *perdure.TableSpec) { s.Combine, s.Evict = perdure.CombineWeighted, 5 }),
		"one row whole":     table(func(s *perdure.TableSpec) { s.Whole, s.Rows = true, 1 }),
		"ssp": table(func(s *perdure.TableSpec) {
			s.Consistency = perdure.Consistency{
				Kind:      perdure.SSP,
				Staleness: 2,
			}
		}),
	} {
		if err := s.Validate(4); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		var back perdure.TableSpec
		b, err := json.Marshal(s)
		if err != nil || json.Unmarshal(b, &back) != nil || back != s {
			t.Errorf("%s: %+v in JSON is %s, which is read as %+v, %v", what, s, b, back, err)
		}
	}
}

func TestBadTableSpec(t *testing.T) {
	name := func(n string) perdure.TableSpec { return table(func(s *perdure.TableSpec) { s.Name = n }) }
	scale := func(v float64) perdure.TableSpec { return table(func(s *perdure.TableSpec) { s.Init.Scale = v }) }
	for _, c := range []struct {
		spec perdure.TableSpec
		says string
	}{
		{name(""), "starting with a letter"},
		{name("1a"), "starting with a letter"},
		{name("a b"), "starting with a letter"},
		{name("a\n"), "starting with a letter"},
		{name("ä"), "starting with a letter"},
		{name(strings.Repeat("a", 65)), "1 to 64"},
		{name("../a"), "starting with a letter"},
		{table(func(s *perdure.TableSpec) { s.Rows = 0 }), "choose at least 1"},
		{table(func(s *perdure.TableSpec) { s.Rows = -5 }), "choose at least 1"},
		{table(func(s *perdure.TableSpec) { s.Dim = 0 }), "choose 1 to 262144"},
		{table(func(s *perdure.TableSpec) { s.Dim = perdure.MaxDim + 1 }), "choose 1 to 262144"},
		{table(func(s *perdure.TableSpec) { s.Rows = math.MaxInt64 }), "too large"},
		{table(func(s *perdure.TableSpec) { s.Rows = 3 }), "at most as many shards as rows"},
		{table(func(s *perdure.TableSpec) { s.Init.Kind = "ones" }), "choose zeros, uniform or normal"},
		{scale(-1), "finite number ≥ 0"},
		{scale(math.NaN()), "finite number ≥ 0"},
		{scale(math.Inf(1)), "finite number ≥ 0"},
		{table(func(s *perdure.TableSpec) { s.Rule.Kind = "adamax" }), "choose add, set, sgd"},
		{table(func(s *perdure.TableSpec) { s.Rule.Kind = "adam" }), "learning rate 0"},
		{table(func(s *perdure.TableSpec) {
			s.Rule, s.Init = perdure.Rule{Kind: perdure.RuleFTRL, Rate: 1, Beta: 1},
				perdure.Init{Kind: perdure.InitNormal}
		}), "use the initializer zeros"},
		{table(func(s *perdure.TableSpec) { s.NonFinite = "drop" }), "choose allow"},
		{table(func(s *perdure.TableSpec) { s.Distance = "cosine" }), "choose tv"},
		{
			table(func(s *perdure.TableSpec) {
				s.Distance, s.Rule = perdure.DistanceTV, perdure.Rule{Kind: perdure.RuleSGD, Rate: 1}
			}),
			"distance tv compares counts",
		},
		{table(func(s *perdure.TableSpec) { s.Evict = 1 }), "only sparse tables"},
		{table(func(s *perdure.TableSpec) { s.Whole, s.Rows = true, 0 }), "choose at least 1"},
		{table(func(s *perdure.TableSpec) { s.Whole, s.Shard = true, 4 }), "shard 4; leave it at 0"},
		{table(func(s *perdure.TableSpec) { s.Whole, s.Shard = true, -1 }), "shard -1; leave it at 0"},
		{table(func(s *perdure.TableSpec) { s.Shard = 1 }), "across all 4 shards"},
		{sparse(func(s *perdure.TableSpec) { s.Whole = true }), "cannot be kept whole"},
		{sparse(func(s *perdure.TableSpec) { s.Rows = 10 }), "got 10; leave the number out"},
		{sparse(func(s *perdure.TableSpec) { s.Evict = -1 }), "choose 0 (never)"},
		{
			table(func(s *perdure.TableSpec) { s.Consistency = perdure.Consistency{} }),
			"choose bsp, ssp:S, essp:S, asp or vap:V",
		},
		{
			table(func(s *perdure.TableSpec) { s.Consistency = perdure.Consistency{Kind: perdure.SSP, Staleness: -1} }),
			"ssp:3",
		},
		{vap(perdure.Rule{Kind: perdure.RuleAdam, Rate: 1}), "add and sgd without weight decay"},
	} {
		oneLine(t, c.says, c.spec.Validate(4), c.says)
	}
	if err := vap(perdure.Rule{Kind: perdure.RuleSGD, Rate: 1}).Validate(4); err != nil {
		t.Errorf("vap with sgd: %v", err)
	}
}

func TestCombine(t *testing.T) {
	for text, want := range map[string]perdure.Combine{
		"each": perdure.CombineEach, "sum": perdure.CombineSum, "mean": perdure.CombineMean,
		"weighted": perdure.CombineWeighted,
	} {
		if got, err := perdure.ParseCombine(text); got != want || err != nil || got.String() != text {
			t.Errorf("%q is %q, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "Mean", "avg", "sum "} {
		_, err := perdure.ParseCombine(text)
		oneLine(t, text, err, "choose each, sum, mean or weighted")
	}
	for _, w := range []float64{math.SmallestNonzeroFloat64, 0.5, 1e9, perdure.MaxWeight} {
		if err := perdure.ValidateWeight(w); err != nil {
			t.Error(err)
		}
	}
	for _, w := range []float64{0, math.Copysign(0, -1), -1, math.NaN(), math.Inf(1), math.Inf(-1), 1e301} {
		oneLine(t, fmt.Sprint(w), perdure.ValidateWeight(w), fmt.Sprintf("invalid update weight %v;", w))
	}
}

func TestBadCombine(t *testing.T) {
	for _, c := range []struct {
		spec perdure.TableSpec
		says string
	}{
		{table(func(s *perdure.TableSpec) { s.Combine = "median" }), "choose each, sum, mean or weighted"},
		{
			table(func(s *perdure.TableSpec) {
				s.Combine, s.Consistency = perdure.CombineMean, perdure.Consistency{Kind: perdure.SSP, Staleness: 3}
			}),
			"combine mean does not work with ssp:3",
		},
		{
			table(func(s *perdure.TableSpec) {
				s.Combine, s.Consistency = perdure.CombineSum, perdure.Consistency{Kind: perdure.ASP}
			}),
			"combine sum does not work with asp",
		},
		{vap(perdure.Rule{Kind: perdure.RuleSGD, Rate: 1, Decay: 0.1}), "without weight decay"},
	} {
		oneLine(t, c.says, c.spec.Validate(4), c.says)
	}
}

// A program shows itself what its update does where nobody else's takes part in that.
func TestForetold(t *testing.T) {
	rule := func(kind perdure.RuleKind, how perdure.Combine) perdure.TableSpec {
		return table(func(s *perdure.TableSpec) { s.Rule.Kind, s.Combine = kind, how })
	}
	for _, kind := range []perdure.RuleKind{perdure.RuleAdd, perdure.RuleSGD, perdure.RuleAdam} {
		if got := rule(kind, perdure.CombineEach).HasPredictableEffect(); got != (kind != perdure.RuleAdam) {
			t.Errorf("rule %s: %v", kind, got)
		}
		for _, how := range []perdure.Combine{perdure.CombineSum, perdure.CombineMean, perdure.CombineWeighted} {
			if rule(kind, how).HasPredictableEffect() {
				t.Errorf("rule %s, combine %s", kind, how)
			}
		}
	}
}

func vap(r perdure.Rule) perdure.TableSpec {
	return table(func(s *perdure.TableSpec) {
		s.Rule, s.Consistency = r.WithDefaults(), perdure.Consistency{Kind: perdure.VAP, Bound: 1}
	})
}

func job(change func(*perdure.JobSpec)) perdure.JobSpec {
	j := perdure.JobSpec{
		ID: "job-1", Workload: "softmax", Seed: math.MaxUint64, Slots: 2, Servers: 2, Shards: 4, Clocks: 100,
		Consistency: perdure.Consistency{Kind: perdure.BSP},
		Recovery:    perdure.Recovery{Kind: perdure.RecoverCheckpoint, Every: 20},
	}
	change(&j)
	return j
}

// models is a job's models as they are written on the command line.
func models(t *testing.T, text string) func(*perdure.JobSpec) {
	t.Helper()
	others, tables, err := perdure.ParseModels(text, perdure.Consistency{Kind: perdure.BSP})
	if err != nil {
		t.Errorf("%q: %v", text, err)
	}
	return func(j *perdure.JobSpec) { j.Consistency, j.TableConsistency = others, tables }
}

func TestModels(t *testing.T) {
	for _, c := range []struct {
		text, models, w, b string // as asked for, in the one order, and of the tables w and b
		missing            int64  // of 2 slots; 0: no bound
		twoStep            bool
	}{
		{"bsp", "bsp", "bsp", "bsp", 2, true},
		{"essp:3", "essp:3", "essp:3", "essp:3", 14, false},
		{"w=essp:3", "bsp,w=essp:3", "essp:3", "bsp", 14, true},
		{"w=essp:3,b=bsp", "bsp,b=bsp,w=essp:3", "essp:3", "bsp", 14, true},
		{"ssp:2,b=bsp", "ssp:2,b=bsp", "ssp:2", "bsp", 10, true},
		{"b=ssp:4,ssp:2", "ssp:2,b=ssp:4", "ssp:2", "ssp:4", 18, false},
		{"asp,b=ssp:1", "asp,b=ssp:1", "asp", "ssp:1", 0, false},
		{"ssp:1,Ab_0.-=vap:0.5", "ssp:1,Ab_0.-=vap:0.5", "ssp:1", "ssp:1", 0, false},
	} {
		j := job(models(t, c.text))
		if err := j.Validate(); err != nil {
			t.Errorf("%q: %v", c.text, err)
		}
		w, b := j.ConsistencyOf("w").String(), j.ConsistencyOf("b").String()
		missing, bounded := j.MissingBound()
		if j.Models() != c.models || w != c.w || b != c.b || missing != c.missing || bounded != (c.missing > 0) ||
			j.TwoStep(nil) != c.twoStep {
			t.Errorf("%q: %s; w %s, b %s; at most %d missing (%t); two steps %t; want %+v", c.text, j.Models(), w, b,
				missing, bounded, j.TwoStep(nil), c)
		}
		if again := job(models(t, j.Models())); !reflect.DeepEqual(again, j) {
			t.Errorf("%q is written %q, which is read as %+v", c.text, j.Models(), again)
		}
		var back perdure.JobSpec
		text, err := json.Marshal(j)
		if err != nil || json.Unmarshal(text, &back) != nil || !reflect.DeepEqual(back, j) {
			t.Errorf("%q: in JSON it is %s, %v", c.text, text, err)
		}
	}
	for text, says := range map[string]string{
		"":                   "empty item",
		"bsp,":               "empty item",
		"ssp:2,,b=bsp":       "empty item",
		"=bsp":               `"=bsp" in "=bsp" does not start with a valid table name`,
		"1w=bsp":             "does not start with a valid table name",
		" w=bsp":             "does not start with a valid table name",
		"w=":                 `table w: perdure: usage: unknown consistency model ""`,
		"w=b=bsp":            `unknown consistency model "b=bsp"; choose bsp, ssp:S, essp:S, asp or vap:V`,
		"w=eventual":         `table w: perdure: usage: unknown consistency model "eventual"`,
		"eventual,w=bsp":     `unknown consistency model "eventual"`,
		"w=essp":             "essp needs a staleness",
		"w=vap:0":            `bound "0"`,
		"w=bsp,b=asp,w=asp":  "table w has two models",
		"ssp:2,w=asp,bsp":    "both ssp:2 and bsp in",
		"ssp:2,ssp:2":        "both ssp:2 and ssp:2 in",
		"w:essp:3":           `unknown consistency model "w:essp:3"`,
		"w=essp:3;b=bsp":     `staleness "3;b=bsp"`,
		"w=essp:3, b=essp:3": "does not start with a valid table name",
	} {
		_, _, err := perdure.ParseModels(text, perdure.Consistency{Kind: perdure.BSP})
		oneLine(t, text, err, says)
	}
}

func TestJobSpec(t *testing.T) {
	for what, j := range map[string]perdure.JobSpec{
		"plain":    job(func(*perdure.JobSpec) {}),
		"no end":   job(func(j *perdure.JobSpec) { j.Clocks = 0 }),
		"smallest": job(func(j *perdure.JobSpec) { j.Slots, j.Servers, j.Shards = 1, 1, 1 }),
		"largest":  job(func(j *perdure.JobSpec) { j.Slots, j.Servers, j.Shards = 4096, 4096, 65536 }),
	} {
		if err := j.Validate(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		var back perdure.JobSpec
		b, err := json.Marshal(j)
		if err != nil || json.Unmarshal(b, &back) != nil || !reflect.DeepEqual(back, j) {
			t.Errorf("%s: in JSON it is %s, %v", what, b, err)
		}
	}
	for _, c := range []struct {
		change func(*perdure.JobSpec)
		says   string
	}{
		{func(j *perdure.JobSpec) { j.Slots = 0 }, "number of workers 0; choose 1 to 4096"},
		{func(j *perdure.JobSpec) { j.Slots = -1 }, "number of workers -1"},
		{func(j *perdure.JobSpec) { j.Slots = 4097 }, "number of workers 4097"},
		{func(j *perdure.JobSpec) { j.Servers = 0 }, "number of servers 0; choose 1 to 4096"},
		{func(j *perdure.JobSpec) { j.Servers, j.Shards = 4097, 65536 }, "number of servers 4097"},
		{func(j *perdure.JobSpec) { j.Shards = 0 }, "number of shards 0; choose 1 to 65536"},
		{func(j *perdure.JobSpec) { j.Shards = 65537 }, "number of shards 65537"},
		{func(j *perdure.JobSpec) { j.Servers = 5 }, "at least as many shards as servers"},
		{func(j *perdure.JobSpec) { j.Clocks = -1 }, "choose at least 1"},
		{func(j *perdure.JobSpec) { j.Consistency.Kind = "" }, `unknown consistency model ""`},
		{
			func(j *perdure.JobSpec) { j.TableConsistency = map[string]perdure.Consistency{"w": {}} },
			`table w: perdure: usage: unknown consistency model ""`,
		},
		{func(j *perdure.JobSpec) {
			j.TableConsistency = map[string]perdure.Consistency{"a=bsp,b": {Kind: perdure.BSP}}
		}, "not a valid table name"},
	} {
		oneLine(t, c.says, job(c.change).Validate(), c.says)
	}
}

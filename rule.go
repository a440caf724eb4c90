package perdure

import (
	"math"
	"strconv"
	"strings"
)

// RuleKind names the way in which an update changes a row.
type RuleKind string

// The update rules, for a row w, a delta g, and the learning rate η of the update's clock. All rules except RuleAdd and
// RuleSet treat g as a gradient. Package table has the formulas.
const (
	RuleAdd RuleKind = "add" // w += g
	// RuleSet replaces the row: w = g. With CombineEach one slot owns the row, and no other slot writes it.
	RuleSet            RuleKind = "set"
	RuleSGD            RuleKind = "sgd"             // w -= η·g
	RuleMomentum       RuleKind = "momentum"        // heavy ball (Polyak 1964)
	RuleNesterov       RuleKind = "nesterov"        // Nesterov's momentum, as in Sutskever et al. 2013
	RuleAdagrad        RuleKind = "adagrad"         // Duchi et al. 2011
	RuleRowwiseAdagrad RuleKind = "rowwise-adagrad" // Adagrad with one accumulator for each row
	RuleAdam           RuleKind = "adam"            // Kingma and Ba 2015; with Decay AdamW, Loshchilov and Hutter 2019
	RuleFTRL           RuleKind = "ftrl"            // FTRL-Proximal, McMahan et al. 2013
)

// Schedule names how the learning rate depends on the clock.
type Schedule string

// The learning-rate schedules, with t = clock + 1: const η; sqrt η/√t; step
// η·Factor^⌊clock/Every⌋.
const (
	ScheduleConst Schedule = "const"
	ScheduleSqrt  Schedule = "sqrt"
	ScheduleStep  Schedule = "step"
)

// Rule is a table's update rule. Fields that a rule does not use must be zero. WithDefaults fills in Momentum, Beta1,
// Beta2, Epsilon and Beta.
type Rule struct {
	Kind     RuleKind `json:"kind"`
	Rate     float64  `json:"rate,omitempty"`     // η, the learning rate at clock 0; all but add and set
	Schedule Schedule `json:"schedule,omitempty"` // "" means const
	Every    Clock    `json:"every,omitempty"`    // step: clocks between two reductions
	Factor   float64  `json:"factor,omitempty"`   // step: factor of each reduction

	Momentum float64 `json:"momentum,omitempty"` // μ of momentum and nesterov, in (0, 1)
	Beta1    float64 `json:"beta1,omitempty"`    // adam, in (0, 1)
	Beta2    float64 `json:"beta2,omitempty"`    // adam, in (0, 1)
	Epsilon  float64 `json:"epsilon,omitempty"`  // adagrad, rowwise-adagrad, adam; > 0
	Beta     float64 `json:"beta,omitempty"`     // ftrl; > 0
	L1       float64 `json:"l1,omitempty"`       // ftrl; ≥ 0
	L2       float64 `json:"l2,omitempty"`       // ftrl; ≥ 0

	// Decay is the weight decay λ ≥ 0: g += λ·w before the rule, and under adam w -= η·λ·w separately from the
	// gradient. Not for add, set and ftrl.
	Decay float64 `json:"decay,omitempty"`
	// ClipValue bounds each value of g to [-ClipValue, ClipValue]. ClipNorm then scales each row of g down to that
	// Euclidean norm. Both apply before Decay. 0: no bound. Not for add and set.
	ClipValue float64 `json:"clip_value,omitempty"`
	ClipNorm  float64 `json:"clip_norm,omitempty"`
}

// WithDefaults returns the rule with defaults for settings that must not be zero: Momentum 0.9, Beta1 0.9, Beta2 0.999,
// Epsilon 1e-8 (adam) or 1e-10 (adagrad and rowwise-adagrad), Beta 1.
func (r Rule) WithDefaults() Rule {
	fill := func(v *float64, usual float64) {
		if *v == 0 {
			*v = usual
		}
	}
	switch r.Kind {
	case RuleMomentum, RuleNesterov:
		fill(&r.Momentum, 0.9)
	case RuleAdagrad, RuleRowwiseAdagrad:
		fill(&r.Epsilon, 1e-10)
	case RuleAdam:
		fill(&r.Beta1, 0.9)
		fill(&r.Beta2, 0.999)
		fill(&r.Epsilon, 1e-8)
	case RuleFTRL:
		fill(&r.Beta, 1)
	}
	return r
}

// ParseRule parses a rule without its learning rate and schedule: a name, then the settings that differ from the
// defaults, for example "adam,beta2=0.99,decay=0.01".
func ParseRule(s string) (Rule, error) {
	words := strings.Split(s, ",")
	r := Rule{Kind: RuleKind(words[0])}
	allowed, known := ruleSettings[r.Kind]
	if !known {
		return r, Usagef("unknown update rule %q; choose %s", words[0], ruleNames)
	}
	for _, word := range words[1:] {
		name, text, _ := strings.Cut(word, "=")
		var to *float64
		for _, s := range r.settings() {
			if s.flag == name && name != "" && allowed[s.name] {
				to = s.value
			}
		}
		if to == nil {
			return r, Usagef("rule %s has no setting %q", r.Kind, name)
		}
		v, err := strconv.ParseFloat(text, 64)
		if err != nil || *to != 0 {
			return r, Usagef("invalid setting %q in rule %q; write each setting once, as %s=NUMBER", word, s, name)
		}
		*to = v
	}
	return r.WithDefaults(), nil
}

// Adds reports whether an update adds the same values to a row whatever the row holds, and however the update is split
// into Incs. The sender then knows its effect.
func (r Rule) Adds() bool {
	return (r.Kind == RuleAdd || r.Kind == RuleSGD) && r.Decay == 0 && r.ClipValue == 0 && r.ClipNorm == 0
}

// KeepsState reports whether the rule keeps state in addition to the rows, so that the effect of an update depends on
// more than the row and the update. Only servers have the state: a reader sees the effect of its own updates once the
// server's answer contains them.
func (r Rule) KeepsState() bool { return r.Kind != RuleAdd && r.Kind != RuleSet && r.Kind != RuleSGD }

// RateAt returns the learning rate for an update of clock c. It depends only on r and c, so server and worker compute
// the same bits.
func (r Rule) RateAt(c Clock) float32 {
	switch r.Schedule {
	case ScheduleSqrt:
		return float32(r.Rate / math.Sqrt(float64(c)+1))
	case ScheduleStep:
		return float32(r.Rate * math.Pow(r.Factor, float64(c/r.Every)))
	default:
		return float32(r.Rate)
	}
}

// Validate returns an error if the rule is invalid.
func (r Rule) Validate() error {
	allowed, known := ruleSettings[r.Kind]
	if !known {
		return Usagef("unknown update rule %q; choose %s", r.Kind, ruleNames)
	}
	for _, s := range r.settings() {
		v := *s.value
		switch rounded := float64(float32(v)); {
		case !allowed[s.name]:
			if v != 0 {
				return Usagef("rule %s has no %s, got %v; leave it out", r.Kind, s.name, v)
			}
		case !s.fits(v) || !s.fits(rounded) || math.IsInf(rounded, 0):
			return Usagef("%s %v of rule %s is not %s", s.name, v, r.Kind, s.must)
		}
	}
	if r.Kind == RuleAdd || r.Kind == RuleSet {
		return nil
	}
	return r.validateSchedule()
}

func (r Rule) validateSchedule() error {
	switch r.Schedule {
	case "", ScheduleConst, ScheduleSqrt:
		return nil
	case ScheduleStep:
		if r.Every < 1 || !(r.Factor > 0) || r.Factor > 1 {
			return Usagef("schedule step needs every ≥ 1 and factor in (0, 1]; got every %d and factor %v", r.Every,
				r.Factor)
		}
		return nil
	}
	return Usagef("unknown learning-rate schedule %q; choose const, sqrt or step", r.Schedule)
}

const ruleNames = "add, set, sgd, momentum, nesterov, adagrad, rowwise-adagrad, adam or ftrl"

// ruleSettings lists the settings of each rule.
var ruleSettings = map[RuleKind]map[string]bool{
	RuleAdd:            {},
	RuleSet:            {},
	RuleSGD:            {"learning rate": true, "decay": true, "clip value": true, "clip norm": true},
	RuleMomentum:       {"learning rate": true, "decay": true, "clip value": true, "clip norm": true, "momentum": true},
	RuleNesterov:       {"learning rate": true, "decay": true, "clip value": true, "clip norm": true, "momentum": true},
	RuleAdagrad:        {"learning rate": true, "decay": true, "clip value": true, "clip norm": true, "epsilon": true},
	RuleRowwiseAdagrad: {"learning rate": true, "decay": true, "clip value": true, "clip norm": true, "epsilon": true},
	RuleAdam: {
		"learning rate": true, "decay": true, "clip value": true, "clip norm": true, "beta1": true,
		"beta2": true, "epsilon": true,
	},
	RuleFTRL: {"learning rate": true, "clip value": true, "clip norm": true, "beta": true, "l1": true, "l2": true},
}

// setting is one number of a rule and its constraint.
type setting struct {
	name  string
	flag  string // name on the command line; "": a separate flag sets it
	value *float64
	must  string
	fits  func(float64) bool
}

func (r *Rule) settings() []setting {
	positive := func(v float64) bool { return v > 0 }
	notNegative := func(v float64) bool { return v >= 0 }
	share := func(v float64) bool { return v > 0 && v < 1 }
	return []setting{
		{"learning rate", "", &r.Rate, "a finite number > 0", positive},
		{"momentum", "momentum", &r.Momentum, "in (0, 1)", share},
		{"beta1", "beta1", &r.Beta1, "in (0, 1)", share},
		{"beta2", "beta2", &r.Beta2, "in (0, 1)", share},
		{"epsilon", "epsilon", &r.Epsilon, "a finite number > 0", positive},
		{"beta", "beta", &r.Beta, "a finite number > 0", positive},
		{"l1", "l1", &r.L1, "a finite number ≥ 0", notNegative},
		{"l2", "l2", &r.L2, "a finite number ≥ 0", notNegative},
		{"decay", "decay", &r.Decay, "a finite number ≥ 0", notNegative},
		{"clip value", "clip-value", &r.ClipValue, "a finite number ≥ 0", notNegative},
		{"clip norm", "clip-norm", &r.ClipNorm, "a finite number ≥ 0", notNegative},
	}
}

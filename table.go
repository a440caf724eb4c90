package perdure

import (
	"fmt"
	"math"
	"regexp"
)

// MaxDim is the largest number of float32 values in a row: a row must fit in
// one message of 1 MiB.
const MaxDim = 1 << 18

// TableSpec describes a dense table: Rows × Dim float32, numbered from row 0.
type TableSpec struct {
	Name        string      `json:"name"`
	Rows        int64       `json:"rows"`
	Dim         int         `json:"dim"` // float32 values per row
	Rule        Rule        `json:"rule"`
	Init        Init        `json:"init"`
	Consistency Consistency `json:"consistency"`
}

// RuleKind names how a delta changes a row.
type RuleKind string

// The update rules: RuleAdd computes row += delta; RuleSGD row -= rate(clock)·delta.
const (
	RuleAdd RuleKind = "add"
	RuleSGD RuleKind = "sgd"
)

// Schedule names how the learning rate of RuleSGD depends on the clock.
type Schedule string

// The learning-rate schedules, with t = clock + 1: const η; sqrt η/√t; step
// η·Factor^⌊clock/Every⌋.
const (
	ScheduleConst Schedule = "const"
	ScheduleSqrt  Schedule = "sqrt"
	ScheduleStep  Schedule = "step"
)

// Rule is a table's update rule. The rate fields are used by RuleSGD only.
type Rule struct {
	Kind     RuleKind `json:"kind"`
	Rate     float64  `json:"rate,omitempty"`     // η, the learning rate at clock 0
	Schedule Schedule `json:"schedule,omitempty"` // "" means const
	Every    Clock    `json:"every,omitempty"`    // step: clocks between two reductions
	Factor   float64  `json:"factor,omitempty"`   // step: what the rate is multiplied with
}

// RateAt returns the learning rate for an update of clock c. It is a function
// of its arguments only: server and worker get the same bits.
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

// Validate reports what is wrong with the rule, if anything.
func (r Rule) Validate() error {
	switch r.Kind {
	case RuleAdd:
		return nil
	case RuleSGD:
	default:
		return fmt.Errorf("%w: unknown update rule %q; choose add or sgd", ErrUsage, r.Kind)
	}
	if !(r.Rate > 0) || math.IsInf(r.Rate, 0) {
		return fmt.Errorf("%w: learning rate %v is not a finite number > 0", ErrUsage, r.Rate)
	}
	switch r.Schedule {
	case "", ScheduleConst, ScheduleSqrt:
		return nil
	case ScheduleStep:
		if r.Every < 1 || !(r.Factor > 0) || r.Factor > 1 {
			return fmt.Errorf("%w: schedule step needs every ≥ 1 clocks and a factor in (0, 1]; got every %d, factor %v", ErrUsage, r.Every, r.Factor)
		}
		return nil
	}
	return fmt.Errorf("%w: unknown learning-rate schedule %q; choose const, sqrt or step", ErrUsage, r.Schedule)
}

// InitKind names the distribution of a row's initial values.
type InitKind string

// The initialisers: all zeros, uniform in [-Scale, Scale), normal with standard
// deviation Scale.
const (
	InitZeros   InitKind = "zeros"
	InitUniform InitKind = "uniform"
	InitNormal  InitKind = "normal"
)

// Init says what a table's rows hold before the first update: a function of
// the job's seed, the table and the row, so that every server makes the same.
type Init struct {
	Kind  InitKind `json:"kind,omitempty"` // "" means zeros
	Scale float64  `json:"scale,omitempty"`
}

var tableName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,63}$`)

// Validate reports what is wrong with the table for a job of the given number
// of shards, if anything.
func (t TableSpec) Validate(shards int) error {
	if !tableName.MatchString(t.Name) {
		return fmt.Errorf("%w: table name %q: use 1 to 64 letters, digits, '_', '.', '-', a letter first", ErrUsage, t.Name)
	}
	if t.Rows < 1 || t.Dim < 1 || t.Dim > MaxDim {
		return fmt.Errorf("%w: table %s: %d rows × %d; needs at least 1 row and 1 to %d values in each", ErrUsage, t.Name, t.Rows, t.Dim, MaxDim)
	}
	if t.Rows > math.MaxInt64/4/int64(t.Dim) {
		return fmt.Errorf("%w: table %s: %d rows × %d is too large to address", ErrUsage, t.Name, t.Rows, t.Dim)
	}
	if int64(shards) > t.Rows {
		return fmt.Errorf("%w: %d shards for table %s of %d rows; use at most as many shards as rows", ErrUsage, shards, t.Name, t.Rows)
	}
	switch t.Init.Kind {
	case "", InitZeros, InitUniform, InitNormal:
	default:
		return fmt.Errorf("%w: table %s: unknown initialiser %q; choose zeros, uniform or normal", ErrUsage, t.Name, t.Init.Kind)
	}
	if math.IsNaN(t.Init.Scale) || math.IsInf(t.Init.Scale, 0) || t.Init.Scale < 0 {
		return fmt.Errorf("%w: table %s: initial scale %v is not a finite number ≥ 0", ErrUsage, t.Name, t.Init.Scale)
	}
	if err := t.Rule.Validate(); err != nil {
		return fmt.Errorf("table %s: %w", t.Name, err)
	}
	if _, err := ParseConsistency(t.Consistency.String()); err != nil {
		return fmt.Errorf("table %s: %w", t.Name, err)
	}
	return nil
}

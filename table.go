package perdure

import (
	"fmt"
	"math"
	"regexp"
	"slices"
)

// MaxDim is the largest number of float32 values in a row: a row must fit in
// one message of 1 MiB.
const MaxDim = 1 << 18

// TableSpec describes a table of float32 rows of Dim values each. A dense table
// has the rows 0 … Rows-1. A sparse one has a row for every 64-bit number: a row
// is stored from its first update on, and until then is what Init makes of it.
type TableSpec struct {
	Name        string      `json:"name"`
	Rows        int64       `json:"rows,omitempty"`   // dense only
	Sparse      bool        `json:"sparse,omitempty"` // rows are any RowID
	Dim         int         `json:"dim"`              // float32 values per row
	Rule        Rule        `json:"rule"`
	Init        Init        `json:"init"`
	Consistency Consistency `json:"consistency"`

	// Evict, of a sparse table: a row that was not updated for that number of clocks is
	// dropped, with its rule's state, and begins again when it is next updated. 0:
	// never. Reads do not count: what a shard holds is a function of its updates.
	Evict Clock `json:"evict,omitempty"`
	// NonFinite says what becomes of an update with NaN or ±Inf in it.
	NonFinite NonFinite `json:"non_finite,omitempty"`
	// Distance says how far a row is from what it was, where rows are chosen by that.
	Distance Distance `json:"distance,omitempty"`
	// Combine says whether the rule runs for each slot's update of a clock, or once for all of them.
	Combine Combine `json:"combine,omitempty"`

	// Whole, of a dense table: it is one unit. All of its rows are on one shard, and where rows are
	// saved by themselves it is saved as a whole, and so lost and restored as a whole. A model whose
	// layers are tables is partitioned by layer then, and not by row.
	Whole bool `json:"whole,omitempty"`
	// Shard is the one that a whole table is on. The coordinator decides it when the table is
	// created, whatever a program asks for, and it stays the same for as long as the table is there.
	Shard ShardID `json:"shard,omitempty"`
}

// Asked returns the table as a program asks for it: without what the coordinator decides.
func (t TableSpec) Asked() TableSpec {
	t.Shard = 0
	return t
}

// NonFinite is a table's policy for updates that contain NaN or ±Inf.
type NonFinite string

// The policies: RefuseNonFinite makes Inc fail with ErrNonFinite, and a server
// close the connection of a client that sends such an update all the same;
// AllowNonFinite applies it.
const (
	RefuseNonFinite NonFinite = "" // the default
	AllowNonFinite  NonFinite = "allow"
)

// Distance is how far a row u is from what it was when it was last saved, v: what the selector
// priority of scar goes by.
type Distance string

// The distances: Euclidean; and for tables of counts, whose rows are distributions, the scaled
// total variation Σu · ½ Σ|uₖ/Σu − vₖ/Σv|. There a row whose sum is 0 or less is the distribution of
// nothing: all of it is 0. Under DistanceLabels a row lists the labels of as many things, and the distance is that of
// the labels' counts: as many as must have got another label. Under DistanceNone rows that have changed are all alike,
// and come behind those that tell how far they are: for tables that are kept, but are no part of the model.
const (
	DistanceL2     Distance = "" // the default
	DistanceTV     Distance = "tv"
	DistanceLabels Distance = "labels"
	DistanceNone   Distance = "none"
)

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
		return fmt.Errorf("%w: table name %q: use 1 to 64 letters, digits, '_', '.', '-', a letter first", ErrUsage,
			t.Name)
	}
	if t.Dim < 1 || t.Dim > MaxDim {
		return fmt.Errorf("%w: table %s: rows of %d values; choose 1 to %d values", ErrUsage, t.Name, t.Dim, MaxDim)
	}
	if err := t.validateRows(shards); err != nil {
		return err
	}
	if err := t.validateInit(); err != nil {
		return err
	}
	if t.NonFinite != RefuseNonFinite && t.NonFinite != AllowNonFinite {
		return fmt.Errorf("%w: table %s: unknown policy %q for NaN and Inf; choose allow, or leave it empty to "+
			"refuse them", ErrUsage, t.Name, t.NonFinite)
	}
	if err := t.validateDistance(); err != nil {
		return err
	}
	if err := t.Rule.Validate(); err != nil {
		return fmt.Errorf("table %s: %w", t.Name, err)
	}
	if _, err := ParseConsistency(t.Consistency.String()); err != nil {
		return fmt.Errorf("table %s: %w", t.Name, err)
	}
	if err := t.validateCombine(); err != nil {
		return err
	}
	if r := t.Rule; t.Consistency.Kind == VAP && (r.Kind != RuleAdd && r.Kind != RuleSGD || r.Decay != 0) {
		return fmt.Errorf("%w: table %s: vap bounds what updates do to rows, which only add and sgd without weight "+
			"decay tell beforehand; choose one of them or another model", ErrUsage, t.Name)
	}
	return nil
}

// validateDistance reports what is wrong with the table's distance.
func (t TableSpec) validateDistance() error {
	kinds := []Distance{DistanceL2, DistanceTV, DistanceLabels, DistanceNone}
	switch {
	case !slices.Contains(kinds, t.Distance):
		return fmt.Errorf("%w: table %s: unknown distance %q; choose tv, labels or none, or leave it empty for the "+
			"Euclidean one", ErrUsage, t.Name, t.Distance)
	case t.Distance == DistanceTV && t.Rule.Kind != RuleAdd:
		return fmt.Errorf("%w: table %s: distance tv is of counts, which rule %s does not make; use rule add", ErrUsage,
			t.Name, t.Rule.Kind)
	case t.Distance == DistanceLabels && t.Rule.Kind != RuleSet:
		return fmt.Errorf("%w: table %s: distance labels is of labels, which rule %s does not keep; use rule set",
			ErrUsage, t.Name, t.Rule.Kind)
	}
	return nil
}

func (t TableSpec) validateRows(shards int) error {
	if t.Shard < 0 || int(t.Shard) >= shards || t.Shard > 0 && !t.Whole {
		return fmt.Errorf("%w: table %s: shard %d; leave it 0: where a whole table is, the coordinator decides, "+
			"and others are on all %d shards", ErrUsage, t.Name, t.Shard, shards)
	}
	if t.Sparse {
		if t.Whole {
			return fmt.Errorf("%w: table %s: a sparse table is on all shards and cannot be whole; leave out Whole, "+
				"or give it a number of rows", ErrUsage, t.Name)
		}
		if t.Rows != 0 {
			return fmt.Errorf("%w: table %s: a sparse table has no number of rows; leave out its %d", ErrUsage,
				t.Name, t.Rows)
		}
		if t.Evict < 0 || t.Evict > math.MaxInt32 {
			return fmt.Errorf("%w: table %s: eviction after %d clocks; choose 0 (never) to %d", ErrUsage, t.Name,
				t.Evict, math.MaxInt32)
		}
		return nil
	}
	switch {
	case t.Rows < 1:
		return fmt.Errorf("%w: table %s: %d rows; a table needs at least 1 row, or Sparse", ErrUsage, t.Name, t.Rows)
	case t.Rows > math.MaxInt64/4/int64(t.Dim):
		return fmt.Errorf("%w: table %s: %d rows × %d is too large to address", ErrUsage, t.Name, t.Rows, t.Dim)
	case int64(shards) > t.Rows && !t.Whole:
		return fmt.Errorf("%w: %d shards for table %s of %d rows; use at most as many shards as rows, or make the "+
			"table whole", ErrUsage, shards, t.Name, t.Rows)
	case t.Evict != 0:
		return fmt.Errorf("%w: table %s: only sparse tables evict rows", ErrUsage, t.Name)
	}
	return nil
}

func (t TableSpec) validateInit() error {
	switch t.Init.Kind {
	case "", InitZeros:
	case InitUniform, InitNormal:
		if t.Rule.Kind == RuleFTRL {
			return fmt.Errorf("%w: table %s: rule ftrl computes a row from its state alone; use the initialiser zeros",
				ErrUsage, t.Name)
		}
	default:
		return fmt.Errorf("%w: table %s: unknown initialiser %q; choose zeros, uniform or normal", ErrUsage, t.Name,
			t.Init.Kind)
	}
	if math.IsNaN(t.Init.Scale) || math.IsInf(t.Init.Scale, 0) || t.Init.Scale < 0 {
		return fmt.Errorf("%w: table %s: initial scale %v is not a finite number ≥ 0", ErrUsage, t.Name, t.Init.Scale)
	}
	return nil
}

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

// TableSpec describes a table of float32 rows of Dim values each. A dense table has the rows 0 … Rows-1. A sparse table
// has a row for every 64-bit number: a row is stored from its first update on, and has its initial values before.
type TableSpec struct {
	Name        string      `json:"name"`
	Rows        int64       `json:"rows,omitempty"`   // dense only
	Sparse      bool        `json:"sparse,omitempty"` // rows are any RowID
	Dim         int         `json:"dim"`              // float32 values per row
	Rule        Rule        `json:"rule"`
	Init        Init        `json:"init"`
	Consistency Consistency `json:"consistency"`

	// Evict, of a sparse table, drops a row and its rule's state when the row has not been updated for this many
	// clocks. The row starts from its initial values at its next update. 0: never. Reads do not count: a shard's
	// content is a function of its updates.
	Evict Clock `json:"evict,omitempty"`
	// NonFinite is the policy for updates that contain NaN or ±Inf.
	NonFinite NonFinite `json:"non_finite,omitempty"`
	// Distance measures how far a row has moved since it was last saved; the scar selector priority uses it.
	Distance Distance `json:"distance,omitempty"`
	// Combine selects whether the rule runs for each slot's update of a clock, or once for all of them.
	Combine Combine `json:"combine,omitempty"`
	// Encoding is how workers send and keep updates. All but the first round them.
	Encoding Encoding `json:"encoding,omitempty"`

	// Transient marks a dense table whose rows all slots replace in each clock, such as the mean gradient of programs
	// that keep the weights themselves. A row can be read until the clock after the one that wrote it has been applied;
	// workers resend no older ones. A replacement process therefore cannot repeat earlier clocks: after the death of a
	// worker all roll back to a checkpoint, and programs save their states for checkpoints only (Client.SaveDue). It
	// requires a combined rule set, and a recovery strategy with checkpoints.
	Transient bool `json:"transient,omitempty"`

	// Whole, of a dense table, keeps the table as one unit: all of its rows are on one shard, and strategies that save
	// single rows save, lose and restore the table as a whole. A model whose layers are tables is then partitioned by
	// layer instead of by row.
	Whole bool `json:"whole,omitempty"`
	// Shard is the shard of a whole table. The coordinator chooses it when it creates the table, regardless of the
	// program's request. It never changes during the life of the table.
	Shard ShardID `json:"shard,omitempty"`
}

// Requested returns the table as a program requests it, without the fields that the coordinator decides.
func (t TableSpec) Requested() TableSpec {
	t.Shard = 0
	return t
}

// NonFinite is a table's policy for updates that contain NaN or ±Inf.
type NonFinite string

// The policies. With RefuseNonFinite, Inc fails with ErrNonFinite, and a server closes the connection of a client that
// sends such an update anyway. AllowNonFinite applies the update.
const (
	RefuseNonFinite NonFinite = "" // the default
	AllowNonFinite  NonFinite = "allow"
)

// Encoding is how the updates of a table are sent. Servers add the decoded values in float32.
type Encoding string

// The encodings. EncodingBF16 keeps the upper 16 bits of each value, rounded. EncodingInt8 has a scale for each row,
// whose largest value becomes ±127. Encoding2Bit has four levels for each row; programs should add its rounding error
// to the next update. Rows of few values, or of at most four different ones, are exact.
const (
	EncodingFloat32 Encoding = "" // the default
	EncodingBF16    Encoding = "bf16"
	EncodingInt8    Encoding = "int8"
	Encoding2Bit    Encoding = "2bit"
)

// Distance selects the measure of how far a row u is from its last saved value v. The scar selector priority saves the
// rows with the largest distance first.
type Distance string

// The distances. DistanceL2 is Euclidean.
//
// DistanceTV is for tables of counts, whose rows are distributions: the scaled total variation Σu · ½ Σ|uₖ/Σu − vₖ/Σv|.
// A row whose sum is 0 or less counts as the all-zero distribution.
//
// DistanceLabels is for rows that list the labels of as many items. It is the distance of the label counts: the min
// number of items whose label has changed.
//
// DistanceNone ranks all changed rows equally, after rows with a measured distance. It is for tables that must be saved
// but are not part of the model.
const (
	DistanceL2     Distance = "" // the default
	DistanceTV     Distance = "tv"
	DistanceLabels Distance = "labels"
	DistanceNone   Distance = "none"
)

// InitKind names the distribution of a row's initial values.
type InitKind string

// The initializers: all zeros, uniform in [-Scale, Scale), normal with standard deviation Scale.
const (
	InitZeros   InitKind = "zeros"
	InitUniform InitKind = "uniform"
	InitNormal  InitKind = "normal"
)

// Init says what a table's rows hold before the first update. The values are a function of the job's seed, the table
// and the row, so every server computes the same values.
type Init struct {
	Kind  InitKind `json:"kind,omitempty"` // "" means zeros
	Scale float64  `json:"scale,omitempty"`
}

var tableName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,63}$`)

// Validate returns an error if the table is invalid in a job with the given number of shards.
func (t TableSpec) Validate(shards int) error {
	if !tableName.MatchString(t.Name) {
		return Usagef("invalid table name %q; use 1 to 64 letters, digits, '_', '.' or '-', starting with a letter",
			t.Name)
	}
	if t.Dim < 1 || t.Dim > MaxDim {
		return Usagef("table %s: invalid dim %d; choose 1 to %d values per row", t.Name, t.Dim, MaxDim)
	}
	if err := t.validateRows(shards); err != nil {
		return err
	}
	if err := t.validateInit(); err != nil {
		return err
	}
	if t.NonFinite != RefuseNonFinite && t.NonFinite != AllowNonFinite {
		return Usagef("table %s: unknown policy %q for NaN and Inf; choose allow, or leave it empty to reject them",
			t.Name, t.NonFinite)
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
	if err := t.validateEncoding(); err != nil {
		return err
	}
	if t.Transient && (t.Sparse || t.Rule.Kind != RuleSet || t.Combine == CombineEach) {
		return Usagef("table %s: all slots replace the rows of a transient table in each clock; make it dense, with "+
			"rule set and combine sum, mean or weighted", t.Name)
	}
	if r := t.Rule; t.Consistency.Kind == VAP && (r.Kind != RuleAdd && r.Kind != RuleSGD || r.Decay != 0) {
		return Usagef("table %s: vap bounds the effect of updates on rows, which is known in advance only for rules "+
			"add and sgd without weight decay; choose one of these rules, or another model", t.Name)
	}
	return nil
}

// validateDistance returns an error if the table's distance is invalid.
func (t TableSpec) validateDistance() error {
	kinds := []Distance{DistanceL2, DistanceTV, DistanceLabels, DistanceNone}
	switch {
	case !slices.Contains(kinds, t.Distance):
		return Usagef("table %s: unknown distance %q; choose tv, labels or none, or leave it empty for the Euclidean "+
			"one", t.Name, t.Distance)
	case t.Distance == DistanceTV && t.Rule.Kind != RuleAdd:
		return Usagef("table %s: distance tv compares counts, which rule %s does not keep; use rule add", t.Name,
			t.Rule.Kind)
	case t.Distance == DistanceLabels && t.Rule.Kind != RuleSet:
		return Usagef("table %s: distance labels compares labels, which rule %s does not keep; use rule set", t.Name,
			t.Rule.Kind)
	}
	return nil
}

// validateEncoding returns an error if the table's updates cannot be rounded.
func (t TableSpec) validateEncoding() error {
	why := ""
	switch kinds := []Encoding{EncodingFloat32, EncodingBF16, EncodingInt8, Encoding2Bit}; {
	case !slices.Contains(kinds, t.Encoding):
		return Usagef("table %s: unknown encoding %q; choose bf16, int8 or 2bit, or leave it empty for float32", t.Name,
			t.Encoding)
	case t.Encoding == EncodingFloat32:
		return nil
	case t.Rule.Kind == RuleSet:
		why = "rule set stores the values themselves, such as indexes and labels"
	case t.Consistency.Kind == VAP:
		why = "vap bounds the effect of updates as the program made them"
	case t.NonFinite == AllowNonFinite:
		why = "NaN and Inf have no scale"
	case t.Distance == DistanceTV:
		why = "counts must stay whole numbers"
	default:
		return nil
	}
	return Usagef("table %s: encoding %s rounds updates, but %s; use float32", t.Name, t.Encoding, why)
}

func (t TableSpec) validateRows(shards int) error {
	if t.Shard < 0 || int(t.Shard) >= shards || t.Shard > 0 && !t.Whole {
		return Usagef("table %s: invalid shard %d; leave it at 0: the coordinator picks the shard for a table that "+
			"is kept whole, and every other table is spread across all %d shards", t.Name, t.Shard, shards)
	}
	if t.Sparse {
		if t.Whole {
			return Usagef("table %s: a sparse table is spread across all shards and cannot be kept whole; remove "+
				"Whole, or make the table dense", t.Name)
		}
		if t.Rows != 0 {
			return Usagef("table %s: a sparse table has no fixed number of rows, but got %d; leave the number out",
				t.Name, t.Rows)
		}
		if t.Evict < 0 || t.Evict > math.MaxInt32 {
			return Usagef("table %s: invalid eviction after %d clocks; choose 0 (never) to %d", t.Name, t.Evict,
				math.MaxInt32)
		}
		return nil
	}
	switch {
	case t.Rows < 1:
		return Usagef("table %s: invalid number of rows %d; choose at least 1, or set Sparse", t.Name, t.Rows)
	case t.Rows > math.MaxInt64/4/int64(t.Dim):
		return Usagef("table %s: %d rows × %d is too large to address", t.Name, t.Rows, t.Dim)
	case int64(shards) > t.Rows && !t.Whole:
		return Usagef("%d shards are too many for table %s of %d rows; use at most as many shards as rows, or keep "+
			"the table whole", shards, t.Name, t.Rows)
	case t.Evict != 0:
		return Usagef("table %s: only sparse tables evict rows", t.Name)
	}
	return nil
}

func (t TableSpec) validateInit() error {
	switch t.Init.Kind {
	case "", InitZeros:
	case InitUniform, InitNormal:
		if t.Rule.Kind == RuleFTRL {
			return Usagef("table %s: rule ftrl computes a row from its state alone; use the initializer zeros", t.Name)
		}
	default:
		return Usagef("table %s: unknown initializer %q; choose zeros, uniform or normal", t.Name, t.Init.Kind)
	}
	if math.IsNaN(t.Init.Scale) || math.IsInf(t.Init.Scale, 0) || t.Init.Scale < 0 {
		return Usagef("table %s: initial scale %v is not a finite number ≥ 0", t.Name, t.Init.Scale)
	}
	return nil
}

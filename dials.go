package perdure

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Consistency is a table's consistency model: how stale a Get may be. It is
// written "bsp", "ssp:S", "essp:S", "asp" or "vap:V", in JSON too.
type Consistency struct {
	Kind      ConsistencyKind
	Staleness Clock   // S of ssp:S and essp:S, in clocks; 0 for bsp; unused for asp and vap
	Bound     float64 // V of vap:V, in the units of the table's values; else 0
}

// ConsistencyKind names a family of consistency models.
type ConsistencyKind string

// The consistency models (ESSP paper, section 2): a read at clock c sees all
// updates of clocks < c under BSP, < c-S under SSP(S) and ESSP(S), and has no
// bound in clocks under ASP and VAP. Under ESSP servers push rows that changed to
// the slots that read them; under VAP(V) a slot's updates that not every slot can
// see yet are at most V/√(clock+1) in any value, in sum.
const (
	BSP  ConsistencyKind = "bsp"
	SSP  ConsistencyKind = "ssp"
	ESSP ConsistencyKind = "essp"
	ASP  ConsistencyKind = "asp"
	VAP  ConsistencyKind = "vap"
)

// DefaultStaleness is the staleness to choose, in clocks, for who has no better
// idea.
const DefaultStaleness = 3

// Pushed reports whether servers push changed rows to the slots that read them.
func (c Consistency) Pushed() bool { return c.Kind == ESSP || c.Kind == VAP }

// Bounded reports whether reads are bounded in clocks, by Staleness.
func (c Consistency) Bounded() bool { return c.Kind == BSP || c.Kind == SSP || c.Kind == ESSP }

// TwoStep reports whether a clock under this model is staged on all shards
// before it is ticked, so that the job is a function of its seed.
func (c Consistency) TwoStep() bool { return c.Kind == BSP }

// ParseConsistency reads "bsp", "ssp:S", "essp:S" (S ≥ 0 clocks), "asp" or "vap:V"
// (V > 0).
func ParseConsistency(s string) (Consistency, error) {
	kind, arg, hasArg := strings.Cut(s, ":")
	c := Consistency{Kind: ConsistencyKind(kind)}
	switch c.Kind {
	case BSP, ASP:
		if hasArg {
			return Consistency{}, fmt.Errorf("%w: %s takes no number: %q; write %s", ErrUsage, kind, s, kind)
		}
		return c, nil
	case SSP, ESSP:
		if !hasArg {
			return Consistency{}, fmt.Errorf("%w: %s needs its staleness in clocks: write %s:%d for the default, or another number", ErrUsage, kind, kind, DefaultStaleness)
		}
		n, err := strconv.ParseInt(arg, 10, 32)
		if err != nil || n < 0 {
			return Consistency{}, fmt.Errorf("%w: staleness %q in %q is not a whole number ≥ 0; write for example %s:3", ErrUsage, arg, s, kind)
		}
		c.Staleness = Clock(n)
		return c, nil
	case VAP:
		if !hasArg {
			return Consistency{}, fmt.Errorf("%w: vap needs its bound, which has no default, in the units of the table's values; write for example vap:0.5", ErrUsage)
		}
		v, err := strconv.ParseFloat(arg, 64)
		if err != nil || !(v > 0) || math.IsInf(v, 0) {
			return Consistency{}, fmt.Errorf("%w: bound %q in %q is not a number > 0; write for example vap:0.5", ErrUsage, arg, s)
		}
		c.Bound = v
		return c, nil
	}
	return Consistency{}, fmt.Errorf("%w: unknown consistency model %q; choose bsp, ssp:S, essp:S, asp or vap:V", ErrUsage, s)
}

// String returns the model as it is written on the command line.
func (c Consistency) String() string {
	switch c.Kind {
	case SSP, ESSP:
		return fmt.Sprintf("%s:%d", c.Kind, c.Staleness)
	case VAP:
		return "vap:" + strconv.FormatFloat(c.Bound, 'g', -1, 64)
	}
	return string(c.Kind)
}

// ParseModels reads the models of a job's tables, with commas between: TABLE=MODEL
// for one table, and at most one MODEL alone for all others, which is usual where
// there is none. For example "ssp:2,b=bsp". tables is nil where none is named.
func ParseModels(s string, usual Consistency) (others Consistency, tables map[string]Consistency, err error) {
	alone := ""
	for _, item := range strings.Split(s, ",") {
		name, model, named := strings.Cut(item, "=")
		if !named {
			name, model = "", item
		}
		switch _, twice := tables[name]; {
		case item == "":
			return usual, nil, fmt.Errorf("%w: an empty item in %q; write MODEL or TABLE=MODEL, with commas between", ErrUsage, s)
		case named && !tableName.MatchString(name):
			return usual, nil, fmt.Errorf("%w: %q in %q does not begin with a table's name; write TABLE=MODEL, for example w=essp:3", ErrUsage, item, s)
		case twice:
			return usual, nil, fmt.Errorf("%w: table %s has two models in %q; give it one", ErrUsage, name, s)
		case !named && alone != "":
			return usual, nil, fmt.Errorf("%w: both %s and %s in %q are for all other tables; name the tables of one, as TABLE=%s", ErrUsage, alone, item, s, item)
		}
		c, err := ParseConsistency(model)
		switch {
		case err != nil && named:
			return usual, nil, fmt.Errorf("table %s: %w", name, err)
		case err != nil:
			return usual, nil, err
		case !named:
			alone, usual = item, c
		case tables == nil:
			tables = map[string]Consistency{name: c}
		default:
			tables[name] = c
		}
	}
	return usual, tables, nil
}

// MarshalText implements encoding.TextMarshaler.
func (c Consistency) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (c *Consistency) UnmarshalText(b []byte) (err error) {
	*c, err = ParseConsistency(string(b))
	return err
}

// Recovery is a job's recovery strategy: what happens when a server dies. It is
// written "none" or "checkpoint:C", in JSON too.
type Recovery struct {
	Kind  RecoveryKind
	Every Clock // C of checkpoint:C: a checkpoint every C clocks
}

// RecoveryKind names a family of recovery strategies.
type RecoveryKind string

// The recovery strategies. With RecoverNone a dead server's rows start again
// from their initial values. With RecoverCheckpoint all shards and all slots
// roll back to the last full checkpoint.
const (
	RecoverNone       RecoveryKind = "none"
	RecoverCheckpoint RecoveryKind = "checkpoint"
)

// LosesRows reports whether a server's death may lose updates for good under
// this strategy; they are then counted and never awaited.
func (r Recovery) LosesRows() bool { return r.Kind == RecoverNone }

// NextCut returns the clock of the first checkpoint cut after clock c, or -1
// when the strategy keeps no checkpoints.
func (r Recovery) NextCut(c Clock) Clock {
	if r.Kind != RecoverCheckpoint {
		return -1
	}
	return (c/r.Every + 1) * r.Every
}

// ParseRecovery reads "none" or "checkpoint:C" (C ≥ 1 clocks).
func ParseRecovery(s string) (Recovery, error) {
	kind, arg, hasArg := strings.Cut(s, ":")
	switch {
	case kind == string(RecoverNone) && !hasArg:
		return Recovery{Kind: RecoverNone}, nil
	case kind == string(RecoverCheckpoint) && hasArg:
		n, err := strconv.ParseInt(arg, 10, 32)
		if err == nil && n >= 1 {
			return Recovery{Kind: RecoverCheckpoint, Every: Clock(n)}, nil
		}
		return Recovery{}, fmt.Errorf("%w: interval %q in %q is not a whole number ≥ 1; write for example checkpoint:20", ErrUsage, arg, s)
	case kind == string(RecoverCheckpoint):
		return Recovery{}, fmt.Errorf("%w: checkpoint needs its interval in clocks; write for example checkpoint:20", ErrUsage)
	}
	return Recovery{}, fmt.Errorf("%w: unknown recovery strategy %q; choose none or checkpoint:C", ErrUsage, s)
}

// String returns the strategy as it is written on the command line.
func (r Recovery) String() string {
	if r.Kind == RecoverCheckpoint {
		return fmt.Sprintf("checkpoint:%d", r.Every)
	}
	return string(r.Kind)
}

// MarshalText implements encoding.TextMarshaler.
func (r Recovery) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (r *Recovery) UnmarshalText(b []byte) (err error) {
	*r, err = ParseRecovery(string(b))
	return err
}

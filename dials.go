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
			return Consistency{}, fmt.Errorf(
				"%w: %s needs its staleness in clocks: write %s:%d for the default, or another number", ErrUsage,
				kind, kind, DefaultStaleness)
		}
		n, err := strconv.ParseInt(arg, 10, 32)
		if err != nil || n < 0 {
			return Consistency{}, fmt.Errorf(
				"%w: staleness %q in %q is not a whole number ≥ 0; write for example %s:3", ErrUsage, arg, s, kind)
		}
		c.Staleness = Clock(n)
		return c, nil
	case VAP:
		if !hasArg {
			return Consistency{}, fmt.Errorf(
				"%w: vap needs its bound, which has no default, in the units of the table's values; write for "+
					"example vap:0.5", ErrUsage)
		}
		v, err := strconv.ParseFloat(arg, 64)
		if err != nil || !(v > 0) || math.IsInf(v, 0) {
			return Consistency{}, fmt.Errorf("%w: bound %q in %q is not a number > 0; write for example vap:0.5",
				ErrUsage, arg, s)
		}
		c.Bound = v
		return c, nil
	}
	return Consistency{}, fmt.Errorf("%w: unknown consistency model %q; choose bsp, ssp:S, essp:S, asp or vap:V",
		ErrUsage, s)
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
// there is none. For example "ssp:2,items=bsp". tables is nil where none is named.
func ParseModels(s string, usual Consistency) (others Consistency, tables map[string]Consistency, err error) {
	alone := ""
	for _, item := range strings.Split(s, ",") {
		name, model, named := strings.Cut(item, "=")
		if !named {
			name, model = "", item
		}
		switch _, twice := tables[name]; {
		case item == "":
			return usual, nil, fmt.Errorf("%w: an empty item in %q; write MODEL or TABLE=MODEL, with commas between",
				ErrUsage, s)
		case named && !tableName.MatchString(name):
			return usual, nil, fmt.Errorf(
				"%w: %q in %q does not begin with a table's name; write TABLE=MODEL, for example w=essp:3", ErrUsage,
				item, s)
		case twice:
			return usual, nil, fmt.Errorf("%w: table %s has two models in %q; give it one", ErrUsage, name, s)
		case !named && alone != "":
			return usual, nil, fmt.Errorf(
				"%w: both %s and %s in %q are for all other tables; name the tables of one, as TABLE=%s", ErrUsage,
				alone, item, s, item)
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
// written "none", "checkpoint:C", "checkpoint:C,async", "resend:C", "resend:C,partial",
// "chain:N", "chain:N,async", "chain:N,every:K", "chain:N,checkpoint:C", "chain:N,checkpoint:C,async",
// "stateless" or "scar:C,R,SELECTOR", in JSON too. C may be "auto".
type Recovery struct {
	Kind        RecoveryKind
	Every       Clock // C where checkpoints are kept: one every C clocks; K of chain:N,every:K; else 0
	Auto        bool  // C is "auto": the coordinator names each checkpoint's clock
	Replicas    int   // N of chains; else 0
	Checkpoints bool  // chain:N,checkpoint:C
	// Async says that somebody does not wait: where checkpoints are kept, training for
	// them to be written; else, of a chain, who sends an update for all replicas to have it.
	Async bool
	// Partial says of resend that what nobody has kept is lost, and that nobody goes back for it.
	Partial  bool
	Share    float64  // R of scar: the part of a shard's bytes that a save has, in (0, 1]
	Selector Selector // of scar
}

// RecoveryKind names a family of recovery strategies.
type RecoveryKind string

// The recovery strategies. With RecoverNone a dead server's rows start again
// from their initial values. With RecoverCheckpoint all shards and all slots
// roll back to the last full checkpoint. With RecoverResend only a dead server's shards
// go back to it, and workers, who keep their updates until they are in a checkpoint,
// send them again; where nobody has kept some of these all go back, or, with Partial,
// nobody. With RecoverChain each shard has replicas in memory, and the next one takes
// over; when a shard's last one dies all roll back, if checkpoints are kept too, or the job
// ends. With RecoverStateless workers append their updates to an update log, and servers are
// a function of it: any server loads a snapshot, and replays.
const (
	RecoverNone       RecoveryKind = "none"
	RecoverCheckpoint RecoveryKind = "checkpoint"
	RecoverResend     RecoveryKind = "resend"
	RecoverChain      RecoveryKind = "chain"
	RecoverStateless  RecoveryKind = "stateless"
)

// ParseRecovery reads "none", "checkpoint:C" (C ≥ 1 clocks, or "auto"), "resend:C" or
// "resend" (which is resend:auto), either with ",partial" after it, "chain:N" (N ≥ 2
// replicas), "chain:N,async",
// "chain:N,every:K" (K ≥ 1 clocks), "chain:N,checkpoint:C", or one with "checkpoint:C" and
// ",async" after it; "stateless"; or "scar:C,R,SELECTOR" (R of (0, 1], as 1/8 or 0.125), of
// which "scar" is scar:auto,1/8,priority.
func ParseRecovery(s string) (Recovery, error) {
	first, rest, more := strings.Cut(s, ",")
	kind, arg, hasArg := strings.Cut(first, ":")
	r := Recovery{Kind: RecoveryKind(kind)}
	switch {
	case r.Kind == RecoverScar:
		return parseScar(s)
	case (r.Kind == RecoverNone || r.Kind == RecoverStateless) && !hasArg && !more:
		return r, nil
	case r.Kind == RecoverCheckpoint && !hasArg:
		return Recovery{}, fmt.Errorf(
			"%w: checkpoint needs its interval in clocks; write for example checkpoint:20, or checkpoint:auto",
			ErrUsage)
	case r.Kind == RecoverResend && more && rest != "partial":
		return Recovery{}, fmt.Errorf("%w: nothing follows %s in %q but partial; write for example resend:20, or "+
			"resend:20,partial", ErrUsage, first, s)
	case r.Kind == RecoverResend && !hasArg:
		r.Auto, r.Partial = true, more
		return r, nil
	case r.Kind == RecoverCheckpoint || r.Kind == RecoverResend:
		if err := r.parseInterval(arg); err != nil {
			return Recovery{}, fmt.Errorf(
				"%w: interval %q in %q is not a whole number ≥ 1; write for example %s:20, or %s:auto", ErrUsage, arg,
				s, kind, kind)
		}
		if r.Partial = more && r.Kind == RecoverResend; r.Partial {
			return r, nil
		}
		if more && rest != "async" {
			return Recovery{}, fmt.Errorf(
				"%w: %q in %q is nothing that follows %s; write async after the comma, or nothing; for a chain that "+
					"keeps checkpoints write the chain first, for example chain:2,checkpoint:20", ErrUsage, rest, s,
				first)
		}
		r.Async = more
		return r, nil
	case r.Kind == RecoverChain:
		return parseChain(s, arg, rest, more)
	}
	return Recovery{}, fmt.Errorf("%w: unknown recovery strategy %q; choose none, checkpoint:C, resend:C, chain:N, "+
		"chain:N,async, chain:N,every:K, chain:N,checkpoint:C, stateless or scar:C,R,SELECTOR (checkpoint:C also with "+
		",async after it, resend:C with ,partial; C may be auto)", ErrUsage, s)
}

// parseInterval reads every how many clocks a checkpoint is kept.
func (r *Recovery) parseInterval(s string) (err error) {
	if r.Auto = s == auto; r.Auto {
		return nil
	}
	r.Every, err = parseEvery(s)
	return err
}

// auto is the interval of a strategy that chooses it.
const auto = "auto"

func parseEvery(s string) (Clock, error) {
	n, err := strconv.ParseInt(s, 10, 32)
	if err == nil && n < 1 {
		err = strconv.ErrRange
	}
	return Clock(n), err
}

// parseChain reads the number of replicas and what follows it in s.
func parseChain(s, replicas, rest string, more bool) (Recovery, error) {
	r := Recovery{Kind: RecoverChain}
	n, err := strconv.ParseInt(replicas, 10, 32)
	if err != nil || n < 2 {
		return Recovery{}, fmt.Errorf(
			"%w: %q asks for %q replicas of each shard; a chain has 2 or more, on as many servers; write for "+
				"example chain:2", ErrUsage, s, replicas)
	}
	r.Replicas = int(n)
	option, word, every, periodic := rest, "", "", false
	if word, every, periodic = strings.Cut(rest, ":"); word == string(RecoverCheckpoint) {
		if every, r.Async = strings.CutSuffix(every, ",async"); r.Async {
			option = strings.TrimSuffix(rest, ",async")
		}
	}
	switch {
	case !more:
		return r, nil
	case strings.Contains(option, ","):
		return Recovery{}, twoOptions(s, rest, r.Replicas)
	case rest == "async":
		r.Async = true
		return r, nil
	case periodic && (word == "every" || word == string(RecoverCheckpoint)):
		if r.Checkpoints = word == string(RecoverCheckpoint); r.Checkpoints {
			err = r.parseInterval(every)
		} else {
			r.Every, err = parseEvery(every)
		}
		if err == nil {
			return r, nil
		}
		return Recovery{}, fmt.Errorf(
			"%w: interval %q in %q is not a whole number ≥ 1; write for example chain:%d,%s:100", ErrUsage, every, s,
			r.Replicas, word)
	}
	return Recovery{}, fmt.Errorf("%w: %q in %q is nothing that a chain knows; write async, every:K or checkpoint:C "+
		"after the comma", ErrUsage, rest, s)
}

// twoOptions refuses a chain with more than one of its options. A checkpoint holds all
// updates of the clocks before its cut: a chain that acknowledges early may have lost
// some of them for good.
func twoOptions(s, rest string, replicas int) error {
	options := strings.Split(rest, ",")
	eager, saves := false, false
	for _, o := range options {
		eager = eager || o == "async" || strings.HasPrefix(o, "every:")
		saves = saves || strings.HasPrefix(o, string(RecoverCheckpoint)+":")
	}
	if eager && saves {
		return fmt.Errorf("%w: %q asks for checkpoints of a chain that may lose updates which it has acknowledged; "+
			"a checkpoint holds all of them; write for example chain:%d,checkpoint:100, or "+
			"chain:%d,checkpoint:100,async, in which only writing is not waited for", ErrUsage, s, replicas, replicas)
	}
	return fmt.Errorf("%w: %q has %d options after the chain; write one of async, every:K and checkpoint:C", ErrUsage,
		s, len(options))
}

// String returns the strategy as it is written on the command line.
func (r Recovery) String() string {
	s, interval := string(r.Kind), strconv.FormatInt(int64(r.Every), 10)
	if r.Auto {
		interval = auto
	}
	if r.Kind == RecoverChain {
		s += fmt.Sprintf(":%d", r.Replicas)
	}
	switch {
	case r.Kind == RecoverScar:
		return r.scarString(interval)
	case r.Kind == RecoverCheckpoint || r.Kind == RecoverResend:
		s += ":" + interval
	case r.Kind == RecoverChain && r.Checkpoints:
		s += ",checkpoint:" + interval
	case r.Kind == RecoverChain && r.Every > 0 && !r.Async:
		s += fmt.Sprintf(",every:%d", r.Every)
	}
	if r.Async && r.Kind != RecoverNone {
		s += ",async"
	}
	if r.Partial {
		s += ",partial"
	}
	return s
}

// MarshalText implements encoding.TextMarshaler.
func (r Recovery) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (r *Recovery) UnmarshalText(b []byte) (err error) {
	*r, err = ParseRecovery(string(b))
	return err
}

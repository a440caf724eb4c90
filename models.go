package perdure

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Consistency is a table's consistency model: how stale a Get may be. Its text form, also in JSON, is "bsp", "ssp:S",
// "essp:S", "asp" or "vap:V".
type Consistency struct {
	Kind      ConsistencyKind
	Staleness Clock   // S in ssp:S and essp:S, in clocks; 0 for bsp; unused for asp and vap
	Bound     float64 // V in vap:V, in the units of the table's values; otherwise 0
}

// ConsistencyKind names a family of consistency models.
type ConsistencyKind string

// The consistency models (ESSP paper, section 2). A read at clock c sees all updates of clocks < c under BSP and < c-S
// under SSP(S) and ESSP(S); under ASP and VAP there is no bound in clocks. Under ESSP, servers push changed rows to the
// slots that read them. Under VAP(V), the sum of a slot's updates that some slot cannot see yet is at most V/√(clock+1)
// in any value.
const (
	BSP  ConsistencyKind = "bsp"
	SSP  ConsistencyKind = "ssp"
	ESSP ConsistencyKind = "essp"
	ASP  ConsistencyKind = "asp"
	VAP  ConsistencyKind = "vap"
)

// DefaultStaleness is the recommended staleness, in clocks, for users without a better estimate.
const DefaultStaleness = 3

// Pushed reports whether servers push changed rows to the slots that read them.
func (c Consistency) Pushed() bool { return c.Kind == ESSP || c.Kind == VAP }

// Bounded reports whether reads are bounded in clocks, by Staleness.
func (c Consistency) Bounded() bool { return c.Kind == BSP || c.Kind == SSP || c.Kind == ESSP }

// TwoStep reports whether a clock under this model is staged on all shards before it is ticked. The job is then a
// function of its seed.
func (c Consistency) TwoStep() bool { return c.Kind == BSP }

// ParseConsistency parses "bsp", "ssp:S", "essp:S" (S ≥ 0 clocks), "asp" or "vap:V" (V > 0).
func ParseConsistency(s string) (Consistency, error) {
	kind, arg, hasArg := strings.Cut(s, ":")
	c := Consistency{Kind: ConsistencyKind(kind)}
	switch c.Kind {
	case BSP, ASP:
		if hasArg {
			return Consistency{}, Usagef("%s takes no number, got %q; write %s", kind, s, kind)
		}
		return c, nil
	case SSP, ESSP:
		if !hasArg {
			return Consistency{}, Usagef("%s needs a staleness in clocks; write %s:%d for the default, or another "+
				"number", kind, kind, DefaultStaleness)
		}
		n, err := strconv.ParseInt(arg, 10, 32)
		if err != nil || n < 0 {
			return Consistency{}, Usagef("staleness %q in %q is not a whole number ≥ 0; write, for example, %s:3", arg,
				s, kind)
		}
		c.Staleness = Clock(n)
		return c, nil
	case VAP:
		if !hasArg {
			return Consistency{}, Usagef("vap needs a bound in the units of the table's values, and has no default; " +
				"write, for example, vap:0.5")
		}
		v, err := strconv.ParseFloat(arg, 64)
		if err != nil || !(v > 0) || math.IsInf(v, 0) {
			return Consistency{}, Usagef("bound %q in %q is not a number > 0; write, for example, vap:0.5", arg, s)
		}
		c.Bound = v
		return c, nil
	}
	return Consistency{}, Usagef("unknown consistency model %q; choose bsp, ssp:S, essp:S, asp or vap:V", s)
}

// String returns c in the form that ParseConsistency accepts.
func (c Consistency) String() string {
	switch c.Kind {
	case SSP, ESSP:
		return fmt.Sprintf("%s:%d", c.Kind, c.Staleness)
	case VAP:
		return "vap:" + strconv.FormatFloat(c.Bound, 'g', -1, 64)
	}
	return string(c.Kind)
}

// ParseModels parses the consistency models of a job's tables, a comma-separated list such as "ssp:2,items=bsp".
// TABLE=MODEL applies to one table. At most one MODEL without a table applies to all other tables; if it is missing,
// they get usual. tables is nil if s names no table.
func ParseModels(s string, usual Consistency) (others Consistency, tables map[string]Consistency, err error) {
	alone := ""
	for _, item := range strings.Split(s, ",") {
		name, model, named := strings.Cut(item, "=")
		if !named {
			name, model = "", item
		}
		switch _, twice := tables[name]; {
		case item == "":
			return usual, nil, Usagef("empty item in %q; write a comma-separated list of MODEL or TABLE=MODEL", s)
		case named && !tableName.MatchString(name):
			return usual, nil, Usagef("%q in %q does not start with a valid table name; write TABLE=MODEL, for "+
				"example w=essp:3", item, s)
		case twice:
			return usual, nil, Usagef("table %s has two models in %q; give only one", name, s)
		case !named && alone != "":
			return usual, nil, Usagef("both %s and %s in %q apply to all other tables; write TABLE=%s for one of them",
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

// Recovery is a job's recovery strategy: what happens when a server dies. Its text form, also in JSON, is "none",
// "checkpoint:C", "checkpoint:C,async", "resend:C", "resend:C,partial", "chain:N", "chain:N,async", "chain:N,every:K",
// "chain:N,checkpoint:C", "chain:N,checkpoint:C,async", "stateless" or "scar:C,R,SELECTOR". C may be "auto".
type Recovery struct {
	Kind        RecoveryKind
	Every       Clock // clocks between checkpoints (C), or K in chain:N,every:K; otherwise 0
	Auto        bool  // C is "auto": the coordinator chooses the clock of each checkpoint
	Replicas    int   // N in chain:N; otherwise 0
	Checkpoints bool  // chain:N,checkpoint:C
	// Async reports whether a wait is skipped. With checkpoints, training does not wait until they are written. For a
	// chain without checkpoints, a worker does not wait until all replicas have its update.
	Async bool
	// Partial, of resend, accepts the loss of updates without a copy instead of rolling the job back.
	Partial  bool
	Share    float64  // R in scar: the fraction of a shard's bytes in each save, in (0, 1]
	Selector Selector // of scar
}

// RecoveryKind names a family of recovery strategies.
type RecoveryKind string

// The recovery strategies.
//
// With RecoverNone, a dead server's rows start again from their initial values.
//
// With RecoverCheckpoint, all shards and all slots roll back to the last full checkpoint.
//
// With RecoverResend, only the dead server's shards return to the checkpoint. Workers keep their updates until a
// checkpoint contains them, and resend them to the restored shards. If some of these updates have no copy left, the
// whole job rolls back, or with Partial continues without them.
//
// With RecoverChain, each shard has replicas in memory and the next one takes over. When the last replica of a shard
// dies, the job rolls back if it keeps checkpoints, and ends otherwise.
//
// With RecoverStateless, workers append their updates to an update log, and a server's state is a function of the log:
// any server can load a snapshot and replay the rest.
const (
	RecoverNone       RecoveryKind = "none"
	RecoverCheckpoint RecoveryKind = "checkpoint"
	RecoverResend     RecoveryKind = "resend"
	RecoverChain      RecoveryKind = "chain"
	RecoverStateless  RecoveryKind = "stateless"
)

// ParseRecovery parses a recovery strategy:
//
//	none
//	checkpoint:C or checkpoint:C,async
//	resend:C or resend (the same as resend:auto), each also with ,partial
//	chain:N or chain:N,async
//	chain:N,every:K
//	chain:N,checkpoint:C or chain:N,checkpoint:C,async
//	stateless
//	scar:C,R,SELECTOR or scar (the same as scar:auto,1/8,priority)
//
// C ≥ 1 is in clocks or "auto", K ≥ 1 is in clocks, N ≥ 2 is the number of replicas, and R in (0, 1] is written as 1/8
// or 0.125.
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
		return Recovery{}, Usagef("checkpoint needs an interval in clocks; write, for example, checkpoint:20, or " +
			"checkpoint:auto")
	case r.Kind == RecoverResend && more && rest != "partial":
		return Recovery{}, Usagef("only partial may follow %s in %q; write, for example, resend:20, or "+
			"resend:20,partial", first, s)
	case r.Kind == RecoverResend && !hasArg:
		r.Auto, r.Partial = true, more
		return r, nil
	case r.Kind == RecoverCheckpoint || r.Kind == RecoverResend:
		if err := r.parseInterval(arg); err != nil {
			return Recovery{}, Usagef("interval %q in %q is not a whole number ≥ 1; write, for example, %s:20, or "+
				"%s:auto", arg, s, kind, kind)
		}
		if r.Partial = more && r.Kind == RecoverResend; r.Partial {
			return r, nil
		}
		if more && rest != "async" {
			return Recovery{}, Usagef("unknown option %q in %q; only async may follow %s; for a chain with "+
				"checkpoints write the chain first, for example chain:2,checkpoint:20", rest, s, first)
		}
		r.Async = more
		return r, nil
	case r.Kind == RecoverChain:
		return parseChain(s, arg, rest, more)
	}
	return Recovery{}, Usagef("unknown recovery strategy %q; choose none, checkpoint:C, resend:C, chain:N, "+
		"chain:N,async, chain:N,every:K, chain:N,checkpoint:C, stateless or scar:C,R,SELECTOR (checkpoint:C may be "+
		"followed by ,async and resend:C by ,partial; C may be auto)", s)
}

// parseInterval parses the number of clocks between checkpoints, or "auto".
func (r *Recovery) parseInterval(s string) (err error) {
	if r.Auto = s == auto; r.Auto {
		return nil
	}
	r.Every, err = parseEvery(s)
	return err
}

// auto is the interval of a strategy that chooses it itself.
const auto = "auto"

func parseEvery(s string) (Clock, error) {
	n, err := strconv.ParseInt(s, 10, 32)
	if err == nil && n < 1 {
		err = strconv.ErrRange
	}
	return Clock(n), err
}

// parseChain parses the number of replicas and the options after it in s.
func parseChain(s, replicas, rest string, more bool) (Recovery, error) {
	r := Recovery{Kind: RecoverChain}
	n, err := strconv.ParseInt(replicas, 10, 32)
	if err != nil || n < 2 {
		return Recovery{}, Usagef("%q has an invalid number of replicas %q; a chain needs 2 or more, each on its own "+
			"server; write, for example, chain:2", s, replicas)
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
		return Recovery{}, Usagef("interval %q in %q is not a whole number ≥ 1; write, for example, chain:%d,%s:100",
			every, s, r.Replicas, word)
	}
	return Recovery{}, Usagef("unknown chain option %q in %q; write async, every:K or checkpoint:C after the comma",
		rest, s)
}

// twoOptions returns the error for a chain with more than one of its options. Checkpoints exclude early
// acknowledgement: a checkpoint holds all updates of the clocks before its cut, and a chain that acknowledges early may
// have lost some of them permanently.
func twoOptions(s, rest string, replicas int) error {
	options := strings.Split(rest, ",")
	eager, saves := false, false
	for _, o := range options {
		eager = eager || o == "async" || strings.HasPrefix(o, "every:")
		saves = saves || strings.HasPrefix(o, string(RecoverCheckpoint)+":")
	}
	if eager && saves {
		return Usagef("%q combines checkpoints with a chain that may lose acknowledged updates, but a checkpoint "+
			"must contain all of them; use, for example, chain:%d,checkpoint:100, or chain:%d,checkpoint:100,async, "+
			"which differs only in not waiting for checkpoints to be written", s, replicas, replicas)
	}
	return Usagef("%q has %d options after the chain; write only one of async, every:K and checkpoint:C", s,
		len(options))
}

// String returns r in the form that ParseRecovery accepts.
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

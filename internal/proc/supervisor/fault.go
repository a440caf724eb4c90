package supervisor

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
)

// Fault is a planned failure, written KIND:TARGET@WHEN[+FOR]: "kill:server:0@clock:100", "slow*3:worker:*@12.5s+2s".
// Faults are comparable values.
type Fault struct {
	Kind   FaultKind
	Factor float64 // only for slow and jitter: above 1; else 0
	Target Target
	When   When
	// For is the duration of the fault. 0 is the kind's default: a killed process is replaced immediately, and all
	// other faults last until the end.
	For time.Duration
}

// FaultKind is the kind of a fault.
type FaultKind string

// The kinds of faults.
const (
	FaultKill   FaultKind = "kill"   // SIGKILL
	FaultTerm   FaultKind = "term"   // SIGTERM: a request to end
	FaultFreeze FaultKind = "freeze" // SIGSTOP, and SIGCONT after For
	FaultCut    FaultKind = "cut"    // drops all messages in both directions
	FaultSlow   FaultKind = "slow"   // slows down by Factor
	FaultJitter FaultKind = "jitter" // delays each message by up to Factor
)

// Targets that are not processes with a wire.Role of their own.
const (
	RoleLog    wire.Role = "log"    // the update log's process
	RoleShards wire.Role = "shards" // a fraction of the shards, on any servers
)

// All is the Index of a target that means every server or every worker.
const All = -1

// Target selects the processes or shards that a fault hits.
type Target struct {
	Role     wire.Role
	Index    int     // index of a server or worker, or All; else 0
	Fraction float64 // fraction of the shards, above 0 and at most 1; else 0
}

// Matches reports whether the target includes the given process. It returns false for targets that are a fraction of
// the shards, because a Target cannot determine which these are.
func (t Target) Matches(role wire.Role, index int) bool {
	return t.Role == role && role != RoleShards && (!numbered(role) || t.Index == All || t.Index == index)
}

func numbered(role wire.Role) bool { return role == wire.RoleServer || role == wire.RoleWorker }

// String returns the target as written in a fault.
func (t Target) String() string {
	switch {
	case t.Role == RoleShards:
		return string(t.Role) + ":" + strconv.FormatFloat(t.Fraction, 'g', -1, 64)
	case !numbered(t.Role):
		return string(t.Role)
	case t.Index == All:
		return string(t.Role) + ":*"
	}
	return string(t.Role) + ":" + strconv.Itoa(t.Index)
}

// When is the time at which a fault is due.
type When struct {
	ByClock bool
	Clock   perdure.Clock // ByClock: the value of the job's MinClock
	After   time.Duration // ByClock: delay after that clock is reached
	Since   time.Duration // otherwise: time since the first clock started
}

// String returns the time as written in a fault.
func (w When) String() string {
	if w.ByClock {
		if w.After > 0 {
			return fmt.Sprintf("clock:%d,%s", w.Clock, formatDuration(w.After))
		}
		return fmt.Sprintf("clock:%d", w.Clock)
	}
	return formatDuration(w.Since)
}

// formatDuration formats whole and fractional seconds ("90s", "12.5s"), which are easier to compare than hours and
// minutes. Below a second it uses Go's format.
func formatDuration(d time.Duration) string {
	if d < time.Second {
		return d.String()
	}
	s := fmt.Sprintf("%d.%09d", d/time.Second, d%time.Second)
	return strings.TrimRight(strings.TrimRight(s, "0"), ".") + "s"
}

// String returns the fault as written on the command line.
func (f Fault) String() string {
	s := string(f.Kind)
	if f.Factor != 0 {
		s += "*" + strconv.FormatFloat(f.Factor, 'g', -1, 64)
	}
	s += ":" + f.Target.String() + "@" + f.When.String()
	if f.For != 0 {
		s += "+" + formatDuration(f.For)
	}
	return s
}

// MarshalText implements encoding.TextMarshaler.
func (f Fault) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (f *Fault) UnmarshalText(b []byte) (err error) {
	*f, err = ParseFault(string(b))
	return err
}

// ParseFault parses KIND:TARGET@WHEN[+FOR]. Each error is one line that wraps perdure.ErrUsage and shows an example.
func ParseFault(s string) (Fault, error) {
	if len(s) > maxFault {
		return Fault{},
			perdure.Usagef("fault %.40q… is too long (%d characters); write, for example, kill:server:0@12.5s", s,
				len(s))
	}
	f, err := parseFault(s)
	if err == nil {
		err = f.check()
	}
	if err != nil {
		return Fault{}, perdure.Usagef("fault %q: %w", s, err)
	}
	return f, nil
}

// maxFault limits the text of a fault in bytes, because every error shows it.
const maxFault = 200

func parseFault(s string) (f Fault, err error) {
	kind, rest, ok := strings.Cut(s, ":")
	if !ok {
		return f, fmt.Errorf("it has no target; write, for example, kill:server:0@12.5s")
	}
	target, when, ok := strings.Cut(rest, "@")
	if !ok {
		return f, fmt.Errorf("it has no time; add, for example, @12.5s or @clock:100")
	}
	when, length, hasLength := strings.Cut(when, "+")
	if f.Kind, f.Factor, err = parseKind(kind); err != nil {
		return f, err
	}
	if f.Target, err = parseTarget(target); err != nil {
		return f, err
	}
	if f.When, err = parseWhen(when); err != nil {
		return f, err
	}
	if hasLength {
		f.For, err = time.ParseDuration(length)
		if err != nil || f.For <= 0 {
			return f, fmt.Errorf("%q is not a duration above 0; write, for example, +2s or +500ms", length)
		}
	}
	return f, nil
}

func parseKind(s string) (FaultKind, float64, error) {
	name, arg, hasArg := strings.Cut(s, "*")
	kind := FaultKind(name)
	switch kind {
	case FaultKill, FaultTerm, FaultFreeze, FaultCut:
		if hasArg {
			return "", 0, fmt.Errorf("%s takes no factor; write, for example, %s:server:0@12.5s", kind, kind)
		}
		return kind, 0, nil
	case FaultSlow, FaultJitter:
		if !hasArg {
			return "", 0, fmt.Errorf("%s needs a factor above 1; write, for example, %s*3:worker:0@12.5s", kind, kind)
		}
		factor, err := strconv.ParseFloat(arg, 64)
		if err != nil || !validFactor(factor) {
			return "", 0, fmt.Errorf(
				"factor %q must be above 1 and at most 10000; write, for example, %s*3:worker:0@12.5s", arg, kind)
		}
		return kind, factor, nil
	}
	return "", 0, fmt.Errorf("unknown kind %q; choose kill, term, freeze, cut, slow*FACTOR or jitter*FACTOR, for "+
		"example kill:server:0@12.5s", s)
}

// maxFactor is the largest slow-down: the process lives but makes practically no progress.
const maxFactor = 10_000

func validFactor(x float64) bool { return x > 1 && x <= maxFactor }

// ParseProcess parses a target that is a single process: server:N, worker:N, coordinator or log.
func ParseProcess(s string) (Target, error) {
	t, err := parseTarget(s)
	if err != nil || t.Role == RoleShards || t.Index == All {
		return t, fmt.Errorf("invalid process %q; name one, for example server:0, worker:1 or coordinator", s)
	}
	return t, nil
}

func parseTarget(s string) (Target, error) {
	name, arg, hasArg := strings.Cut(s, ":")
	t := Target{Role: wire.Role(name)}
	switch t.Role {
	case wire.RoleServer, wire.RoleWorker:
		if arg == "*" {
			t.Index = All
			return t, nil
		}
		n, err := strconv.ParseUint(arg, 10, 31)
		if err != nil {
			return t, fmt.Errorf("target %q needs the number of a %s, counted from 0, or * for all; write, for "+
				"example, kill:%s:0@12.5s", s, name, name)
		}
		t.Index = int(n)
		return t, nil
	case wire.RoleCoordinator, RoleLog:
		if hasArg {
			return t, fmt.Errorf("there is only one %s, so it takes no number; write, for example, kill:%s@12.5s",
				name, name)
		}
		return t, nil
	case RoleShards:
		part, err := strconv.ParseFloat(arg, 64)
		if err != nil || !validFraction(part) {
			return t, fmt.Errorf("target %q needs a fraction of the shards, above 0 and at most 1; write, for "+
				"example, kill:shards:0.5@12.5s", s)
		}
		t.Fraction = part
		return t, nil
	}
	return t, fmt.Errorf("unknown target %q; choose server:I, worker:I, coordinator, log or shards:PART, for "+
		"example kill:server:0@12.5s", s)
}

func validFraction(x float64) bool { return x > 0 && x <= 1 }

func parseWhen(s string) (When, error) {
	if arg, ok := strings.CutPrefix(s, "clock:"); ok {
		clock, late, isLate := strings.Cut(arg, ",")
		n, err := strconv.ParseUint(clock, 10, 63)
		if err != nil {
			return When{}, fmt.Errorf("%q is not a clock; write a whole number from 0, for example @clock:100", clock)
		}
		w := When{ByClock: true, Clock: perdure.Clock(n)}
		if w.After, err = time.ParseDuration(late); isLate && (err != nil || w.After <= 0) {
			return When{}, fmt.Errorf("%q is not a valid delay after the clock: it must be above 0; write, for "+
				"example, @clock:100,250ms",
				late)
		}
		return w, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return When{}, fmt.Errorf("%q is neither a time since the first clock started nor a clock; write, for "+
			"example, @12.5s or @clock:100", s)
	}
	return When{Since: d}, nil
}

// check returns an error if the fault is invalid in every job.
func (f Fault) check() error {
	if f.Target.Role == RoleShards && f.Kind != FaultKill {
		return fmt.Errorf("shards can only be killed; write, for example, kill:shards:0.5@12.5s, or %s a server",
			f.Kind)
	}
	return nil
}

// Validate returns an error if the fault is invalid in a job with the given numbers of servers and workers, with or
// without a log process, whose last clock is latest. The error is one line that wraps perdure.ErrUsage. The fault must
// come from ParseFault.
func (f Fault) Validate(servers, workers int, log bool, latest perdure.Clock) error {
	err := f.check()
	if f.When.ByClock && f.When.Clock > latest {
		err = fmt.Errorf("it would never occur: the job ends at clock %d", latest)
	}
	number := func(n int, name string) {
		if f.Target.Index != All && (f.Target.Index < 0 || f.Target.Index >= n) {
			err = fmt.Errorf("there is no %s; this job has %d %s, numbered from 0", f.Target, n, name)
		}
	}
	switch f.Target.Role {
	case wire.RoleServer:
		number(servers, "servers")
	case wire.RoleWorker:
		number(workers, "workers")
	case RoleLog:
		switch {
		case !log:
			err = fmt.Errorf("this job has no log process; choose server:I, worker:I, coordinator or shards:PART")
		case f.Kind != FaultKill && f.Kind != FaultTerm && f.Kind != FaultFreeze:
			err = fmt.Errorf("the log can only be killed, terminated or frozen; write, for example, kill:log@12.5s, "+
				"or %s a server", f.Kind)
		}
	}
	if err != nil {
		return perdure.Usagef("fault %q: %w", f, err)
	}
	return nil
}

package perdure

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// OnOutage is what workers do while a shard is out, that is, while no live server
// answers for it. It is written "wait" or "continue:CLOCKS", in JSON too. The zero
// value is "wait".
type OnOutage struct {
	// Continue says that Gets of the shard's rows are answered from the cache beyond
	// the bound of their consistency model, and that updates are queued for it.
	Continue bool
	// Clocks is by how many clocks beyond that bound; 0 unless Continue.
	Clocks Clock
}

// DefaultOutageClocks is CLOCKS where "continue" is written without a number, and
// DefaultOutageBytes what a worker queues where nothing is said: that is 630 clocks of
// the cnn workload, 20 s and more of it.
const (
	DefaultOutageClocks = 1000
	DefaultOutageBytes  = 2 << 30
)

// ParseOnOutage reads "wait", "continue" or "continue:CLOCKS" (CLOCKS ≥ 1).
func ParseOnOutage(s string) (OnOutage, error) {
	kind, arg, hasArg := strings.Cut(s, ":")
	switch {
	case kind == "wait" && !hasArg:
		return OnOutage{}, nil
	case kind == "continue" && !hasArg:
		return OnOutage{Continue: true, Clocks: DefaultOutageClocks}, nil
	case kind == "continue":
		n, err := strconv.ParseInt(arg, 10, 32)
		if err != nil || n < 1 {
			return OnOutage{}, fmt.Errorf(
				"%w: %q clocks in %q is not a whole number ≥ 1; write for example continue:%d", ErrUsage, arg, s,
				DefaultOutageClocks)
		}
		return OnOutage{Continue: true, Clocks: Clock(n)}, nil
	}
	return OnOutage{}, fmt.Errorf("%w: unknown outage policy %q; choose wait, continue or continue:CLOCKS", ErrUsage, s)
}

// String returns the policy as it is written on the command line.
func (o OnOutage) String() string {
	if o.Continue {
		return fmt.Sprintf("continue:%d", o.Clocks)
	}
	return "wait"
}

// MarshalText implements encoding.TextMarshaler.
func (o OnOutage) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (o *OnOutage) UnmarshalText(b []byte) (err error) {
	*o, err = ParseOnOutage(string(b))
	return err
}

// OutageRows says whether a worker's own updates show in the rows that it reads of a
// shard that is out. "" is RowsFrozen.
type OutageRows string

// The ways. RowsFrozen leaves rows as they were when the shard was found to be out.
// Under RowsApply what is Inc'd shows, as it does while the shard is there: each
// worker goes on from its own updates. (Under a rule that keeps state, nothing shows
// in either case.)
const (
	RowsFrozen OutageRows = "frozen"
	RowsApply  OutageRows = "apply"
)

// StaleScale says how servers weaken an update that was computed from old rows: by
// its age, which is MinClock when it is applied less MinClock of the oldest row that
// it was computed from, or for having been made while the shard was out. "" is
// ScaleNone.
type StaleScale string

// The ways to scale. ScaleNone changes nothing. ScaleInverse multiplies an update
// with 1/(1+age). ScalePaper multiplies one with a tenth that is older than 50 updates,
// which are age clocks of all slots (after Cao et al. 2024). ScaleAverage leaves all
// others alone, and multiplies an update that was computed from rows read while the shard
// was out with 1/(slots that take part), and, where those rows lack clocks of its own
// slot, with 1/(1 + their number), too: of slots that went on from the same rows, each by
// itself, the mean is taken, as local SGD does. It changes no table of the rule add,
// whose rows are sums of what was Inc'd. None of them changes one of the rule set.
const (
	ScaleNone    StaleScale = "none"
	ScaleInverse StaleScale = "inverse"
	ScalePaper   StaleScale = "paper"
	ScaleAverage StaleScale = "average"
)

// Weakens reports whether the scale changes updates of a table of the given rule.
func (s StaleScale) Weakens(r Rule) bool {
	return s != "" && s != ScaleNone && r.Kind != RuleSet && (s != ScaleAverage || r.Kind != RuleAdd)
}

// validateOutage reports what is wrong with what is to be done in outages, if
// anything.
func (j *JobSpec) validateOutage() error {
	switch {
	case j.OutageRows != "" && j.OutageRows != RowsFrozen && j.OutageRows != RowsApply:
		return fmt.Errorf("%w: rows in an outage %q; choose frozen or apply", ErrUsage, j.OutageRows)
	case !slices.Contains([]StaleScale{"", ScaleNone, ScaleInverse, ScalePaper, ScaleAverage}, j.StaleScale):
		return fmt.Errorf("%w: scale of stale updates %q; choose none, inverse, paper or average", ErrUsage,
			j.StaleScale)
	case j.OutageBytes < 0:
		return fmt.Errorf("%w: %d bytes queued in an outage; choose at least 1", ErrUsage, j.OutageBytes)
	case j.OnOutage.Continue && j.OnOutage.Clocks < 1:
		return fmt.Errorf("%w: on-outage continue for %d clocks; choose at least 1", ErrUsage, j.OnOutage.Clocks)
	case !j.OnOutage.Continue:
		return nil
	case j.TwoStep(nil):
		return fmt.Errorf("%w: on-outage continue under bsp: a bsp clock reads what all did in the one before, and "+
			"ends once it is staged on all shards, which a shard that is out cannot do; choose --on-outage wait, or "+
			"asp, ssp:S, essp:S or vap:V with recovery resend or stateless", ErrUsage)
	}
	return nil
}

// QueuedBytes returns how many bytes of updates each worker queues in an outage.
func (j *JobSpec) QueuedBytes() int64 {
	if j.OutageBytes == 0 {
		return DefaultOutageBytes
	}
	return j.OutageBytes
}

// Scales reports whether servers scale updates by their age. Under bsp none has any.
func (j *JobSpec) Scales(tables []TableSpec) bool {
	return j.StaleScale != "" && j.StaleScale != ScaleNone && !j.TwoStep(tables)
}

package perdure

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// OnOutage says what workers do while a shard is unavailable, that is, while no live server answers for it. Its text
// form, also in JSON, is "wait" or "continue:CLOCKS". The zero value is "wait".
type OnOutage struct {
	// Continue lets Gets of the shard's rows return cached values that exceed the bound of their consistency model, and
	// queues updates for the shard.
	Continue bool
	// Clocks is by how many clocks cached rows may exceed that bound; 0 unless Continue is set.
	Clocks Clock
}

// DefaultOutageClocks is the value of CLOCKS if "continue" is written without a number. DefaultOutageBytes is the
// default bound on the updates that a worker queues: 630 clocks of the cnn workload, which takes more than 20 s to
// compute.
const (
	DefaultOutageClocks = 1000
	DefaultOutageBytes  = 2 << 30
)

// ParseOnOutage parses "wait", "continue" or "continue:CLOCKS" (CLOCKS ≥ 1).
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
			return OnOutage{}, Usagef("number of clocks %q in %q is not a whole number ≥ 1; write, for example, "+
				"continue:%d", arg, s, DefaultOutageClocks)
		}
		return OnOutage{Continue: true, Clocks: Clock(n)}, nil
	}
	return OnOutage{}, Usagef("unknown outage policy %q; choose wait, continue or continue:CLOCKS", s)
}

// String returns o in the form that ParseOnOutage accepts.
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

// OutageRows says whether a worker's own updates are visible in the rows that it reads from an unavailable shard. "" is
// RowsFrozen.
type OutageRows string

// The values of OutageRows. RowsFrozen leaves rows as they were when the worker found the shard unavailable. With
// RowsApply, the worker's deltas are visible as they are while the shard is available: each worker continues from its
// own updates. (Under a rule that keeps state, deltas are not visible in either case.)
const (
	RowsFrozen OutageRows = "frozen"
	RowsApply  OutageRows = "apply"
)

// StaleScale says how servers scale down an update that was computed from old rows. The scale depends on the update's
// age, or on whether it was made while the shard was unavailable. The age is the difference between MinClock when the
// update is applied and MinClock of the oldest row it was computed from. "" is ScaleNone.
type StaleScale string

// The values of StaleScale.
//
// ScaleNone changes nothing. ScaleInverse multiplies an update by 1/(1+age). ScalePaper multiplies an update by 0.1 if
// it is older than 50 updates, counted as age clocks of all slots (after Cao et al. 2024).
//
// ScaleAverage changes only updates that were computed from rows read while the shard was unavailable. It multiplies
// them by 1/(number of participating slots). If those rows lack n clocks of the update's own slot, it also multiplies
// by 1/(1+n). The slots continued independently from the same rows, so this takes the mean of their updates, as local
// SGD does. ScaleAverage changes no table with the rule add, whose rows are sums of deltas.
//
// None of these changes a table with the rule set.
const (
	ScaleNone    StaleScale = "none"
	ScaleInverse StaleScale = "inverse"
	ScalePaper   StaleScale = "paper"
	ScaleAverage StaleScale = "average"
)

// AppliesTo reports whether s changes updates of a table with the given rule.
func (s StaleScale) AppliesTo(r Rule) bool {
	return s != "" && s != ScaleNone && r.Kind != RuleSet && (s != ScaleAverage || r.Kind != RuleAdd)
}

// validateOutage returns an error if the settings for outages are invalid.
func (j *JobSpec) validateOutage() error {
	switch {
	case j.OutageRows != "" && j.OutageRows != RowsFrozen && j.OutageRows != RowsApply:
		return Usagef("unknown mode %q for rows during an outage; choose frozen or apply", j.OutageRows)
	case !slices.Contains([]StaleScale{"", ScaleNone, ScaleInverse, ScalePaper, ScaleAverage}, j.StaleScale):
		return Usagef("unknown scaling %q for stale updates; choose none, inverse, paper or average", j.StaleScale)
	case j.OutageBytes < 0:
		return Usagef("invalid outage queue of %d bytes; choose at least 1", j.OutageBytes)
	case j.OnOutage.Continue && j.OnOutage.Clocks < 1:
		return Usagef("invalid on-outage continue for %d clocks; choose at least 1", j.OnOutage.Clocks)
	case !j.OnOutage.Continue:
		return nil
	case j.TwoStep(nil):
		return Usagef("on-outage continue does not work with bsp: a bsp clock reads all slots' updates of the " +
			"previous clock and ends only when all shards have staged it, including unavailable ones; choose " +
			"--on-outage wait, or asp, ssp:S, essp:S or vap:V with recovery resend or stateless")
	}
	return nil
}

// QueuedBytes returns the bound on the updates that each worker queues in an outage, in bytes.
func (j *JobSpec) QueuedBytes() int64 {
	if j.OutageBytes == 0 {
		return DefaultOutageBytes
	}
	return j.OutageBytes
}

// Scales reports whether servers scale updates by their age. Under bsp no update has an age.
func (j *JobSpec) Scales(tables []TableSpec) bool {
	return j.StaleScale != "" && j.StaleScale != ScaleNone && !j.TwoStep(tables)
}

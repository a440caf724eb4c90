package perdure

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// Limits on a job's size, both as requested and as processes join later.
const (
	MaxSlots   = 4096 // including slots that have left
	MaxServers = 4096
)

// MaxClock bounds the clocks of a job without an end. No job reaches it, and sums of clocks cannot overflow.
const MaxClock = Clock(1) << 40

// JobSpec is the specification of a job. It never changes during the life of the job.
type JobSpec struct {
	ID          string      `json:"id"` // unique; peers of another job are refused
	Workload    string      `json:"workload"`
	Seed        uint64      `json:"seed"`
	Slots       int         `json:"slots"` // at clock 0
	Servers     int         `json:"servers"`
	Shards      int         `json:"shards"`
	Clocks      Clock       `json:"clocks"`      // the job ends when every slot has finished this many; 0: no end
	Consistency Consistency `json:"consistency"` // of the tables that TableConsistency does not name
	Recovery    Recovery    `json:"recovery"`

	// AtomicClocks makes each clock of a slot take effect on all shards or on none, under a model that does not wait
	// for the other slots: see ClockMode.
	AtomicClocks bool `json:"atomic_clocks,omitempty"`

	// TableConsistency maps table names to their models. It may name tables that do not exist yet.
	TableConsistency map[string]Consistency `json:"table_consistency,omitempty"`

	// Log is the location of the job's update log, under the recovery strategy stateless.
	Log string `json:"log,omitempty"`
	// LogSecret reports whether the update log requires the run's secret as its token.
	LogSecret bool `json:"log_secret,omitempty"`

	// MTBF is the mean time between failures in seconds, from which the interval between checkpoints is chosen. 0: the
	// job estimates it from the failures seen so far.
	MTBF float64 `json:"mtbf_s,omitempty"`

	// NoReplace reports whether a dead server is never replaced: the survivors take over its shards.
	NoReplace bool `json:"no_replace,omitempty"`
	// TakeOverMs is the number of milliseconds after which the other servers take over a dead server's shards although
	// its replacement is expected. The replacement is assigned shards again when it arrives. 0: the job waits for the
	// replacement, however long that takes.
	TakeOverMs int64 `json:"take_over_ms,omitempty"`

	// OnOutage says what workers do while a shard is unavailable. OutageRows says which rows they read meanwhile ("":
	// frozen), and OutageBytes bounds the updates that each worker queues, in bytes (0: DefaultOutageBytes).
	OnOutage    OnOutage   `json:"on_outage,omitzero"`
	OutageRows  OutageRows `json:"outage_rows,omitempty"`
	OutageBytes int64      `json:"outage_bytes,omitempty"`
	// StaleScale says how servers scale down updates that were computed from old rows ("": not at all).
	StaleScale StaleScale `json:"stale_scale,omitempty"`

	// SuspendMs is the number of milliseconds after which a slot without a process is suspended and the others continue
	// without it; 0: never.
	SuspendMs int64 `json:"suspend_ms,omitempty"`

	// Alarms are clocks whose start the workers report immediately because another process waits for them, for example
	// to inject a planned fault.
	Alarms []Clock `json:"alarms,omitempty"`
	// FixedEnd reports whether the job ends at Clocks and has no goal: no worker may ask for another end.
	FixedEnd bool `json:"fixed_end,omitempty"`
	// AwaitExport keeps a completed job alive until its parent process reports that the model has been exported.
	AwaitExport bool `json:"await_export,omitempty"`
	// OwnWorkers reports whether the workers are the user's own programs, which Perdure never starts, kills or
	// replaces.
	OwnWorkers bool `json:"own_workers,omitempty"`

	// Init is the SHA-256 hash, in hexadecimal, of the model with which the tables start. "": they start from their
	// initializers.
	Init string `json:"init,omitempty"`

	// Seal covers the settings on which the model depends. A job in memory may have none.
	Seal Seal `json:"seal,omitzero"`
}

// Validate returns an error if the job is invalid.
func (j JobSpec) Validate() error {
	for _, n := range []struct {
		name  string
		value int
		most  int
	}{{"workers", j.Slots, MaxSlots}, {"servers", j.Servers, MaxServers}, {"shards", j.Shards, 65536}} {
		if n.value < 1 || n.value > n.most {
			return Usagef("invalid number of %s %d; choose 1 to %d", n.name, n.value, n.most)
		}
	}
	if j.Servers > j.Shards {
		return Usagef("%d servers are too many for %d shards; use at least as many shards as servers", j.Servers,
			j.Shards)
	}
	if j.Clocks < 0 {
		return Usagef("invalid number of clocks %d; choose at least 1", j.Clocks)
	}
	if sum, err := hex.DecodeString(j.Init); err != nil || len(sum) != 0 && len(sum) != sha256.Size {
		return Usagef("init %q is not the SHA-256 hash of a model", j.Init)
	}
	if err := j.Seal.Validate(); err != nil {
		return err
	}
	if err := j.validateModels(); err != nil {
		return err
	}
	if err := j.validateAtomic(); err != nil {
		return err
	}
	if j.SuspendMs < 0 || j.SuspendMs > 0 && j.TwoStep(nil) {
		return Usagef("invalid suspend time of %d ms; choose 0 or more; with bsp it must be 0, because bsp waits for "+
			"every worker", j.SuspendMs)
	}
	if j.TakeOverMs < 0 || j.TakeOverMs > 0 && j.NoReplace {
		return Usagef("invalid take-over time of %d ms; choose 0 or more; if servers are not replaced it must be 0, "+
			"because the others then take over immediately", j.TakeOverMs)
	}
	if _, err := ParseRecovery(j.Recovery.String()); err != nil {
		return err
	}
	if !(j.MTBF >= 0) || math.IsInf(j.MTBF, 0) || j.MTBF > 0 && !j.Recovery.Auto {
		return Usagef("invalid mean time between failures: %v s with recovery %s; choose a time > 0, and "+
			"checkpoint:auto or resend:auto, which derive the checkpoint interval from it", j.MTBF, j.Recovery)
	}
	if err := j.validateOutage(); err != nil {
		return err
	}
	if n := max(1, j.Recovery.Replicas); n > j.Servers {
		return Usagef("%s keeps each shard on %d servers, but the job has only %d; use at least %d servers, or a "+
			"shorter chain", j.Recovery, n, j.Servers, n)
	}
	return nil
}

func (j *JobSpec) validateModels() error {
	if _, err := ParseConsistency(j.Consistency.String()); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(j.TableConsistency)) {
		if !tableName.MatchString(name) {
			return Usagef("%q has a consistency model but is not a valid table name", name)
		}
		if _, err := ParseConsistency(j.TableConsistency[name].String()); err != nil {
			return fmt.Errorf("table %s: %w", name, err)
		}
	}
	return nil
}

// ConsistencyOf returns the job's consistency model for the named table, which applies unless the table specifies its
// own.
func (j *JobSpec) ConsistencyOf(table string) Consistency {
	if c, named := j.TableConsistency[table]; named {
		return c
	}
	return j.Consistency
}

// Models returns the models of the job's tables in the form that ParseModels accepts.
func (j *JobSpec) Models() string {
	var b strings.Builder
	b.WriteString(j.Consistency.String())
	for _, name := range slices.Sorted(maps.Keys(j.TableConsistency)) {
		fmt.Fprintf(&b, ",%s=%s", name, j.TableConsistency[name])
	}
	return b.String()
}

// MissingBound returns the max number of updates that a read may lack: P(2s+1) for P slots and the loosest staleness s
// of the job's models (ESSP paper, section 3). bounded is false if one of the models is not bounded in clocks.
func (j *JobSpec) MissingBound() (updates int64, bounded bool) {
	loosest := j.Consistency.Staleness
	bounded = j.Consistency.Bounded()
	for _, c := range j.TableConsistency {
		loosest, bounded = max(loosest, c.Staleness), bounded && c.Bounded()
	}
	if !bounded {
		return 0, false
	}
	return int64(j.Slots) * (2*int64(loosest) + 1), true
}

// TwoStep reports whether the job's clocks are staged on all shards before they are ticked. That is the case if the
// model of any existing or future table requires it, since a slot's update of a clock covers all tables.
func (j *JobSpec) TwoStep(tables []TableSpec) bool {
	for _, c := range j.TableConsistency {
		if c.TwoStep() {
			return true
		}
	}
	return j.Consistency.TwoStep() ||
		slices.ContainsFunc(tables, func(t TableSpec) bool { return t.Consistency.TwoStep() })
}

// Unbounded reports whether no table bounds how far slots may be apart: all use asp.
func (j *JobSpec) Unbounded(tables []TableSpec) bool {
	return j.Consistency.Kind == ASP &&
		!slices.ContainsFunc(tables, func(t TableSpec) bool { return t.Consistency.Kind != ASP })
}

// ClockMode says when a slot's update of a clock comes into effect on a shard.
type ClockMode int

// The modes.
const (
	// ClockOneStep: when it is complete there. If the slot's process dies, some shards may lack its last clocks, and
	// the next process repeats these.
	ClockOneStep ClockMode = iota
	// ClockAtomic: when the shard gets its tick, which the worker sends when all shards have the update. If the slot's
	// process dies, all shards have a clock or none has it.
	ClockAtomic
	// ClockTwoStep: when the shard has the ticks of all slots. The job is then a function of its seed.
	ClockTwoStep
)

// Ticks reports whether updates are staged, and come into effect when they are ticked.
func (m ClockMode) Ticks() bool { return m != ClockOneStep }

// ClockMode returns the mode of the job's clocks.
func (j *JobSpec) ClockMode(tables []TableSpec) ClockMode {
	switch {
	case j.TwoStep(tables):
		return ClockTwoStep
	case j.AtomicClocks:
		return ClockAtomic
	}
	return ClockOneStep
}

// ValidateTable returns an error if the job cannot have the table.
func (j *JobSpec) ValidateTable(t TableSpec) error {
	if j.AtomicClocks && (t.Consistency.TwoStep() || t.Consistency.Kind == VAP) {
		return Usagef("table %s uses %s, which does not work in a job with atomic clocks; choose asp, ssp:S or essp:S",
			t.Name, t.Consistency)
	}
	if j.OnOutage.Continue && t.Consistency.TwoStep() {
		return Usagef("table %s uses bsp, but the job continues during outages, which bsp does not support; choose "+
			"another model", t.Name)
	}
	return j.Recovery.ValidateTable(t)
}

// validateAtomic returns an error if the job has atomic clocks and a setting that they do not support.
func (j *JobSpec) validateAtomic() error {
	vap := func(c Consistency) bool { return c.Kind == VAP }
	switch models := slices.Collect(maps.Values(j.TableConsistency)); {
	case !j.AtomicClocks:
		return nil
	case j.TwoStep(nil):
		return Usagef("atomic clocks have no effect under bsp, whose clocks are atomic already; omit --atomic-clocks")
	case vap(j.Consistency) || slices.ContainsFunc(models, vap):
		return Usagef("atomic clocks do not work with vap, which limits the updates that are on their way; choose " +
			"asp, ssp:S or essp:S, or omit --atomic-clocks")
	}
	return nil
}

// TailReads reports whether all rows are read from the tails of chains, so that the other replicas need not be fast to
// show committed entries. If workers wait until a clock is staged, or for each other's clocks, the tail is the first
// replica to know. Under vap, one replica must know what each slot can read. (The head of a chain that acknowledges
// early is ahead of all others.)
func (j *JobSpec) TailReads(tables []TableSpec) bool {
	asks := func(c Consistency) bool { return c.TwoStep() || c.Kind == VAP }
	for _, c := range j.TableConsistency {
		if asks(c) {
			return true
		}
	}
	return j.AtomicClocks || asks(j.Consistency) ||
		slices.ContainsFunc(tables, func(t TableSpec) bool { return asks(t.Consistency) })
}

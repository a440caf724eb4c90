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

// How large a job may be, as it is asked for and by what joins it later.
const (
	MaxSlots   = 4096 // those that have left included
	MaxServers = 4096
)

// MaxClock bounds the clocks of a job without an end: nobody comes so far, and sums of
// clocks cannot overflow.
const MaxClock = Clock(1) << 40

// JobSpec is what a job is asked to be. It never changes while the job lives.
type JobSpec struct {
	ID          string      `json:"id"` // unique; peers of another job are refused
	Workload    string      `json:"workload"`
	Seed        uint64      `json:"seed"`
	Slots       int         `json:"slots"` // at clock 0
	Servers     int         `json:"servers"`
	Shards      int         `json:"shards"`
	Clocks      Clock       `json:"clocks"`      // the job ends when every slot has finished them; 0: no end
	Consistency Consistency `json:"consistency"` // of the tables that TableConsistency does not name
	Recovery    Recovery    `json:"recovery"`

	// TableConsistency has the models of tables by name, also of tables that do not
	// exist yet.
	TableConsistency map[string]Consistency `json:"table_consistency,omitempty"`

	// Log is where the job's update log is, under the strategy stateless.
	Log string `json:"log,omitempty"`
	// LogSecret says that the log asks for the run's secret, as its token.
	LogSecret bool `json:"log_secret,omitempty"`

	// MTBF is how long it is between two failures on average, in seconds, where the
	// interval between checkpoints is chosen by it; 0: as is to be expected after what was seen.
	MTBF float64 `json:"mtbf_s,omitempty"`

	// NoReplace says that a dead server's place stays empty: the survivors take over
	// what it held.
	NoReplace bool `json:"no_replace,omitempty"`
	// TakeOverMs is after how many milliseconds the others take over what a dead server had, though its next process
	// is to come: when it comes, it is one of them again; 0: it is awaited, however long that takes.
	TakeOverMs int64 `json:"take_over_ms,omitempty"`

	// OnOutage is what workers do while a shard is out, OutageRows what they read then
	// ("": frozen), and OutageBytes how much of updates each queues (0:
	// DefaultOutageBytes).
	OnOutage    OnOutage   `json:"on_outage,omitzero"`
	OutageRows  OutageRows `json:"outage_rows,omitempty"`
	OutageBytes int64      `json:"outage_bytes,omitempty"`
	// StaleScale says how servers weaken updates that were computed from old rows ("":
	// not at all).
	StaleScale StaleScale `json:"stale_scale,omitempty"`

	// SuspendMs is after how many milliseconds a slot that no process speaks for is
	// suspended: the others go on without it; 0: never.
	SuspendMs int64 `json:"suspend_ms,omitempty"`

	// Alarms are clocks whose beginning workers report at once, since somebody
	// waits for them (a fault that is planned, say).
	Alarms []Clock `json:"alarms,omitempty"`
	// FixedEnd says that the job has no goal, and ends at Clocks: no worker may ask for
	// another end.
	FixedEnd bool `json:"fixed_end,omitempty"`
	// AwaitExport keeps a completed job alive until its parent says that the model
	// has been exported.
	AwaitExport bool `json:"await_export,omitempty"`
	// OwnWorkers says that workers are programs of the user's, which nobody here starts,
	// kills or replaces.
	OwnWorkers bool `json:"own_workers,omitempty"`

	// Init is the hash of the model that the tables begin with; "": they begin as their initialisers say.
	Init string `json:"init,omitempty"`

	// Seal is of what the model depends on; a job in memory may have none.
	Seal Seal `json:"seal,omitzero"`
}

// Validate reports what is wrong with the job, if anything.
func (j JobSpec) Validate() error {
	for _, n := range []struct {
		name  string
		value int
		most  int
	}{{"workers", j.Slots, MaxSlots}, {"servers", j.Servers, MaxServers}, {"shards", j.Shards, 65536}} {
		if n.value < 1 || n.value > n.most {
			return fmt.Errorf("%w: %d %s; choose 1 to %d", ErrUsage, n.value, n.name, n.most)
		}
	}
	if j.Servers > j.Shards {
		return fmt.Errorf("%w: %d servers for %d shards; use at least as many shards as servers", ErrUsage, j.Servers,
			j.Shards)
	}
	if j.Clocks < 0 {
		return fmt.Errorf("%w: %d clocks; choose at least 1", ErrUsage, j.Clocks)
	}
	if sum, err := hex.DecodeString(j.Init); err != nil || len(sum) != 0 && len(sum) != sha256.Size {
		return fmt.Errorf("%w: init %q is no SHA-256 of a model", ErrUsage, j.Init)
	}
	if err := j.Seal.Validate(); err != nil {
		return err
	}
	if err := j.validateModels(); err != nil {
		return err
	}
	if j.SuspendMs < 0 || j.SuspendMs > 0 && j.TwoStep(nil) {
		return fmt.Errorf("%w: workers suspended after %d ms; choose 0 or more, and 0 under bsp, which waits for "+
			"every worker", ErrUsage, j.SuspendMs)
	}
	if j.TakeOverMs < 0 || j.TakeOverMs > 0 && j.NoReplace {
		return fmt.Errorf("%w: others take over from a dead server after %d ms; choose 0 or more, and 0 where nobody "+
			"replaces servers, since others take over at once then", ErrUsage, j.TakeOverMs)
	}
	if _, err := ParseRecovery(j.Recovery.String()); err != nil {
		return err
	}
	if !(j.MTBF >= 0) || math.IsInf(j.MTBF, 0) || j.MTBF > 0 && !j.Recovery.Auto {
		return fmt.Errorf("%w: %v s between failures with recovery %s; choose a time above 0, with checkpoint:auto "+
			"or resend:auto, which choose the interval between checkpoints by it", ErrUsage, j.MTBF, j.Recovery)
	}
	if err := j.validateOutage(); err != nil {
		return err
	}
	if n := max(1, j.Recovery.Replicas); n > j.Servers {
		return fmt.Errorf("%w: %s keeps each shard on %d servers, and the job has %d; use at least %d servers, or a "+
			"shorter chain", ErrUsage, j.Recovery, n, j.Servers, n)
	}
	return nil
}

func (j *JobSpec) validateModels() error {
	if _, err := ParseConsistency(j.Consistency.String()); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(j.TableConsistency)) {
		if !tableName.MatchString(name) {
			return fmt.Errorf("%w: %q has a consistency model, and cannot be a table's name", ErrUsage, name)
		}
		if _, err := ParseConsistency(j.TableConsistency[name].String()); err != nil {
			return fmt.Errorf("table %s: %w", name, err)
		}
	}
	return nil
}

// ConsistencyOf returns the model of the table of that name, if the table has none
// of its own.
func (j *JobSpec) ConsistencyOf(table string) Consistency {
	if c, named := j.TableConsistency[table]; named {
		return c
	}
	return j.Consistency
}

// Models returns the models of the job's tables as ParseModels reads them.
func (j *JobSpec) Models() string {
	var b strings.Builder
	b.WriteString(j.Consistency.String())
	for _, name := range slices.Sorted(maps.Keys(j.TableConsistency)) {
		fmt.Fprintf(&b, ",%s=%s", name, j.TableConsistency[name])
	}
	return b.String()
}

// MissingBound returns how many updates a read may lack at most: P(2s+1) for P
// slots and the loosest staleness s of the job's models (ESSP paper, section 3).
// There is no bound if one of them is not bounded in clocks.
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

// TwoStep reports whether the job's clocks are staged on all shards before they
// are ticked: if the model of any table, there or yet to come, asks for it, since
// a slot's update of a clock is one for all tables.
func (j *JobSpec) TwoStep(tables []TableSpec) bool {
	for _, c := range j.TableConsistency {
		if c.TwoStep() {
			return true
		}
	}
	return j.Consistency.TwoStep() ||
		slices.ContainsFunc(tables, func(t TableSpec) bool { return t.Consistency.TwoStep() })
}

// TailReads reports whether all rows are read from the tails of chains, so that the
// others need not hurry to show what is committed: where workers wait for the word
// that a clock is staged, and for each other's clocks, the tail is who knows first;
// and under vap one replica must know what each slot can read. (The head of an eager
// chain is ahead of all.)
func (j *JobSpec) TailReads(tables []TableSpec) bool {
	asks := func(c Consistency) bool { return c.TwoStep() || c.Kind == VAP }
	for _, c := range j.TableConsistency {
		if asks(c) {
			return true
		}
	}
	return asks(j.Consistency) || slices.ContainsFunc(tables, func(t TableSpec) bool { return asks(t.Consistency) })
}

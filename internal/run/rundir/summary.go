package rundir

import (
	"cmp"
	"math"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// Summary is the result of a run. Every field is always present in summary.json; unknown values are nil and written as
// null.
type Summary struct {
	Workload    string              `json:"workload"`
	Data        string              `json:"data"`
	Workers     int                 `json:"workers"`
	Servers     int                 `json:"servers"`
	Shards      int                 `json:"shards"`
	Consistency perdure.Consistency `json:"consistency"`
	// TableConsistency holds the models of tables whose model is not Consistency; may be empty.
	TableConsistency map[string]perdure.Consistency `json:"table_consistency"`
	Recovery         perdure.Recovery               `json:"recovery"`
	OnOutage         perdure.OnOutage               `json:"on_outage"`
	OutageRows       perdure.OutageRows             `json:"outage_rows"` // "": workers wait during outages
	StaleScale       perdure.StaleScale             `json:"stale_scale"`
	Seed             uint64                         `json:"seed"`

	Clocks      perdure.Clock `json:"clocks"` // finished by every slot
	WallSeconds float64       `json:"wall_seconds"`
	TimeSplit   *TimeSplit    `json:"time_split"`

	// NaN and infinities are written as null, because JSON cannot represent them.
	TrainLoss    *float64 `json:"train_loss"`
	TestLoss     *float64 `json:"test_loss"`
	TestAccuracy *float64 `json:"test_accuracy"` // 0 to 1
	TrainRMSE    *float64 `json:"train_rmse"`    // of workloads that predict values
	TestRMSE     *float64 `json:"test_rmse"`

	UpdatesSent    *int64 `json:"updates_sent"`
	UpdatesApplied *int64 `json:"updates_applied"` // contained in the model
	UpdatesLost    *int64 `json:"updates_lost"`    // missing from the model; a complete job has clocks·workers·shards
	*OlderStates          // nil: none
	ClocksRedone   *int64 `json:"clocks_redone"`
	BytesPushed    *int64 `json:"bytes_pushed"`
	BytesPulled    *int64 `json:"bytes_pulled"`

	LogBytes *int64 `json:"log_bytes"` // size of the job's own update log; nil: it has none

	// Histograms over reads of rows, by number of clocks.
	ClockDifferential map[string]int64 `json:"clock_differential"`
	ReadLag           map[string]int64 `json:"read_lag"`

	// Histogram over reads of rows by the number of updates that the row lacked, and the largest number that the models
	// allow; nil if one of the models has no such bound.
	MissingUpdates map[string]int64 `json:"missing_updates"`
	MissingBound   *int64           `json:"missing_bound"`
	BeyondBound    *int64           `json:"beyond_bound"` // nil: no table is vap

	// Usage is the total resource usage of each role's processes; nil: unknown.
	Usage  map[string]RoleUsage `json:"usage"`
	Outage *Outage              `json:"outage"` // nil: workers wait during outages

	Goal *Goal `json:"goal"` // goal that the exported model reaches; nil: no goal was set, or the model misses it

	// Saving is the last interval between checkpoints, or statistics of the saved rows; nil: the strategy
	// determines it.
	Saving *protocol.Saving `json:"saving"`

	Failures    []Failure `json:"failures"` // sorted by time; may be empty
	ModelSHA256 *string   `json:"model_sha256"`
	Findings    []string  `json:"findings,omitempty"` // remarks of the workload about its model; nil: none
}

// OlderStates counts slot states that were loaded although they were older than the last acknowledged ones.
type OlderStates struct {
	StatesLost  int64 `json:"states_lost"`            // number of such states
	StatesOlder int64 `json:"states_older,omitempty"` // largest difference in clocks
}

// Goal is the goal of a run and the evaluation that reached it. The exported model also contains the updates made until
// all workers had stopped.
type Goal struct {
	Metric  string        `json:"metric"` // accuracy, loss or rmse, on the test set
	Value   float64       `json:"value"`  // required value
	Clock   perdure.Clock `json:"met_at_clock"`
	Seconds float64       `json:"met_at_seconds"` // since the first clock started
	Met     *float64      `json:"met_with"`
	Final   *float64      `json:"final"` // of the exported model
}

// TimeSplit is how the workers spent their time: computing, waiting because of the consistency model, and
// communicating. The totals of all workers are fractions that sum to 1. The times of each slot are in seconds, sorted
// by slot.
type TimeSplit struct {
	Compute       float64      `json:"compute"`
	Staleness     float64      `json:"staleness"`
	Communication float64      `json:"communication"`
	Workers       []WorkerTime `json:"workers"`
}

// WorkerTime is the time of one slot, over all its processes.
type WorkerTime struct {
	Slot           int     `json:"slot"`
	ComputeS       float64 `json:"compute_s"`
	StalenessS     float64 `json:"staleness_s"`
	CommunicationS float64 `json:"communication_s"`
}

// RoleUsage is the resource usage of a role's processes in a run, including those that died.
type RoleUsage struct {
	CPUSeconds float64 `json:"cpu_seconds"`
	MBPeak     float64 `json:"mb_peak"` // highest sample of resident memory, in 10⁶ bytes
	// In 10⁶ bytes; for a killed process up to its last sample. Null if the system does not count them.
	MBWritten *float64 `json:"mb_written"` // written to connections and files
	MBStored  *float64 `json:"mb_stored"`  // written to storage for files
}

// Outage holds the workers' totals while shards were unavailable.
type Outage struct {
	Clocks      int64   `json:"clocks"`       // finished during outages
	StaleRows   int64   `json:"stale_rows"`   // read beyond the bound of the consistency model
	QueuedBytes int64   `json:"queued_bytes"` // largest amount of updates queued by one worker
	WaitedS     float64 `json:"waited_s"`     // time spent waiting during outages
}

// Failure is one fault or death in the run, with its consequences.
type Failure struct {
	Kind      string        `json:"kind"`
	Target    string        `json:"target"`
	AtSeconds float64       `json:"at_seconds"` // since the first clock started
	AtClock   perdure.Clock `json:"at_clock"`

	DetectedAfterMs     *float64 `json:"detected_after_ms"`
	ServingAgainAfterMs *float64 `json:"serving_again_after_ms"` // until every shard serves and every slot works
	UpdatesLost         *int64   `json:"updates_lost"`
	ClocksRedone        *int64   `json:"clocks_redone"`
}

// Outages returns the intervals in which processes were missing, from each fault until all served again, in seconds,
// ordered by start.
func (s *Summary) Outages() (all [][2]float64) {
	for _, f := range s.Failures {
		if f.ServingAgainAfterMs != nil {
			all = append(all, [2]float64{f.AtSeconds, f.AtSeconds + *f.ServingAgainAfterMs/1000})
		}
	}
	slices.SortFunc(all, func(a, b [2]float64) int { return cmp.Compare(a[0], b[0]) })
	return all
}

// OutageSeconds returns the total time without full service. Overlapping failures count once.
func (s *Summary) OutageSeconds() (seconds float64) {
	end := 0.0
	for _, o := range s.Outages() {
		seconds += max(0, o[1]-max(o[0], end))
		end = max(end, o[1])
	}
	return seconds
}

// WriteSummary creates or replaces summary.json.
func (d *Dir) WriteSummary(s Summary) error { return d.replace(summaryFile, s.Encodable()) }

// Encodable returns the summary with values that JSON can represent.
func (s Summary) Encodable() Summary {
	for _, v := range []**float64{&s.TrainLoss, &s.TestLoss, &s.TestAccuracy, &s.TrainRMSE, &s.TestRMSE} {
		if *v != nil && (math.IsNaN(**v) || math.IsInf(**v, 0)) {
			*v = nil
		}
	}
	if s.Failures == nil {
		s.Failures = []Failure{}
	}
	if s.TableConsistency == nil {
		s.TableConsistency = map[string]perdure.Consistency{}
	}
	return s
}

package rundir

import (
	"math"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/words"
)

// Summary is how a run ended. Every field is always in summary.json; what is
// not known is nil, and null there.
type Summary struct {
	Workload    string              `json:"workload"`
	Data        string              `json:"data"`
	Workers     int                 `json:"workers"`
	Servers     int                 `json:"servers"`
	Shards      int                 `json:"shards"`
	Consistency perdure.Consistency `json:"consistency"`
	// TableConsistency has the models of the tables that do not have Consistency;
	// none is {}.
	TableConsistency map[string]perdure.Consistency `json:"table_consistency"`
	Recovery         perdure.Recovery               `json:"recovery"`
	OnOutage         perdure.OnOutage               `json:"on_outage"`
	OutageRows       perdure.OutageRows             `json:"outage_rows"` // "": workers wait in an outage
	StaleScale       perdure.StaleScale             `json:"stale_scale"`
	Seed             uint64                         `json:"seed"`

	Clocks      perdure.Clock `json:"clocks"` // that every slot has finished
	WallSeconds float64       `json:"wall_seconds"`
	TimeSplit   *TimeSplit    `json:"time_split"`

	// What is no finite number is written as null: JSON has no word for it.
	TrainLoss    *float64 `json:"train_loss"`
	TestLoss     *float64 `json:"test_loss"`
	TestAccuracy *float64 `json:"test_accuracy"` // 0 to 1
	TrainRMSE    *float64 `json:"train_rmse"`    // where values are predicted
	TestRMSE     *float64 `json:"test_rmse"`

	UpdatesSent    *int64 `json:"updates_sent"`
	UpdatesApplied *int64 `json:"updates_applied"` // that the model contains
	UpdatesLost    *int64 `json:"updates_lost"`    // that it lacks; a whole job has clocks·workers·shards
	*OlderStates          // nil: there were none
	ClocksRedone   *int64 `json:"clocks_redone"`
	BytesPushed    *int64 `json:"bytes_pushed"`
	BytesPulled    *int64 `json:"bytes_pulled"`

	LogBytes *int64 `json:"log_bytes"` // of the files of the job's update log; nil: it has none of its own

	// Histograms over reads of rows, by the number of clocks.
	ClockDifferential map[string]int64 `json:"clock_differential"`
	ReadLag           map[string]int64 `json:"read_lag"`

	// A histogram over reads of rows, by the number of updates that the row lacked,
	// and the most that the models allow; nil where one of them has no such bound.
	MissingUpdates map[string]int64 `json:"missing_updates"`
	MissingBound   *int64           `json:"missing_bound"`
	BeyondBound    *int64           `json:"beyond_bound"` // nil: no table is vap

	// What the processes of each role used, together; nil: not known.
	Usage  map[string]RoleUsage `json:"usage"`
	Outage *Outage              `json:"outage"` // nil: workers wait in an outage

	Goal *Goal `json:"goal"` // that the exported model reaches; nil: none was asked for, or it does not

	// How often a checkpoint was made at last, or what was saved of rows; nil: the strategy says how
	// often.
	Saving *words.Saving `json:"saving"`

	Failures    []Failure `json:"failures"` // in order of time; none is []
	ModelSHA256 *string   `json:"model_sha256"`
	Findings    []string  `json:"findings,omitempty"` // what the workload has to say of its model; nil: nothing
}

// OlderStates are what slots' programs had saved and were given, where it was older than the last that was
// acknowledged.
type OlderStates struct {
	StatesLost  int64 `json:"states_lost"`            // how many
	StatesOlder int64 `json:"states_older,omitempty"` // by how many clocks at most
}

// Goal is what a run was to reach, and how it did. The model that is exported has in it,
// too, what was done until all had stopped.
type Goal struct {
	Metric  string        `json:"metric"` // accuracy, loss or rmse, on the test set
	Value   float64       `json:"value"`  // that was wanted
	Clock   perdure.Clock `json:"met_at_clock"`
	Seconds float64       `json:"met_at_seconds"` // since the first clock began
	Met     *float64      `json:"met_with"`
	Final   *float64      `json:"final"` // of the exported model
}

// TimeSplit is what the workers' time went to: computing, waiting because the
// consistency model demands it, and communicating. All workers together, in
// fractions that sum to 1, and each slot in seconds, in ascending order.
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

// RoleUsage is what the processes of a role used in a run, those that died too.
type RoleUsage struct {
	CPUSeconds float64 `json:"cpu_seconds"`
	MBPeak     float64 `json:"mb_peak"` // resident memory at its highest sample, 10⁶ bytes
	// 10⁶ bytes; of a process that was killed, up to its last sample. Null where the
	// system does not count them.
	MBWritten *float64 `json:"mb_written"` // handed to the system by writes: to connections and to files
	MBStored  *float64 `json:"mb_stored"`  // of files, brought to storage
}

// Outage is what workers did while shards were out, all together.
type Outage struct {
	Clocks      int64   `json:"clocks"`       // that they ended meanwhile
	StaleRows   int64   `json:"stale_rows"`   // that they read beyond the bound of the consistency model
	QueuedBytes int64   `json:"queued_bytes"` // of updates, the most that one worker had queued
	WaitedS     float64 `json:"waited_s"`     // in which they waited meanwhile
}

// Failure is one fault or death of the run, and what came of it.
type Failure struct {
	Kind      string        `json:"kind"`
	Target    string        `json:"target"`
	AtSeconds float64       `json:"at_seconds"` // since the first clock began
	AtClock   perdure.Clock `json:"at_clock"`

	DetectedAfterMs     *float64 `json:"detected_after_ms"`
	ServingAgainAfterMs *float64 `json:"serving_again_after_ms"` // every shard serves and every slot works
	UpdatesLost         *int64   `json:"updates_lost"`
	ClocksRedone        *int64   `json:"clocks_redone"`
}

// WriteSummary makes or replaces summary.json.
func (d *Dir) WriteSummary(s Summary) error {
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
	return d.replace(summaryFile, s)
}

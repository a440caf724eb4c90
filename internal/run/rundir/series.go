package rundir

import (
	"strconv"
	"strings"

	"github.com/perdure/perdure"
)

// seriesHeader names series.csv's columns, in the order of SeriesPoint's fields.
const seriesHeader = "seconds,clock,train_loss,test_loss,test_accuracy," +
	"clocks_per_second,samples_per_second,mb_pushed_per_second,mb_pulled_per_second," +
	"cpu_server,cpu_worker,cpu_coordinator,mb_server,mb_worker,mb_coordinator," +
	"time_compute,time_staleness,time_communication," +
	"train_rmse,test_rmse," +
	"outage_clocks,stale_rows,outage_queued_mb,outage_waited_s," +
	"backlog"

// SeriesPoint holds the measurements at one time. Unknown values are nil, and their cells are empty. A diverged loss is
// written as NaN or Inf.
type SeriesPoint struct {
	Seconds float64       // since the first clock started
	Clock   perdure.Clock // the job's MinClock

	TrainLoss, TestLoss *float64
	TestAccuracy        *float64 // 0 to 1

	ClocksPerSecond, SamplesPerSecond    *float64
	MBPushedPerSecond, MBPulledPerSecond *float64 // 10⁶ bytes

	// Total of all processes of a role: CPUs in use (1 is one whole core), and resident memory in 10⁶ bytes.
	CPUServer, CPUWorker, CPUCoordinator *float64
	MBServer, MBWorker, MBCoordinator    *float64

	// How the workers spent their time, as fractions that sum to 1.
	TimeCompute, TimeStaleness, TimeCommunication *float64
	TrainRMSE, TestRMSE                           *float64 // of workloads that predict values

	// Totals of all workers since the start, as in Outage; nil if workers wait during outages.
	OutageClocks, StaleRows, OutageQueuedMB, OutageWaitedS *float64

	// Backlog reports whether the rows of an evaluation lacked updates because a shard had just become available and
	// was still applying them. It is nil for rows without an evaluation.
	Backlog *bool
}

// Point appends a row to series.csv.
func (d *Dir) Point(p SeriesPoint) error { return d.append(&d.series, []byte(p.row()+"\n")) }

func (p SeriesPoint) row() string {
	cells := []string{cell(&p.Seconds), strconv.FormatInt(int64(p.Clock), 10)}
	for _, v := range []*float64{
		p.TrainLoss, p.TestLoss, p.TestAccuracy,
		p.ClocksPerSecond, p.SamplesPerSecond, p.MBPushedPerSecond, p.MBPulledPerSecond,
		p.CPUServer, p.CPUWorker, p.CPUCoordinator, p.MBServer, p.MBWorker, p.MBCoordinator,
		p.TimeCompute, p.TimeStaleness, p.TimeCommunication,
		p.TrainRMSE, p.TestRMSE,
		p.OutageClocks, p.StaleRows, p.OutageQueuedMB, p.OutageWaitedS,
	} {
		cells = append(cells, cell(v))
	}
	switch {
	case p.Backlog == nil:
		cells = append(cells, "")
	case *p.Backlog:
		cells = append(cells, "1")
	default:
		cells = append(cells, "0")
	}
	return strings.Join(cells, ",")
}

func cell(v *float64) string {
	if v == nil {
		return ""
	}
	return strconv.FormatFloat(*v, 'f', -1, 64)
}

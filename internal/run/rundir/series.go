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

// SeriesPoint is what was measured at one time. What is not known is nil, and
// its cell is empty; a diverged loss is written NaN or Inf.
type SeriesPoint struct {
	Seconds float64       // since the first clock began
	Clock   perdure.Clock // the job's MinClock

	TrainLoss, TestLoss *float64
	TestAccuracy        *float64 // 0 to 1

	ClocksPerSecond, SamplesPerSecond    *float64
	MBPushedPerSecond, MBPulledPerSecond *float64 // 10⁶ bytes

	// Of all processes of a role together: processors in use (1: one whole core),
	// and resident memory in 10⁶ bytes.
	CPUServer, CPUWorker, CPUCoordinator *float64
	MBServer, MBWorker, MBCoordinator    *float64

	// What the time of all workers together went to, in fractions that sum to 1.
	TimeCompute, TimeStaleness, TimeCommunication *float64
	TrainRMSE, TestRMSE                           *float64 // where values are predicted

	// Of all workers since the start, as in Outage; nil where they wait in an outage.
	OutageClocks, StaleRows, OutageQueuedMB, OutageWaitedS *float64

	// Of an evaluation: the rows lacked updates that had been made, since a shard had come
	// back and was still applying them. nil: the row is of none.
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

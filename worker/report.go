package worker

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
)

// Report holds measurements of a training program. A nil value was not measured.
type Report struct {
	Clock        perdure.Clock `json:"clock"`
	TrainLoss    *float64      `json:"train_loss,omitempty"`
	TestLoss     *float64      `json:"test_loss,omitempty"`
	TestAccuracy *float64      `json:"test_accuracy,omitempty"`
	TrainRMSE    *float64      `json:"train_rmse,omitempty"`
	TestRMSE     *float64      `json:"test_rmse,omitempty"`
	Backlog      bool          `json:"backlog,omitempty"` // the evaluated rows lacked updates that existed
	Untrained    *Untrained    `json:"untrained,omitempty"`
	SavesOnTerm  bool          `json:"saves_on_term,omitempty"` // the program saves its work when it receives SIGTERM
	Warning      string        `json:"warning,omitempty"`       // for the job's console
	// Waited is how long the program has waited since its last report of it. From the first one on, only that counts as
	// waiting, for programs that call the client in one thread while another one computes.
	Waited *time.Duration `json:"waited_ns,omitempty"`
}

// Untrained is the part of its data that a slot did not train on because the job ended first.
type Untrained struct {
	Left   *int64 `json:"left,omitempty"`   // remaining batches or steps; nil: unknown
	Total  int64  `json:"of,omitempty"`     // total number
	Unit   string `json:"unit,omitempty"`   // "steps"; any other value means batches
	Unsent int64  `json:"unsent,omitempty"` // steps since the last outer step, which have no effect
}

// Report sends measurements to the coordinator for display. It does not wait. An observer has no slot to report for:
// its report is dropped.
func (c *Client) Report(r Report) {
	l := c.lock()
	defer c.mu.Unlock()
	if l.slot < 0 {
		c.cfg.Log.Warn("dropped a report, because an observer has no slot to report for")
		return
	}
	m := wire.Report{
		Clock: r.Clock, TrainLoss: r.TrainLoss, TestLoss: r.TestLoss, TestAccuracy: r.TestAccuracy,
		TrainRMSE: r.TrainRMSE, TestRMSE: r.TestRMSE, Backlog: r.Backlog, Untrained: (*wire.Untrained)(r.Untrained),
		SavesOnTerm: r.SavesOnTerm, Warning: r.Warning,
	}
	if r.Waited != nil {
		l.time.AddOwn(*r.Waited)
		if m == (wire.Report{Clock: r.Clock}) {
			return
		}
	}
	l.report(m)
}

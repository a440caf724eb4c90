package worker

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
)

// Report is what a training program measured. Values that are nil were not measured.
type Report struct {
	Clock        perdure.Clock `json:"clock"`
	TrainLoss    *float64      `json:"train_loss,omitempty"`
	TestLoss     *float64      `json:"test_loss,omitempty"`
	TestAccuracy *float64      `json:"test_accuracy,omitempty"`
	TrainRMSE    *float64      `json:"train_rmse,omitempty"`
	TestRMSE     *float64      `json:"test_rmse,omitempty"`
	Backlog      bool          `json:"backlog,omitempty"` // the evaluated rows lacked updates that had been made
	Untrained    *Untrained    `json:"untrained,omitempty"`
}

// Untrained is the part of its data that a slot has not trained, since the job ended first.
type Untrained struct {
	Left   *int64 `json:"left,omitempty"`   // batches or steps; nil: unknown
	Total  int64  `json:"of,omitempty"`     // of how many
	Unit   string `json:"unit,omitempty"`   // "steps", or anything else: batches
	Unsent int64  `json:"unsent,omitempty"` // steps since the last outer step, which do not count
}

// Report sends the coordinator what the program measured, for people to see. It does not wait. An
// observer has no slot to report about: its report is not sent.
func (c *Client) Report(r Report) {
	l := c.lock()
	defer c.mu.Unlock()
	if l.slot < 0 {
		c.cfg.Log.Warn("an observer's report is not sent: it has no slot to report of")
		return
	}
	l.report(wire.Report{
		Clock: r.Clock, TrainLoss: r.TrainLoss, TestLoss: r.TestLoss, TestAccuracy: r.TestAccuracy,
		TrainRMSE: r.TrainRMSE, TestRMSE: r.TestRMSE, Backlog: r.Backlog, Untrained: (*wire.Untrained)(r.Untrained),
	})
}

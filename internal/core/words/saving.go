package words

import "github.com/perdure/perdure"

// RowSaving is what becomes of rows that are saved by themselves, of a job so far.
type RowSaving struct {
	Bytes         int64   `json:"bytes"`          // of the files that were written
	PausedSeconds float64 `json:"paused_seconds"` // for which training stood while rows were chosen, over all shards

	// Of lost shards' rows: how many came back as they were last saved, and how many as they
	// were at the beginning, since they were never saved; for how many clocks they had not
	// been saved when they were lost, all together and the most of any.
	Restored  int64         `json:"restored"`
	Initial   int64         `json:"initial"`
	AgeClocks int64         `json:"age_clocks"`
	Oldest    perdure.Clock `json:"oldest"`
	// PartlyLost counts updates, beside those that are lost, that some of these rows lack and
	// others do not.
	PartlyLost int64 `json:"partly_lost"`
}

// MeanAge is for how many clocks a row that came back had not been saved, in the mean.
func (r *RowSaving) MeanAge() float64 {
	if n := r.Restored + r.Initial; n > 0 {
		return float64(r.AgeClocks) / float64(n)
	}
	return 0
}

// Resources are what a process has in use, as its Go runtime counts it.
type Resources struct {
	Goroutines int   `json:"goroutines"`
	HeapBytes  int64 `json:"heap_bytes"` // of objects that live, or that no collection has freed yet
}

// Saving is how often a checkpoint is made where the strategy leaves that open, and what
// it is chosen by; or, where rows are saved by themselves, what was saved so far.
type Saving struct {
	Failures int64   `json:"failures"`   // after which rows were taken from a checkpoint
	Ran      float64 `json:"ran_s"`      // how long the job had been going on when it was chosen, in seconds
	Interval float64 `json:"interval_s"` // between two checkpoints, in seconds; 0: not chosen yet
	Why      string  `json:"why"`        // in words

	Rows *RowSaving `json:"rows,omitempty"` // nil: rows are not saved by themselves
}

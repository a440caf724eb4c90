package protocol

import "github.com/perdure/perdure"

// RowSaving counts saves and restores of single rows, over the whole job.
type RowSaving struct {
	Bytes         int64   `json:"bytes"`          // size of the files written
	PausedSeconds float64 `json:"paused_seconds"` // pauses of training while rows were selected, over all shards

	// Rows of lost shards: how many were restored as last saved, how many got their initial values
	// because they had never been saved, and the age of the restored values in clocks, in sum and at most.
	Restored  int64         `json:"restored"`
	Initial   int64         `json:"initial"`
	AgeClocks int64         `json:"age_clocks"`
	Oldest    perdure.Clock `json:"oldest"`
	// PartlyLost counts updates that some of these rows lack and others contain. Lost updates are
	// counted separately.
	PartlyLost int64 `json:"partly_lost"`
}

// MeanAge returns the mean age of restored rows, in clocks.
func (r *RowSaving) MeanAge() float64 {
	if n := r.Restored + r.Initial; n > 0 {
		return float64(r.AgeClocks) / float64(n)
	}
	return 0
}

// Resources are the goroutines and memory of a process, as its Go runtime counts them.
type Resources struct {
	Goroutines int   `json:"goroutines"`
	HeapBytes  int64 `json:"heap_bytes"` // of live objects and of those not yet collected
}

// Saving is the interval between checkpoints that the coordinator chose, with its reasons, where the
// strategy leaves the interval open; where single rows are saved, it counts the saves.
type Saving struct {
	Failures int64   `json:"failures"`   // failures after which rows were restored from a checkpoint
	Ran      float64 `json:"ran_s"`      // age of the job when the interval was chosen, in seconds
	Interval float64 `json:"interval_s"` // between two checkpoints, in seconds; 0: not chosen yet
	Why      string  `json:"why"`        // explanation for the user

	Rows *RowSaving `json:"rows,omitempty"` // nil: single rows are not saved
}

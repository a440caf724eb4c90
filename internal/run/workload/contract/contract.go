// Package contract defines the interface between a training program and the worker that runs it.
//
// A [Workload] says which tables it trains, computes one clock for one slot at
// a time, whose share of the data it is told, through [Tables], and can judge a model. It knows nothing of servers,
// shards or failures: the worker gives it rows and takes its deltas.
//
// A clock is a pure function of (seed, share, clock) and of the rows that it
// Gets: a worker may be asked for the same clock again after a failure, in this
// process or in another, and must then compute the same.
//
// For workloads whose clocks are batches, [Order] says which examples a slot computes on in a clock.
//
// Package workload gives these types again under its own name, beside the list
// of all workloads; this package is apart from it so that workloads can import
// it.
package contract

import (
	"context"
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/dataset"
)

// Params is what a user chooses about a training program. All processes of a
// job must be given the same.
type Params struct {
	Seed    uint64          `json:"Seed"`
	Slots   int             `json:"Slots"`            // when the job starts, at least 1
	Batch   int             `json:"Batch"`            // examples per slot and clock; 0 if the workload has no batches
	Rule    perdure.Rule    `json:"Rule"`             // with its learning rate; mf chooses one if it is 0
	Sparse  bool            `json:"Sparse"`           // the tables are sparse, if the workload supports that
	Combine perdure.Combine `json:"Combine,omitzero"` // how softmax and cnn combine the slots' updates of a clock
	Data    string          `json:"Data"`             // directory or file of the data; "" is the workload's own
	Factors Factors         `json:"Factors,omitzero"` // of workload mf
	Topics  TopicModel      `json:"Topics,omitzero"`  // of workload lda
	Bowl    Bowl            `json:"Bowl,omitzero"`    // of workload quadratic
	Convex  Convex          `json:"Convex,omitzero"`  // of workload softmax

	// Marked says that the data's file says that it is made up. It is found when the data are opened.
	Marked bool `json:"Marked,omitzero"`

	// Lossy says that a death may take rows, or updates that others count on. It is the job's, and nobody chooses it.
	Lossy bool `json:"-"`

	// Steps says that all slots read the same rows in a clock, as under bsp, but for a loss within it. It is the job's.
	Steps bool `json:"-"`

	// Trained is what the file of a model says that is to judge all examples of the data, whose labels need not be
	// known: the Constants of the workload that made it, among others. nil: the data are to train on.
	Trained map[string]string `json:"-"`

	FinalReLU bool `json:"FinalReLU,omitzero"` // of workload cnn: scores below 0 are 0
	ByLayer   bool `json:"ByLayer,omitzero"`   // of workload cnn: each table is whole
}

// Factors is what a user chooses about a matrix factorisation.
type Factors struct {
	Rank          int     `json:"Rank"`             // values in each row
	L2            float64 `json:"L2"`               // of the rows, for each rating
	ClockFraction float64 `json:"ClockFraction"`    // of a slot's ratings, that a clock goes through
	WholeUsers    bool    `json:"WholeUsers"`       // a clock goes through all ratings of a run of users
	Solver        string  `json:"Solver,omitempty"` // how rows are found: "" is sgd
	// Implicit is for als: values are counts of observations, with confidence 1 + Implicit·value.
	Implicit float64 `json:"Implicit,omitempty"`
}

// TopicModel is what a user chooses about a topic model.
type TopicModel struct {
	Topics        int     `json:"Topics"`
	Alpha         float64 `json:"Alpha"`         // Dirichlet prior of a document's topics, for each topic
	Beta          float64 `json:"Beta"`          // Dirichlet prior of a topic's words, for each word
	ClockFraction float64 `json:"ClockFraction"` // of a slot's documents, that a clock goes through
	Rebuild       bool    `json:"Rebuild"`       // counts of rows that were lost are made right again

	// OnTable says that documents' topics are on servers alone: no process remembers them.
	OnTable bool `json:"OnTable,omitzero"`
}

// Bowl is what a user chooses about a quadratic function.
type Bowl struct {
	Rows      int     `json:"Rows"`
	Dim       int     `json:"Dim"`
	Condition float64 `json:"Condition"` // the largest curvature by the least
	Noise     float64 `json:"Noise"`     // deviation of what each value of a gradient is off
}

// Convex is what a user chooses to have a problem of which theory says more.
type Convex struct {
	L2        float64 `json:"L2"`        // the loss has L2/2 times the squares of the weights, without the bias
	FullBatch bool    `json:"FullBatch"` // a clock goes through all examples of a slot, and Batch is 0
}

// maxBatch is the largest batch: far beyond use, and small enough that with
// perdure.MaxSlots slots a position in the data never overflows.
const maxBatch = 1 << 20

// Validate reports what is wrong with the parameters, if anything, without
// looking at the data.
func (p Params) Validate() error {
	if p.Slots < 1 || p.Slots > perdure.MaxSlots {
		return fmt.Errorf("%w: %d workers; choose 1 to %d", perdure.ErrUsage, p.Slots, perdure.MaxSlots)
	}
	return p.Rule.Validate()
}

// DataName is how people call the data. What a file says of itself, that it is made up, goes with it.
func (p Params) DataName() string {
	switch {
	case p.Data == "":
		return "embedded"
	case p.Marked:
		return dataset.MadeUp(p.Data)
	}
	return p.Data
}

// ValidateBatch reports what is wrong with the batch of a workload that has
// batches, if anything.
func (p Params) ValidateBatch() error {
	if p.Batch < 1 || p.Batch > maxBatch {
		return fmt.Errorf("%w: batch of %d examples; choose 1 to %d", perdure.ErrUsage, p.Batch, maxBatch)
	}
	return nil
}

// Tables is a workload's way to the model: the worker's Get and Inc, for dense
// tables and sparse ones alike. Rows are runs of whole rows or lists of them:
// len(dst) is the number of rows times the table's Dim, and the i-th row, first+i
// or rows[i], is dst[i*Dim : (i+1)*Dim].
type Tables interface {
	// Get reads rows at the slot's present clock, as fresh as the table's
	// consistency model demands.
	Get(ctx context.Context, table string, first perdure.RowID, dst []float32) error
	// GetRows is Get for a list of rows, which it does not keep.
	GetRows(ctx context.Context, table string, rows []perdure.RowID, dst []float32) error
	// Inc adds to the slot's update for its present clock. It does not keep delta.
	Inc(ctx context.Context, table string, first perdure.RowID, delta []float32) error
	// IncRows is Inc for a list of rows, none of them twice. It keeps nothing.
	IncRows(ctx context.Context, table string, rows []perdure.RowID, delta []float32) error
}

// Share says which part of the data is a slot's in a clock: that of the Rank-th, from
// 0, of the Of slots that take part in it.
type Share struct{ Rank, Of int }

// Validate reports what is wrong with the share of a clock, if anything.
func (s Share) Validate(clock perdure.Clock) error {
	if s.Rank < 0 || s.Rank >= s.Of || s.Of > perdure.MaxSlots || clock < 0 {
		return fmt.Errorf("%w: share %d of %d, clock %d", perdure.ErrUsage, s.Rank, s.Of, clock)
	}
	return nil
}

// Metrics is what one slot learned about its training in one clock.
type Metrics struct {
	// TrainLoss is the mean over the clock's examples, at the rows that they were
	// computed with; NaN or Inf once training diverged, or without examples.
	TrainLoss float64
	TrainRMSE float64 // likewise the root of the mean squared error; NaN where there is none
	Samples   int     // examples computed on
}

// Eval judges a model on examples that it was not trained on. What does not
// apply to the workload is NaN.
type Eval struct {
	Loss     float64 // mean, lower is better
	Accuracy float64 // fraction of examples classified right, 0 to 1
	RMSE     float64 // root of the mean squared error of predicted values
}

// Description says what a workload works on, for people.
type Description struct {
	Name       string // of the workload
	Data       string // name of the data set
	Train      int    // examples to train on, over all slots
	Test       int    // examples to evaluate on
	Parameters int    // float32 values in all tables
	DataBytes  int64  // that the data take in memory
	Marked     bool   // the data say that they are made up

	Rate float64 // the learning rate at clock 0, also where the workload chose it
}

// Teller is a workload that has more to say of a model than how good it is.
type Teller interface {
	// Tell Gets the whole model and says what it has found, in lines for people, the first of which matters most.
	Tell(ctx context.Context, t Tables) ([]string, error)
}

// Mender is a workload whose tables may have values, after a loss of rows, that no model has.
type Mender interface {
	// Mend changes the values of a whole model, by table, before they are written to its file.
	Mend(tables map[string][]float32)
}

// Classifier is a workload that says of which class an example is.
type Classifier interface {
	// Classify Gets the whole model, and gives each test example's scores, one for each class, the highest that of the
	// class that it seems to be of; and the class that it is of, or as many as there are where that is not known. The
	// slice is valid until each returns.
	Classify(ctx context.Context, t Tables, each func(scores []float32, label uint8)) error
}

// Sampled is a workload that can be judged on some of its test examples.
type Sampled interface {
	// Sample has Evaluate judge a model on n test examples from now on, evenly spread over those that there are; on
	// all, if there are no more.
	Sample(n int)
}

// Remembering is a workload whose processes go by what they have drawn themselves, beside what rows say.
type Remembering interface {
	// Memory is for how many clocks a process must train until it knows all that it would, had it trained from the
	// beginning.
	Memory() perdure.Clock
}

// Heir is a workload that asks more of a model which it is to begin with than that its tables are as large.
type Heir interface {
	// Inherits Gets the whole model, whose constants are given too, and says why training cannot begin with it; nil:
	// it can.
	Inherits(ctx context.Context, t Tables, constants map[string]string) error
}

// Workload is a training program. It keeps scratch memory, so that a clock
// allocates nothing: one goroutine at a time may use it, and each worker has
// its own.
type Workload interface {
	// Describe says what the workload works on.
	Describe() Description
	// Digest tells what it works on apart from other data of the same name: the data set's.
	Digest() string
	// Constants are what predictions need beside the tables, by name; nil: nothing.
	Constants() map[string]string
	// Tables lists the tables that the job must have. They have no consistency
	// model: that is the job's to choose.
	Tables() []perdure.TableSpec
	// Step computes one clock of the slot that has that share of the data: Gets, then Incs. It does not call
	// Clock; that is for its caller. Errors of t are returned as they are, so
	// that errors.Is finds perdure.ErrRolledBack.
	Step(ctx context.Context, t Tables, share Share, clock perdure.Clock) (Metrics, error)
	// Evaluate Gets the whole model and judges it on the test examples.
	Evaluate(ctx context.Context, t Tables) (Eval, error)
}

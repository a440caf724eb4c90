// Package api defines the interface between a training program and the worker that runs it.
//
// A [Workload] declares the tables that it trains, computes one clock for one slot at a time, and evaluates models. It
// accesses the model through [Tables] and receives its share of the data as an argument. It is independent of servers,
// shards and failures.
//
// A clock is a pure function of (seed, share, clock) and of the rows that it Gets. After a failure the worker may
// request the same clock again, in this or another process, and the result must be the same.
//
// For workloads with batches, [Order] determines the examples that a slot uses in a clock.
//
// Package workload aliases these types next to the list of all workloads. This package is separate so that workloads
// can import it.
package api

import (
	"context"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/dataset"
)

// Params holds the user's choices for a training program. All processes of a job must have the same Params.
type Params struct {
	Seed    uint64          `json:"Seed"`
	Slots   int             `json:"Slots"`            // when the job starts, at least 1
	Batch   int             `json:"Batch"`            // examples per slot and clock; 0 if the workload has no batches
	Rule    perdure.Rule    `json:"Rule"`             // with its learning rate; mf chooses one if it is 0
	Sparse  bool            `json:"Sparse"`           // the tables are sparse, if the workload supports that
	Combine perdure.Combine `json:"Combine,omitzero"` // how softmax and cnn combine the slots' updates of a clock
	Data    string          `json:"Data"`             // directory or file of the data; "": the default data
	Factors Factors         `json:"Factors,omitzero"` // for workload mf
	Topics  TopicModel      `json:"Topics,omitzero"`  // for workload lda
	Bowl    Quadratic       `json:"Bowl,omitzero"`    // for workload quadratic
	Convex  SoftmaxParams   `json:"Convex,omitzero"`  // for workload softmax

	// Marked reports whether the data file declares itself synthetic. It is set when the data are opened.
	Marked bool `json:"Marked,omitzero"`

	// Lossy reports whether a process death may lose rows, or updates that others depend on. The job determines it.
	Lossy bool `json:"-"`

	// Steps reports whether all slots read the same rows in a clock, as under bsp, unless rows are lost within the
	// clock. The job determines it.
	Steps bool `json:"-"`

	// Trained holds the metadata of a model file for evaluation on all examples of the data, whose labels may be
	// unknown. It includes the Constants of the workload that made the model. nil: the data are for training.
	Trained map[string]string `json:"-"`

	FinalReLU bool `json:"FinalReLU,omitzero"` // for workload cnn: scores below 0 become 0
	ByLayer   bool `json:"ByLayer,omitzero"`   // for workload cnn: each table is on one shard
}

// Factors holds the user's choices for a matrix factorisation.
type Factors struct {
	Rank          int     `json:"Rank"`             // values in each row
	L2            float64 `json:"L2"`               // regularization of the rows, per rating
	ClockFraction float64 `json:"ClockFraction"`    // fraction of a slot's ratings that one clock processes
	WholeUsers    bool    `json:"WholeUsers"`       // a clock processes all ratings of consecutive users
	Solver        string  `json:"Solver,omitempty"` // how rows are computed: "" means sgd
	// Implicit is for als: values are counts of observations, with confidence 1 + Implicit·value.
	Implicit float64 `json:"Implicit,omitempty"`
}

// TopicModel holds the user's choices for a topic model.
type TopicModel struct {
	Topics        int     `json:"Topics"`
	Alpha         float64 `json:"Alpha"`         // Dirichlet prior of a document's topics, for each topic
	Beta          float64 `json:"Beta"`          // Dirichlet prior of a topic's words, for each word
	ClockFraction float64 `json:"ClockFraction"` // fraction of a slot's documents that one clock processes
	Rebuild       bool    `json:"Rebuild"`       // counts of lost rows are rebuilt

	// OnTable reports whether only servers store the documents' topics: no process keeps a copy.
	OnTable bool `json:"OnTable,omitzero"`
}

// Quadratic holds the user's choices for a quadratic function.
type Quadratic struct {
	Rows      int     `json:"Rows"`
	Dim       int     `json:"Dim"`
	Condition float64 `json:"Condition"` // largest curvature divided by the smallest
	Noise     float64 `json:"Noise"`     // standard deviation of the noise in each gradient value
}

// SoftmaxParams holds optional changes to softmax's problem that give it stronger theoretical guarantees.
type SoftmaxParams struct {
	L2        float64 `json:"L2"`        // the loss includes L2/2 times the sum of squared weights, without the bias
	FullBatch bool    `json:"FullBatch"` // a clock processes all examples of a slot; Batch is 0
}

// maxBatch is the max batch size. It is far above practical sizes, but small enough that positions in the data cannot
// overflow with perdure.MaxSlots slots.
const maxBatch = 1 << 20

// Validate checks the parameters without reading the data.
func (p Params) Validate() error {
	if p.Slots < 1 || p.Slots > perdure.MaxSlots {
		return perdure.Usagef("invalid number of workers %d; choose 1 to %d", p.Slots, perdure.MaxSlots)
	}
	return p.Rule.Validate()
}

// ValidateGradients is Validate for a workload whose updates are gradients.
func (p Params) ValidateGradients(workload string) error {
	if k := p.Rule.Kind; k == perdure.RuleAdd || k == perdure.RuleSet {
		return perdure.Usagef("%s: rule %s does not descend along gradients; choose a rule that does, for example sgd",
			workload, k)
	}
	return p.Validate()
}

// DataName returns the display name of the data. It includes a mark if the file declares itself synthetic.
func (p Params) DataName() string {
	switch {
	case p.Data == "":
		return "embedded"
	case p.Marked:
		return dataset.MarkedName(p.Data)
	}
	return p.Data
}

// ValidateBatch checks the batch size of a workload that has batches.
func (p Params) ValidateBatch() error {
	if p.Batch < 1 || p.Batch > maxBatch {
		return perdure.Usagef("invalid batch of %d examples; choose 1 to %d", p.Batch, maxBatch)
	}
	return nil
}

// Tables is a workload's access to the model: the worker's Get and Inc, for dense and sparse tables. Rows are given as
// a run or as a list. len(dst) is the number of rows times the table's Dim. The i-th row, first+i or rows[i], is
// dst[i*Dim : (i+1)*Dim].
type Tables interface {
	// Get reads rows at the slot's current clock, as fresh as the table's consistency model requires.
	Get(ctx context.Context, table string, first perdure.RowID, dst []float32) error
	// GetRows is Get for a list of rows. It does not retain the list.
	GetRows(ctx context.Context, table string, rows []perdure.RowID, dst []float32) error
	// Inc adds delta to the slot's update for its current clock. It does not retain delta.
	Inc(ctx context.Context, table string, first perdure.RowID, delta []float32) error
	// IncRows is Inc for a list of distinct rows. It does not retain its arguments.
	IncRows(ctx context.Context, table string, rows []perdure.RowID, delta []float32) error
}

// Share identifies a slot's part of the data in a clock: part Rank, from 0, of the Of parts of the participating slots.
type Share struct{ Rank, Of int }

// Validate checks the share for a clock.
func (s Share) Validate(clock perdure.Clock) error {
	if s.Rank < 0 || s.Rank >= s.Of || s.Of > perdure.MaxSlots || clock < 0 {
		return perdure.Usagef("invalid share %d of %d, or clock %d", s.Rank, s.Of, clock)
	}
	return nil
}

// Metrics holds one slot's training results of one clock.
type Metrics struct {
	// TrainLoss is the mean loss over the clock's examples, at the rows used to compute them. It is NaN or Inf after
	// divergence or without examples.
	TrainLoss float64
	TrainRMSE float64 // the same for the root mean squared error; NaN if not applicable
	Samples   int     // examples computed on
}

// Eval holds a model's results on held-out examples. Measures that do not apply to the workload are NaN.
type Eval struct {
	Loss     float64 // mean, lower is better
	Accuracy float64 // fraction of examples classified correctly, 0 to 1
	RMSE     float64 // root mean squared error of predicted values
}

// Description describes a workload and its data.
type Description struct {
	Name       string // of the workload
	Data       string // name of the data set
	Train      int    // examples to train on, over all slots
	Test       int    // examples to evaluate on
	Parameters int    // float32 values in all tables
	DataBytes  int64  // memory that the data use
	Marked     bool   // the data declare themselves synthetic

	Rate float64 // the learning rate at clock 0, including one that the workload chose
}

// FindingsReporter is a workload that can describe a model in addition to evaluating it.
type FindingsReporter interface {
	// Findings Gets the whole model and returns findings as lines of text, the most important first.
	Findings(ctx context.Context, t Tables) ([]string, error)
}

// Repairer is a workload whose tables can hold values that no valid model has, after rows were lost.
type Repairer interface {
	// Repair corrects the values of a whole model, by table, before they are written to its file.
	Repair(tables map[string][]float32)
}

// Classifier is a workload that classifies examples.
type Classifier interface {
	// Classify Gets the whole model and calls each for every test example, with its scores (one per class, the highest
	// for the predicted class) and its true class. The class is the number of classes if unknown. The slice is valid
	// until each returns.
	Classify(ctx context.Context, t Tables, each func(scores []float32, label uint8)) error
}

// SampledEvaluator is a workload that can evaluate on a subset of its test examples.
type SampledEvaluator interface {
	// Sample limits later calls of Evaluate to n test examples, evenly spread over all. With n or fewer test examples,
	// all are used.
	Sample(n int)
}

// Stateful is a workload whose processes use their own earlier samples in addition to the rows.
type Stateful interface {
	// Memory returns the number of clocks after which a new process knows as much as if it had trained from the
	// beginning.
	Memory() perdure.Clock
}

// WarmStartChecker is a workload with additional requirements, beyond table sizes, for a model that training starts
// from.
type WarmStartChecker interface {
	// CheckWarmStart Gets the whole model and checks whether training can start from it. constants are the model's
	// constants.
	CheckWarmStart(ctx context.Context, t Tables, constants map[string]string) error
}

// Workload is a training program. It reuses scratch memory, so that a clock allocates nothing. It must be used by only
// one goroutine at a time, and each worker has its own.
type Workload interface {
	// Describe describes the workload and its data.
	Describe() Description
	// Digest identifies the data set, to distinguish it from other data of the same name.
	Digest() string
	// Constants returns the values that predictions need in addition to the tables, by name. It may be nil.
	Constants() map[string]string
	// Tables lists the tables that the job must have. The job sets their consistency model.
	Tables() []perdure.TableSpec
	// Step computes one clock of the slot with a share of the data: first Gets, then Incs. The caller calls Clock.
	// Errors of t are returned so that errors.Is finds perdure.ErrRolledBack.
	Step(ctx context.Context, t Tables, share Share, clock perdure.Clock) (Metrics, error)
	// Evaluate Gets the whole model and evaluates it on the test examples.
	Evaluate(ctx context.Context, t Tables) (Eval, error)
}

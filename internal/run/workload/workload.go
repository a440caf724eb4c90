// Package workload lists the built-in training programs and opens them by name. The list is fixed: programs cannot
// register others. The package also implements the smallest program, quadratic.
//
// Package api defines the interface of a workload. This package aliases its types, so that users of workloads import
// only one package.
package workload

import (
	"fmt"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/workload/api"
	"github.com/perdure/perdure/internal/run/workload/cnn"
	"github.com/perdure/perdure/internal/run/workload/lda"
	"github.com/perdure/perdure/internal/run/workload/logreg"
	"github.com/perdure/perdure/internal/run/workload/mf"
)

// Types of package api.
type (
	// Params holds the user's choices for a training program.
	Params = api.Params
	// Factors holds the user's choices for a matrix factorisation.
	Factors = api.Factors
	// TopicModel holds the user's choices for a topic model.
	TopicModel = api.TopicModel
	// SoftmaxParams holds optional changes to softmax's problem that give it stronger theoretical guarantees.
	SoftmaxParams = api.SoftmaxParams
	// Quadratic holds the user's choices for a quadratic function.
	Quadratic = api.Quadratic
	// Tables is a workload's access to the model.
	Tables = api.Tables
	// Share identifies a slot's part of the data in a clock.
	Share = api.Share
	// Metrics holds one slot's training results of one clock.
	Metrics = api.Metrics
	// Eval holds a model's results on held-out examples.
	Eval = api.Eval
	// Description describes a workload and its data.
	Description = api.Description
	// FindingsReporter is a workload that can describe a model in addition to evaluating it.
	FindingsReporter = api.FindingsReporter
	// Repairer is a workload whose tables can hold values that no valid model has.
	Repairer = api.Repairer
	// Classifier is a workload that classifies examples.
	Classifier = api.Classifier
	// SampledEvaluator is a workload that can evaluate on a subset of its test examples.
	SampledEvaluator = api.SampledEvaluator
	// Stateful is a workload whose processes use their own earlier samples in addition to the rows.
	Stateful = api.Stateful
	// WarmStartChecker is a workload with additional requirements, beyond table sizes, for a model that training starts
	// from.
	WarmStartChecker = api.WarmStartChecker
	// Workload is a training program.
	Workload = api.Workload
)

// Info describes a workload before it is opened.
type Info struct {
	Name string
	Line string // one line for people
	// Defaults: number of clocks, batch size (0: no batches), the rate for each supported rule (0: chosen to fit the
	// data), factors (zero: none) and data ("": the built-in data).
	Clocks  int64 // to train for
	Batch   int
	Rates   map[perdure.RuleKind]float64
	Rule    perdure.RuleKind // "" means sgd
	Factors Factors
	Topics  TopicModel
	Bowl    Quadratic
	Data    string
	// Combines reports whether the servers may combine the slots' updates of a clock: each is the mean over its
	// examples.
	Combines bool
	// Measures are the results of an evaluation: some of accuracy, loss and rmse.
	Measures []string

	Solvers []Solver // alternative solvers, see Info.Solve; nil: only one
}

// Solver is a way to train a workload, with its defaults.
type Solver struct {
	Name    string
	Clocks  int64
	Factors Factors
}

// Defaults returns the default choices as flags.
func (i Info) Defaults() string {
	if f := i.Factors; f != (Factors{}) {
		text := fmt.Sprintf("--data %s --rank %d --l2 %g --clock-fraction %g, --lr depends on the data", i.Data, f.Rank,
			f.L2, f.ClockFraction)
		for _, s := range i.Solvers[1:] {
			text += fmt.Sprintf("; with --solver %s --rank %d --l2 %g --clock-fraction %g --clocks %d", s.Name,
				s.Factors.Rank, s.Factors.L2, s.Factors.ClockFraction, s.Clocks)
		}
		return text
	}
	if t := i.Topics; t != (TopicModel{}) {
		return fmt.Sprintf("--data %s --topics %d --alpha %g --beta %g --clock-fraction %g", i.Data, t.Topics, t.Alpha,
			t.Beta, t.ClockFraction)
	}
	if b := i.Bowl; b != (Quadratic{}) {
		return fmt.Sprintf("--rows %d --dim %d --condition %g, --lr depends on the condition", b.Rows, b.Dim,
			b.Condition)
	}
	if i.Rule != "" {
		return fmt.Sprintf("--data %s --batch %d --rule %s --lr %g", i.Data, i.Batch, i.Rule, i.Rates[i.Rule])
	}
	return fmt.Sprintf("--batch %d --lr %g", i.Batch, i.Rates[perdure.RuleSGD])
}

// Solve returns the defaults with a solver; "" is the workload's default solver.
func (i Info) Solve(name string) (Info, error) {
	if name == "" || len(i.Solvers) > 0 && name == i.Solvers[0].Name {
		return i, nil
	}
	known := make([]string, len(i.Solvers))
	for k, s := range i.Solvers {
		if known[k] = s.Name; s.Name == name {
			i.Clocks, i.Factors, i.Rates = s.Clocks, s.Factors, nil
			return i, nil
		}
	}
	if len(known) == 0 {
		return i, perdure.Usagef("invalid solver %q: workload %s has no solvers to choose from; remove that option",
			name, i.Name)
	}
	return i, perdure.Usagef("unknown solver %q; choose %s", name, strings.Join(known, " or "))
}

type registration struct {
	Info
	open func(Params) (Workload, error)
}

var registrations = []registration{
	{
		Info{
			Name: logreg.SoftmaxName, Line: "logistic regression on examples in classes (Fashion-MNIST, CoverType): " +
				"small, convex, quick",
			Batch: logreg.SoftmaxBatch, Rates: logreg.SoftmaxRates, Measures: []string{"accuracy", "loss"},
			Clocks: 300, Combines: true,
		},
		logreg.OpenSoftmax,
	},
	{
		Info{
			Name: cnn.Name, Line: "a convolutional network on images of 28 × 28 pixels (Fashion-MNIST, MNIST): not " +
				"convex, long clocks",
			Batch: cnn.DefaultBatch, Rates: cnn.Rates, Measures: []string{"accuracy", "loss"},
			Clocks: 2000, Combines: true,
		},
		cnn.Open,
	},
	{
		Info{
			Name: mf.Name, Line: "matrix factorisation of ratings (Jester, or synthetic like Netflix's): two tables, " +
				"rows read by ID",
			Factors: mf.Defaults, Data: mf.DefaultData, Measures: []string{"loss", "rmse"}, Clocks: 300,
			Solvers: []Solver{
				{mf.SolverSGD, 300, mf.Defaults}, {mf.SolverALS, mf.AlternatingClocks, mf.AlternatingDefaults},
			},
		},
		mf.Open,
	},
	{
		Info{
			Name: logreg.Name, Line: "logistic regression on sparse features (libsvm, click logs, texts): sparse " +
				"tables, rows read by ID",
			Batch: logreg.DefaultBatch, Rule: logreg.DefaultRule, Rates: logreg.Rates, Data: logreg.DefaultData,
			Measures: []string{"accuracy", "loss"}, Clocks: 500,
		},
		logreg.Open,
	},
	{
		Info{
			Name: lda.Name, Line: "topics of documents by Gibbs sampling (texts, LDA-C): counts, and rows " +
				"that slots own",
			Topics: lda.Defaults, Data: lda.DefaultData, Measures: []string{"loss"}, Clocks: 100,
		},
		lda.Open,
	},
	{
		Info{
			Name: QuadraticName, Line: "a quadratic function with a known minimum and contraction: for theory and " +
				"teaching",
			Bowl: DefaultQuadratic, Measures: []string{"loss", "rmse"}, Clocks: 200,
		},
		openQuadratic,
	},
}

// List returns all workloads.
func List() []Info {
	list := make([]Info, len(registrations))
	for i, e := range registrations {
		list[i] = e.Info
	}
	return list
}

// Find returns the workload with the given name.
func Find(name string) (Info, error) {
	e, err := find(name)
	return e.Info, err
}

// New opens a workload: it checks the parameters and loads the data. Error messages for users are a single line. They
// wrap perdure.ErrUsage or come from package dataset.
func New(name string, p Params) (Workload, error) {
	e, err := find(name)
	if err != nil {
		return nil, err
	}
	if p.Combine != perdure.CombineEach && !e.Combines {
		return nil, perdure.Usagef("%s: combine %s works only for softmax and cnn, whose updates are means over "+
			"examples; remove it", name, p.Combine)
	}
	for _, o := range []struct {
		set  bool
		not  bool // the workload has no such option
		what string
	}{
		{p.Factors != Factors{}, name != mf.Name, "user or item rows: remove rank, l2, clock fraction and whole users"},
		{p.Topics != TopicModel{}, name != lda.Name, "topics: remove the options that apply to them"},
		{p.FinalReLU, name != cnn.Name, "final ReLU: remove that option"},
		{p.ByLayer, name != cnn.Name, "layers to partition by: remove that option"},
		{p.Batch != 0, e.Batch == 0, "batches: remove the batch size"},
		{p.Data != "", name == QuadraticName, "data: remove that option"},
	} {
		if o.set && o.not {
			return nil, perdure.Usagef("%s has no %s", name, o.what)
		}
	}
	return e.open(p)
}

func find(name string) (registration, error) {
	known := make([]string, len(registrations))
	for i, e := range registrations {
		if e.Name == name {
			return e, nil
		}
		known[i] = e.Name
	}
	return registration{}, perdure.Usagef("unknown workload %q; choose %s", name, strings.Join(known, " or "))
}

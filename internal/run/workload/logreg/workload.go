package logreg

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/dataset"
	"github.com/perdure/perdure/internal/run/workload/api"
)

// Names of the workload and its only table.
const (
	Name  = "logreg"
	Table = "w"
)

// Default values.
const (
	DefaultBatch = 256
	DefaultData  = dataset.DefaultSparse
	DefaultRule  = perdure.RuleFTRL
)

// Rates holds good learning rates for the rules.
var Rates = map[perdure.RuleKind]float64{
	perdure.RuleSGD: 0.0005, perdure.RuleMomentum: 0.00005, perdure.RuleNesterov: 0.00005, perdure.RuleAdagrad: 0.1,
	perdure.RuleRowwiseAdagrad: 0.02, perdure.RuleAdam: 0.003, perdure.RuleFTRL: 0.05,
}

// program implements a workload for a model.
type program struct {
	*model
	params  api.Params
	weights []float32
	tests   []int32 // all test examples
}

// Open loads the data and returns the workload.
func Open(p api.Params) (api.Workload, error) {
	if err := cmp.Or(p.ValidateGradients(Name), p.ValidateBatch()); err != nil {
		return nil, err
	}
	data, err := openData(&p)
	if err != nil {
		return nil, err
	}
	m, err := newModel(data, p.Seed, p.Slots, p.Batch)
	if err != nil {
		return nil, err
	}
	w := &program{model: m, params: p, tests: make([]int32, data.Test.Len())}
	for i := range w.tests {
		w.tests[i] = int32(i)
	}
	return w, nil
}

func openData(p *api.Params) (*dataset.SparseSet, error) {
	scaling, err := dataset.ScalingOf(p.Trained)
	switch {
	case err != nil:
		return nil, err
	case scaling != nil:
		e, err := dataset.OpenScaled(p.Data, scaling)
		if err != nil {
			return nil, err
		}
		return dataset.ToSparse(e), nil
	case p.Trained != nil:
		classes := strings.Split(p.Trained[ClassesKey], "\n")
		if len(classes) < 2 {
			return nil, perdure.Usagef("the model's file does not name its classes: its metadata has no %s with at "+
				"least two lines", ClassesKey)
		}
		return dataset.OpenAllSparse(p.Data, classes, dataset.FeatureNaming(p.Trained[HashedKey]))
	}
	return dataset.OpenSparse(p.Data)
}

// Describe implements api.Workload. Parameters counts all possible parameters; a row is stored from its first update
// on.
func (p *program) Describe() api.Description {
	return api.Description{
		Name: Name, Data: p.data.Name, Train: p.data.Train.Len(), Test: p.data.Test.Len(),
		Parameters: (p.data.Features + 1) * p.dim, DataBytes: p.data.Bytes(), Rate: p.params.Rule.Rate,
		Marked: p.data.MarkedSynthetic,
	}
}

// Digest implements api.Workload.
func (p *program) Digest() string { return p.data.Digest() }

// Names of the constants.
const (
	ClassesKey = "classes" // labels of the classes, one per line
	HashedKey  = "hashed"  // whether feature names were hashed to numbers
)

// Constants implements api.Workload. The constants include the scaling of rows of numbers. Row 0 of the table is the
// bias, and feature f has row f + 1.
func (p *program) Constants() map[string]string {
	c := map[string]string{
		ClassesKey: strings.Join(p.data.Classes, "\n"), HashedKey: strconv.FormatBool(p.data.Hashed),
	}
	maps.Copy(c, p.data.Scaling.Constants())
	return c
}

// CheckWarmStart implements api.WarmStartChecker. The classes must have the same order, and the features the same
// numbers or names hashed in the same way.
func (p *program) CheckWarmStart(_ context.Context, _ api.Tables, constants map[string]string) error {
	if was, is := constants["classes"], strings.Join(p.data.Classes, "\n"); was != is {
		return fmt.Errorf("its classes are %s, but those of the data are %s", oneLine(was), oneLine(is))
	}
	is := strconv.FormatBool(p.data.Hashed)
	if was := constants[HashedKey]; was != "" && was != is {
		return fmt.Errorf("its metadata says %s %.40q, but the data uses %s: numeric features and features with "+
			"hashed names are not interchangeable", HashedKey, was, is)
	}
	return nil
}

// oneLine formats names, which are one per line, for people.
func oneLine(names string) string {
	if names == "" {
		return "that it does not name"
	}
	return fmt.Sprintf("%.80q", strings.ReplaceAll(names, "\n", ", "))
}

// Tables implements api.Workload: one table, initially zeros. It is sparse regardless of the parameters.
func (p *program) Tables() []perdure.TableSpec {
	return []perdure.TableSpec{{Name: Table, Sparse: true, Dim: p.dim, Rule: p.params.Rule}}
}

// Step implements api.Workload.
func (p *program) Step(
	ctx context.Context, t api.Tables, share api.Share, clock perdure.Clock,
) (api.Metrics, error) {
	if err := share.Validate(clock); err != nil {
		return api.Metrics{}, fmt.Errorf("logreg: %w", err)
	}
	if err := p.setSlots(share.Of); err != nil {
		return api.Metrics{}, err
	}
	examples := p.order.Batch(perdure.Slot(share.Rank), clock)
	if err := p.get(ctx, t, &p.data.Train, examples); err != nil {
		return api.Metrics{}, err
	}
	p.gradient = slices.Grow(p.gradient[:0], len(p.weights))[:len(p.weights)]
	loss, _ := p.losses(p.weights, &p.data.Train, examples)
	if err := t.IncRows(ctx, Table, p.need.list, p.gradient); err != nil {
		return api.Metrics{}, err
	}
	n := len(examples)
	return api.Metrics{TrainLoss: loss / float64(n), TrainRMSE: math.NaN(), Samples: n}, nil
}

// get reads the rows that examples need.
func (p *program) get(ctx context.Context, t api.Tables, s *dataset.SparseSplit, examples []int32) error {
	p.need.of(s, examples)
	n := len(p.need.list) * p.dim
	p.weights = slices.Grow(p.weights[:0], n)[:n]
	return t.GetRows(ctx, Table, p.need.list, p.weights)
}

// Classify implements api.Classifier.
func (p *program) Classify(ctx context.Context, t api.Tables, each func(scores []float32, label uint8)) error {
	test := &p.data.Test
	if err := p.get(ctx, t, test, p.tests); err != nil {
		return err
	}
	at := p.need.at
	for i := range p.tests {
		_, values := test.Example(i)
		p.score(p.weights, at[:len(values)], values)
		at = at[len(values):]
		each(p.scores, test.Label[i])
	}
	return nil
}

// Evaluate implements api.Workload, on the test examples.
func (p *program) Evaluate(ctx context.Context, t api.Tables) (api.Eval, error) {
	right, loss := 0, 0.0
	err := p.Classify(ctx, t, func(scores []float32, label uint8) {
		if slices.Index(scores, slices.Max(scores)) == int(label) {
			right++
		}
		loss += p.softmax(int(label))
	})
	n := float64(len(p.tests))
	return api.Eval{Loss: loss / n, Accuracy: float64(right) / n, RMSE: math.NaN()}, err
}

// Findings implements api.FindingsReporter. It reports how well probabilities rank the examples, and how well
// calibrated they are.
func (p *program) Findings(ctx context.Context, t api.Tables) ([]string, error) {
	var all predictions
	err := p.Classify(ctx, t, func(scores []float32, label uint8) {
		class := slices.Index(scores, slices.Max(scores))
		p.softmax(class) // now p(k), minus 1 for the true class
		probability, is := float64(scores[class])+1, class == int(label)
		if p.dim == 1 && class == 0 { // with two classes, the score of the second one
			probability, is = 1-probability, !is
		}
		all = append(all, prediction{probability, is})
	})
	if err != nil {
		return nil, err
	}
	return all.lines(p.data.Classes), nil
}

package cnn

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/dataset"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/run/workload/api"
)

// Name of the workload.
const Name = "cnn"

// The tables, in order. Each is a tensor of the model. Rows of Conv1 and Conv2 are output channels of in·3·3 values.
// Rows of Full1 are output units, as is common. Rows of Full2 are input units with one value per class. The biases of
// all layers share one table with one value per row. Every table thus has at least 16 rows and can be split into 16
// shards.
const (
	Conv1 = iota // 16 × 9
	Conv2        // 32 × 144
	Full1        // 512 × 1568
	Full2        // 512 × classes
	Bias         // (16 + 32 + 512 + classes) × 1
	tables
)

// Default values, from the paper.
const (
	DefaultBatch = 32
	DefaultRate  = 0.01
)

// Rates holds good learning rates for the gradient rules. On the full Fashion-MNIST with one worker and batches of 32,
// they reach a test accuracy of 0.78 to 0.84 after 300 clocks.
var Rates = map[perdure.RuleKind]float64{
	perdure.RuleSGD: DefaultRate, perdure.RuleMomentum: 0.003, perdure.RuleNesterov: 0.003,
	perdure.RuleAdagrad: 0.01, perdure.RuleRowwiseAdagrad: 0.01, perdure.RuleAdam: 0.001,
}

// specs lists the tables. Initial weights are uniform with the variance 2/n of He et al. 2015, where n is the number of
// inputs of a unit with a ReLU. Biases are initially 0.
func (m *Model) specs(rule perdure.Rule) []perdure.TableSpec {
	spec := func(name string, rows, dim, n int) perdure.TableSpec {
		return perdure.TableSpec{
			Name: name, Rows: int64(rows), Dim: dim, Rule: rule,
			Init: perdure.Init{Kind: perdure.InitUniform, Scale: math.Sqrt(6 / float64(n))},
		}
	}
	bias := spec("bias", m.conv1.out+m.conv2.out+m.hidden+m.classes, 1, 1)
	bias.Init = perdure.Init{Kind: perdure.InitZeros}
	return []perdure.TableSpec{
		Conv1: spec("conv1.weight", m.conv1.out, m.conv1.taps(), m.conv1.taps()),
		Conv2: spec("conv2.weight", m.conv2.out, m.conv2.taps(), m.conv2.taps()),
		Full1: spec("fc1.weight", m.hidden, m.flat, m.flat),
		Full2: spec("fc2.weight", m.hidden, m.classes, m.hidden),
		Bias:  bias,
	}
}

// program implements a workload for a Model.
type program struct {
	model    *Model
	params   api.Params
	specs    []perdure.TableSpec
	values   Parameters // as returned by Get
	gradient Parameters // for Inc
}

// Open loads the data and returns the workload.
func Open(p api.Params) (api.Workload, error) {
	if p.Rule.Kind == perdure.RuleFTRL {
		return nil, perdure.Usagef("cnn: rule ftrl starts from zeros, from which a network cannot learn; choose " +
			"another rule, for example sgd")
	}
	if err := cmp.Or(p.ValidateGradients(Name), p.ValidateBatch()); err != nil {
		return nil, err
	}
	if p.ByLayer && p.Sparse {
		return nil, perdure.Usagef("cnn: sparse tables are split across all shards; remove either --sparse or " +
			"--partition layer")
	}
	if p.Trained != nil {
		p.FinalReLU = p.Trained[FinalReLUKey] == "true"
	}
	data, err := dataset.Open(p.Data)
	if err != nil {
		return nil, err
	}
	model, err := New(data, Options{Seed: p.Seed, Slots: p.Slots, Batch: p.Batch, FinalReLU: p.FinalReLU})
	if err != nil {
		return nil, err
	}
	w := &program{model: model, params: p, specs: model.specs(p.Rule)}
	w.values, w.gradient = blank(w.specs), blank(w.specs)
	for i := range w.specs {
		w.specs[i].Whole, w.specs[i].Combine = p.ByLayer, p.Combine
		if p.Sparse {
			w.specs[i].Sparse, w.specs[i].Rows = true, 0
		}
	}
	return w, nil
}

// blank allocates the values of all tables.
func blank(specs []perdure.TableSpec) (p Parameters) {
	for i, s := range specs {
		p[i] = make([]float32, s.Rows*int64(s.Dim))
	}
	return p
}

// Describe implements api.Workload.
func (w *program) Describe() api.Description {
	values := 0
	for _, v := range w.values {
		values += len(v)
	}
	data := w.model.data
	return api.Description{
		Name: Name, Data: data.Name, Train: data.Train.N, Test: data.Test.N, Parameters: values,
		DataBytes: data.Bytes(), Rate: w.params.Rule.Rate,
	}
}

// Digest implements api.Workload.
func (w *program) Digest() string { return w.model.data.Digest() }

// FinalReLUKey is the name of the constant that records FinalReLU.
const FinalReLUKey = "final_relu"

// Constants implements api.Workload. The tables alone do not determine whether scores below 0 become 0.
func (w *program) Constants() map[string]string {
	return map[string]string{FinalReLUKey: strconv.FormatBool(w.params.FinalReLU)}
}

// Tables implements api.Workload.
func (w *program) Tables() []perdure.TableSpec { return slices.Clone(w.specs) }

// Step implements api.Workload.
func (w *program) Step(
	ctx context.Context, t api.Tables, share api.Share, clock perdure.Clock,
) (api.Metrics, error) {
	if err := share.Validate(clock); err != nil {
		return api.Metrics{}, fmt.Errorf("cnn: %w", err)
	}
	if err := w.model.SetSlots(share.Of); err != nil {
		return api.Metrics{}, err
	}
	if err := w.get(ctx, t); err != nil {
		return api.Metrics{}, err
	}
	loss := w.model.Gradient(&w.values, perdure.Slot(share.Rank), clock, &w.gradient)
	for i, s := range w.specs {
		if err := t.Inc(ctx, s.Name, 0, w.gradient[i]); err != nil {
			return api.Metrics{}, err
		}
	}
	return api.Metrics{TrainLoss: loss, TrainRMSE: math.NaN(), Samples: w.params.Batch}, nil
}

func (w *program) get(ctx context.Context, t api.Tables) error {
	for i, s := range w.specs {
		if err := t.Get(ctx, s.Name, 0, w.values[i]); err != nil {
			return err
		}
	}
	return nil
}

// Sample implements api.SampledEvaluator.
func (w *program) Sample(n int) {
	data := *w.model.data // the data may be shared
	data.Test = data.Test.Sample(n)
	w.model.data = &data
}

// Evaluate implements api.Workload, on the test pictures.
func (w *program) Evaluate(ctx context.Context, t api.Tables) (api.Eval, error) {
	if err := w.get(ctx, t); err != nil {
		return api.Eval{}, err
	}
	loss, accuracy := w.model.Evaluate(&w.values, &w.model.data.Test)
	return api.Eval{Loss: loss, Accuracy: accuracy, RMSE: math.NaN()}, nil
}

// Classify implements api.Classifier.
func (w *program) Classify(ctx context.Context, t api.Tables, each func(scores []float32, label uint8)) error {
	if err := w.get(ctx, t); err != nil {
		return err
	}
	w.model.Score(&w.values, &w.model.data.Test, func(scores []float32, label uint8, _ float64) { each(scores, label) })
	return nil
}

// Plain trains on one thread without a parameter server. It computes what a bsp job with the same options computes. It
// is not safe for concurrent use.
type Plain struct {
	model  *Model
	rule   perdure.Rule
	specs  []perdure.TableSpec
	values Parameters
	grads  []Parameters // by slot
	now    perdure.Clock
}

// NewPlain returns a trainer at clock 0. Its initial parameters are those of a job with the same seed. The rule must
// have no state: sgd.
func NewPlain(m *Model, rule perdure.Rule) (*Plain, error) {
	p := &Plain{model: m, rule: rule, specs: m.specs(rule), grads: make([]Parameters, m.options.Slots)}
	for i, s := range p.specs {
		values, err := table.New(s, perdure.TableID(i), m.options.Seed, 0, int(s.Rows)).Run(0, int(s.Rows))
		if err != nil {
			return nil, err
		}
		p.values[i] = slices.Clone(values)
	}
	for slot := range p.grads {
		p.grads[slot] = blank(p.specs)
	}
	return p, nil
}

// Run trains for a number of clocks. In each clock all slots compute gradients at the same parameters, and then their
// updates are applied in slot order. It returns the mean loss over the last clock's pictures.
func (p *Plain) Run(clocks perdure.Clock) (loss float64) {
	for range clocks {
		loss = 0
		for slot := range p.grads {
			loss += p.model.Gradient(&p.values, perdure.Slot(slot), p.now, &p.grads[slot]) / float64(len(p.grads))
		}
		for i := range p.grads {
			for k, s := range p.specs {
				table.Apply(p.rule, s.Dim, p.values[k], p.grads[i][k], p.now)
			}
		}
		p.now++
	}
	return loss
}

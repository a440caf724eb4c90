package logreg

import (
	"context"
	"fmt"
	"math"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/dataset"
	"github.com/perdure/perdure/internal/run/workload/api"
)

// SoftmaxName is the name of the workload. Its only table is [Table].
const SoftmaxName = "softmax"

// Default values. With 4 slots and seed 1 they reach a test accuracy of 0.830 on the full Fashion-MNIST after 1,000
// clocks and 0.837 after 3,000. Twice the rate learns faster for 300 clocks and then does worse.
const (
	SoftmaxBatch = 64
	SoftmaxRate  = 0.05
)

// SoftmaxRates holds good learning rates for the gradient rules.
var SoftmaxRates = map[perdure.RuleKind]float64{
	perdure.RuleSGD: SoftmaxRate, perdure.RuleMomentum: SoftmaxRate / 10, perdure.RuleNesterov: SoftmaxRate / 10,
	perdure.RuleAdagrad: 0.01, perdure.RuleRowwiseAdagrad: 0.01, perdure.RuleAdam: 0.001, perdure.RuleFTRL: 0.05,
}

// softmaxProgram implements a workload for a Softmax.
type softmaxProgram struct {
	model    *Softmax
	params   api.Params
	weights  []float32 // as returned by Get
	gradient []float32 // for Inc
}

// OpenSoftmax loads the data and returns the workload.
func OpenSoftmax(p api.Params) (api.Workload, error) {
	if err := p.ValidateGradients(SoftmaxName); err != nil {
		return nil, err
	}
	size := p.Batch
	switch c := p.Convex; {
	case c.FullBatch && size != 0:
		return nil, perdure.Usagef("softmax: a batch size of %d does not work with full batches; remove one of the "+
			"two options", size)
	case c.FullBatch:
		size = 1 // used like a batch size below
	default:
		if err := p.ValidateBatch(); err != nil {
			return nil, err
		}
	}
	data, err := openSoftmaxData(&p)
	if err != nil {
		return nil, err
	}
	model, err := NewSoftmax(data, SoftmaxOptions{
		Seed: p.Seed, Slots: p.Slots, Batch: size, L2: p.Convex.L2, Full: p.Convex.FullBatch,
		Mean: p.Combine == perdure.CombineMean || p.Combine == perdure.CombineWeighted,
	})
	if err != nil {
		return nil, err
	}
	values := model.Rows() * model.Classes()
	return &softmaxProgram{
		model:    model,
		params:   p,
		weights:  make([]float32, values),
		gradient: make([]float32, values),
	}, nil
}

// Describe implements api.Workload.
func (p *softmaxProgram) Describe() api.Description {
	return api.Description{
		Name:       SoftmaxName,
		Data:       p.model.data.Name,
		Train:      p.model.data.Train.N,
		Test:       p.model.data.Test.N,
		Parameters: len(p.weights),
		DataBytes:  p.model.data.Bytes(),
		Rate:       p.params.Rule.Rate,
	}
}

// Digest implements api.Workload.
func (p *softmaxProgram) Digest() string { return p.model.data.Digest() }

// Constants implements api.Workload. It returns the scaling of rows of numbers. Pictures need no constants.
func (p *softmaxProgram) Constants() map[string]string { return p.model.data.Scaling.Constants() }

// openSoftmaxData reads the data. If a trained model is evaluated whose file records how features are scaled, it scales
// the data in the same way.
func openSoftmaxData(p *api.Params) (*dataset.Examples, error) {
	scaling, err := dataset.ScalingOf(p.Trained)
	switch {
	case err != nil:
		return nil, err
	case scaling == nil:
		return dataset.Open(p.Data)
	}
	return dataset.OpenScaled(p.Data, scaling)
}

// Tables implements api.Workload: one table, initially zeros. The problem is convex, so the start does not affect where
// training ends.
func (p *softmaxProgram) Tables() []perdure.TableSpec {
	spec := perdure.TableSpec{
		Name: Table,
		Rows: int64(p.model.Rows()),
		Dim:  p.model.Classes(),
		Rule: p.params.Rule,
		Init: perdure.Init{Kind: perdure.InitZeros},

		Combine: p.params.Combine,
	}
	if p.params.Sparse {
		spec.Sparse, spec.Rows = true, 0
	}
	return []perdure.TableSpec{spec}
}

// Step implements api.Workload.
func (p *softmaxProgram) Step(
	ctx context.Context, t api.Tables, share api.Share, clock perdure.Clock,
) (api.Metrics, error) {
	if err := share.Validate(clock); err != nil {
		return api.Metrics{}, fmt.Errorf("softmax: %w", err)
	}
	if err := p.model.SetSlots(share.Of); err != nil {
		return api.Metrics{}, err
	}
	if err := t.Get(ctx, Table, 0, p.weights); err != nil {
		return api.Metrics{}, err
	}
	loss := p.model.Gradient(p.weights, perdure.Slot(share.Rank), clock, p.gradient)
	if err := t.Inc(ctx, Table, 0, p.gradient); err != nil {
		return api.Metrics{}, err
	}
	n := len(p.model.Batch(perdure.Slot(share.Rank), clock))
	return api.Metrics{TrainLoss: loss, TrainRMSE: math.NaN(), Samples: n}, nil
}

// Sample implements api.SampledEvaluator.
func (p *softmaxProgram) Sample(n int) {
	data := *p.model.data // the data may be shared
	data.Test = data.Test.Sample(n)
	p.model.data = &data
}

// Evaluate implements api.Workload, on the test examples.
func (p *softmaxProgram) Evaluate(ctx context.Context, t api.Tables) (api.Eval, error) {
	if err := t.Get(ctx, Table, 0, p.weights); err != nil {
		return api.Eval{}, err
	}
	loss, accuracy := p.model.Evaluate(p.weights, &p.model.data.Test)
	return api.Eval{Loss: loss, Accuracy: accuracy, RMSE: math.NaN()}, nil
}

// Classify implements api.Classifier.
func (p *softmaxProgram) Classify(
	ctx context.Context, t api.Tables, each func(scores []float32, label uint8),
) error {
	if err := t.Get(ctx, Table, 0, p.weights); err != nil {
		return err
	}
	p.model.Score(p.weights, &p.model.data.Test, each)
	return nil
}

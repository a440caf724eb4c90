// Train fits a linear model to synthetic data. It is a complete training program, to copy and change. It runs once in
// each slot of a job: perdure up --workers 4 --clocks 500 --exec ./train. Batches are drawn by slot and clock, so any
// process may be killed.
package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/worker"
)

func main() {
	if err := worker.Run(context.Background(), worker.Config{}, begin); err != nil {
		fmt.Fprintln(os.Stderr, "train:", err)
		os.Exit(1)
	}
}

func begin(ctx context.Context, w *worker.Client) (worker.Step, error) {
	const features, batch = 64, 20_000
	model, err := w.Table(ctx, perdure.TableSpec{
		Name: "model", Rows: features, Dim: 1,
		Rule: perdure.Rule{Kind: perdure.RuleSGD, Rate: 0.05},
	})
	return func(ctx context.Context, clock perdure.Clock) error {
		var weights, gradient, x [features]float32
		if err := model.GetRun(ctx, 0, weights[:]); err != nil {
			return err
		}
		rng, loss, total := rand.New(rand.NewPCG(uint64(w.Slot()), uint64(clock))), 0.0, float32(batch*w.Job().Slots)
		for range batch {
			miss := rng.Float32() - 0.5 // noise: the minimum loss is 1/12
			for i := range x {
				x[i] = 2*rng.Float32() - 1
				miss += (weights[i] - float32(i)) * x[i] // the true weights are 0, 1, 2, …
			}
			for i := range x {
				gradient[i] += miss * x[i] / total
			}
			loss += float64(miss*miss) / batch
		}
		if clock%50 == 0 {
			fmt.Printf("slot %d, clock %d: loss %.3f\n", w.Slot(), clock, loss)
		}
		return model.IncRun(0, gradient[:])
	}, err
}

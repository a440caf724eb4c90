// Train fits a linear model to made-up data: a whole training program, to copy and change. Start it
// once for each worker of a job. Batches are drawn by slot and clock, so any process may be killed.
package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/worker"
)

func main() {
	if err := train(context.Background(), append(os.Args[1:], os.Getenv("PERDURE_COORDINATOR"))[0]); err != nil {
		fmt.Fprintln(os.Stderr, "train:", err)
		os.Exit(1)
	}
}

func train(ctx context.Context, addr string) error {
	const features, batch = 64, 20_000
	if addr == "" {
		return errors.New("set PERDURE_COORDINATOR, or give the coordinator's HOST:PORT as the argument")
	}
	w, err := worker.Dial(ctx, worker.Config{
		Coordinator: addr, SecretFile: os.Getenv("PERDURE_SECRET_FILE"),
		Slot: perdure.NoSlot, PID: os.Getpid(),
	})
	if err != nil {
		return err
	}
	defer w.Close()
	model, err := w.Table(ctx, perdure.TableSpec{
		Name: "model", Rows: features, Dim: 1,
		Rule: perdure.Rule{Kind: perdure.RuleSGD, Rate: 0.05},
	})
	if err != nil {
		return err
	}
	step := func(clock perdure.Clock) error {
		var weights, gradient, x [features]float32
		if err := model.GetRun(ctx, 0, weights[:]); err != nil {
			return err
		}
		rng, loss, total := rand.New(rand.NewPCG(uint64(w.Slot()), uint64(clock))), 0.0, float32(batch*w.Job().Slots)
		for range batch {
			miss := rng.Float32() - 0.5 // noise: the best loss there is is 1/12
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
	}
	// Until all have done all clocks. After a roll-back Finish and step say so, and Clock goes back.
	for clock := w.Now(); clock < w.End() || w.Finish(ctx) != nil; {
		if err := step(clock); err != nil && !errors.Is(err, perdure.ErrRolledBack) {
			return err
		}
		if clock, err = w.Clock(ctx); err != nil {
			return err
		}
	}
	return nil
}

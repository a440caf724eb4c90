package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/worker"
)

// A program joins the job at the coordinator's address and takes any free slot.
func ExampleDial() {
	ctx := context.Background()
	w, err := worker.Dial(ctx, worker.Config{
		Coordinator: os.Getenv("PERDURE_COORDINATOR"),
		SecretFile:  os.Getenv("PERDURE_SECRET_FILE"),
		Process:     fmt.Sprintf("pid-%d", os.Getpid()),
		PID:         os.Getpid(),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer w.Close()
	fmt.Printf("slot %d begins at clock %d of %d\n", w.Slot(), w.Now(), w.End())
}

// The training loop. After a rollback every call except Clock returns ErrRolledBack, and Clock returns the earlier
// clock to continue from. The loop needs no other failure handling.
func ExampleClient_Clock() {
	train := func(ctx context.Context, w *worker.Client, model *worker.Table) error {
		row, gradient := make([]float32, 8), make([]float32, 8)
		step := func(clock perdure.Clock) error {
			if err := model.Get(ctx, 0, row); err != nil {
				return err
			}
			for i, x := range row { // gradient of ½‖row - 1‖², for any clock
				gradient[i] = x - 1
			}
			return model.Inc(0, gradient)
		}
		for {
			for clock := w.Now(); w.End() == 0 || clock < w.End(); {
				if err := step(clock); err != nil && !errors.Is(err, perdure.ErrRolledBack) {
					return err
				}
				var err error
				if clock, err = w.Clock(ctx); err != nil {
					return err
				}
			}
			if err := w.Finish(ctx); !errors.Is(err, perdure.ErrRolledBack) {
				return err
			}
			if _, err := w.Clock(ctx); err != nil { // rolled back while other slots finished
				return err
			}
		}
	}
	_ = train
}

// A program saves state with its updates. A replacement process, and all processes after a rollback, load the state
// that belongs to the clock.
func ExampleClient_LoadState() {
	type position struct{ Epoch, Sample int }
	save := func(w *worker.Client, p position) error { // before each Clock
		b, err := json.Marshal(p)
		if err != nil {
			return err
		}
		return w.SaveState(b)
	}
	// at the start, and after Clock returned an earlier clock
	load := func(ctx context.Context, w *worker.Client) (p position, err error) {
		b, err := w.LoadState(ctx)
		if err != nil || b == nil { // nil: no state has been saved
			return p, err
		}
		return p, json.Unmarshal(b, &p)
	}
	_, _ = save, load
}

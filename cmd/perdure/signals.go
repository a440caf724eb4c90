package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// untilSecondSignal returns a context that is canceled by the second signal to end. The first signal cancels only ctx,
// which requests a graceful end.
func untilSecondSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	again := make(chan os.Signal, 1)
	context.AfterFunc(ctx, func() {
		signal.Notify(again, os.Interrupt, syscall.SIGTERM)
		defer signal.Stop(again)
		select {
		case <-again:
			cancel()
		case <-run.Done():
		}
	})
	return run, cancel
}

package coordinator

import (
	"context"
	"errors"
	"testing"

	"github.com/perdure/perdure/internal/core/membership"
)

// TestAsk checks that a caller which gives up before the loop reaches its question never gets an answer later, and that
// a caller whose question is being answered waits.
func TestAsk(t *testing.T) {
	c := &Coordinator{inbox: make(inbox, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	answered := false
	asked := make(chan error, 1)
	ask := func(f func()) {
		asked <- c.Ask(ctx, func(*membership.Core, Latest) { f() })
	}
	go ask(func() { answered = true })
	loop := <-c.inbox
	cancel()
	if err := <-asked; !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	if loop.do(); answered {
		t.Error("the question was answered after the caller gave up")
	}

	ctx, cancel = context.WithCancel(t.Context())
	go ask(func() {
		cancel()
		answered = true
	})
	(<-c.inbox).do()
	if err := <-asked; err != nil || !answered {
		t.Errorf("ended while it was answered: %v, %v", err, answered)
	}
}

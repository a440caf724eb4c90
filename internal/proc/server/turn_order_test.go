package server

import (
	"context"
	"errors"
	"testing"
)

// TestTurns: small copies go side by side, a large one alone, and nobody overtakes.
func TestTurns(t *testing.T) {
	var ts turns
	here := func(tn *turn) bool {
		select {
		case <-tn.come:
			return true
		default:
			return false
		}
	}
	small := make([]*turn, 0, turnRoom/leastTurn)
	for range cap(small) {
		tn, err := ts.take(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		small = append(small, tn)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := ts.take(over, turnRoom<<10); !errors.Is(err, context.Canceled) {
		t.Fatalf("a large one beside small ones: %v", err)
	}
	large, late := ts.waiting[0], (*turn)(nil)
	_, _ = ts.take(over, 1)
	late = ts.waiting[1]
	for i, tn := range small {
		if here(large) || here(late) {
			t.Fatalf("somebody's turn has come while %d small ones are copied", len(small)-i)
		}
		ts.give(tn)
	}
	if !here(large) || here(late) {
		t.Fatalf("the large one's turn has come: %v; of the one after it: %v", here(large), here(late))
	}
	if ts.give(large); !here(late) {
		t.Error("the last one's turn has not come")
	}
}

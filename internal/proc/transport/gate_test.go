package transport

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
)

var errOver = errors.New("it is over")

// TestGateIsFair checks that small batches do not overtake a waiting large one, even if they could keep the gate half
// full.
func TestGateIsFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var g sendGate
		g.Init(&mu, 10)
		var order []int
		enter := func(n int) {
			go func() {
				mu.Lock()
				defer mu.Unlock()
				if err := g.Enter(n, true); err == nil {
					order = append(order, n)
				}
			}()
			synctest.Wait()
		}
		leave := func(n int) {
			mu.Lock()
			g.Leave(n)
			mu.Unlock()
			synctest.Wait()
		}
		enter(8)
		enter(12) // larger than the gate: admitted when it is empty
		enter(1)
		if len(order) != 1 {
			t.Fatalf("admitted %v, want the first only", order)
		}
		leave(8)
		if len(order) != 2 || order[1] != 12 {
			t.Fatalf("admitted %v, want 8 then 12", order)
		}
		leave(12)
		if len(order) != 3 || g.inside != 1 {
			t.Fatalf("admitted %v with %d inside, want 8, 12 and 1", order, g.inside)
		}
		enter(10)
		mu.Lock()
		g.Fail(errors.New("over"))
		g.Fail(errOver)
		mu.Unlock()
		synctest.Wait()
		if len(order) != 3 || g.Enter(1, true).Error() != "over" {
			t.Fatalf("admitted %v after the gate failed", order)
		}
	})
}

// TestGateBudget checks that a batch that cannot wait is admitted if the budget or the guaranteed minimum of its gate
// permits it, and that a waiting batch is always admitted in the end. The budget always equals the bytes inside all
// gates, and is 0 at the end.
func TestGateBudget(t *testing.T) {
	for seed := range uint64(50) {
		gateBudget(t, seed)
	}
}

const budgetMost, gateMost = 4 * alwaysQueued, 3 * alwaysQueued

// gateSubject is a gate with the batches inside it.
type gateSubject struct {
	sendGate
	batches []int
	gone    bool
}

// gateSubjects are gates that share a budget.
type gateSubjects struct {
	*testing.T
	seed    uint64
	rng     *rand.Rand
	budget  *Budget
	gates   [5]gateSubject
	refused int // rejected because of the budget
}

// sum returns the expected budget.
func (s *gateSubjects) sum() (n int) {
	for i := range s.gates {
		if !s.gates[i].gone {
			n += s.gates[i].inside
		}
	}
	return n
}

// enter tries to admit a batch.
func (s *gateSubjects) enter(g *gateSubject) {
	n, wait := 1+s.rng.IntN(2*alwaysQueued), s.rng.IntN(8) == 0
	if wait && !g.fits(n) {
		return
	}
	var want error
	switch {
	case g.err != nil:
		want = g.err
	case !g.fits(n):
		want = ErrFull
	case !wait && g.inside > 0 && g.inside+n > alwaysQueued && s.sum()+n > budgetMost:
		want = errAllFull
		s.refused++
	}
	if err := g.Enter(n, wait); err != want {
		s.Fatalf("seed %d: %d bytes, %d inside, %d in all gates: %v, want %v", s.seed, n, g.inside, s.sum(), err, want)
	} else if err == nil {
		g.batches = append(g.batches, n)
	}
}

// step performs a random operation on one of the gates.
func (s *gateSubjects) step() {
	g := &s.gates[s.rng.IntN(len(s.gates))]
	switch n := len(g.batches); {
	case g.budget == nil && g.err == nil:
		if s.rng.IntN(2) == 0 { // a batch was admitted before
			g.inside, g.batches = 7, []int{7}
		}
		g.Charge(s.budget)
	case s.rng.IntN(100) == 0:
		g.Fail(errOver)
	case g.err != nil && s.rng.IntN(4) == 0:
		g.ReleaseBudget()
		g.gone = true
		g.Charge(s.budget) // has no effect on a failed gate
	case n > 0 && s.rng.IntN(3) == 0:
		at := s.rng.IntN(n)
		g.Leave(g.batches[at])
		g.batches = slices.Delete(g.batches, at, at+1)
	default:
		s.enter(g)
	}
}

func gateBudget(t *testing.T, seed uint64) {
	s := &gateSubjects{T: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 1))}
	s.budget = NewBudget(func() int64 { return budgetMost })
	var mu sync.Mutex
	for i := range s.gates {
		s.gates[i].Init(&mu, gateMost)
	}
	for range 500 {
		s.step()
		if held := s.budget.Held(); held != int64(s.sum()) {
			t.Fatalf("seed %d: the budget is %d, the gates hold %d", seed, held, s.sum())
		}
	}
	for i := range s.gates {
		s.gates[i].Fail(errOver)
		s.gates[i].ReleaseBudget()
	}
	if s.budget.Held() != 0 || s.refused == 0 {
		t.Errorf("seed %d: at the end the budget is %d; %d were rejected", seed, s.budget.Held(), s.refused)
	}
}

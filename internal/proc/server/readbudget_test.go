package server

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

func readOf(ids int, need perdure.Clock) *replica.Read {
	return &replica.Read{MinClock: need, Rows: wire.Rows{IDs: make([]perdure.RowID, ids)}}
}

// bytes returns the weight of a read of that many rows.
func bytes(ids int) int64 { return 128 + 8*int64(ids) }

// TestBounds checks that a connection has its own limit and that, beyond its guaranteed minimum, its peer's limit
// applies. A rejected read counts nothing.
func TestBounds(t *testing.T) {
	most := int64(maxReadBytes) + 2*minReadBytes
	all := transport.NewBudget(func() int64 { return most })
	one, two := readBudget{peer: all}, readBudget{peer: all}
	const ids = (minReadBytes - 128) / 8
	fill := func(r *readBudget) (n int64, err error) {
		for n = 0; err == nil; n++ {
			err = r.add(readOf(ids, 1))
		}
		return n - 1, err
	}
	if n, err := fill(&one); n != maxReadBytes/minReadBytes || !strings.Contains(err.Error(), "67108864") {
		t.Errorf("one connection has %d, then %v", n, err)
	}
	if n, err := fill(&two); n != 2 || !strings.Contains(err.Error(), "peer's other connections") {
		t.Errorf("the next has %d, then %v", n, err)
	}
	three := readBudget{peer: all}
	if n, err := fill(&three); n != 1 || err == nil {
		t.Errorf("one more has %d, then %v; want the guaranteed minimum", n, err)
	}
	if want := most + minReadBytes; all.Held() != want {
		t.Errorf("%d bytes count, want %d", all.Held(), want)
	}
}

// TestDone checks that Done correctly reports other reads for the same clock, and that nothing is counted once no read
// waits.
func TestDone(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 3))
		all := transport.NewBudget(func() int64 { return maxReadBytes })
		r := readBudget{peer: all}
		var waiting []*replica.Read
		held, needs := int64(0), map[perdure.Clock]int{}
		for step := 0; step < 200 || len(waiting) > 0; step++ {
			if rd := readOf(rng.IntN(100), perdure.Clock(rng.IntN(3))); step < 200 && rng.IntN(2) == 0 {
				if err := r.add(rd); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				waiting = append(waiting, rd)
				held += bytes(len(rd.Rows.IDs))
				needs[rd.MinClock]++
			} else if n := len(waiting); n > 0 {
				rd := waiting[n-1]
				waiting = waiting[:n-1]
				held -= bytes(len(rd.Rows.IDs))
				needs[rd.MinClock]--
				if others := r.remove(rd); others != (needs[rd.MinClock] > 0) {
					t.Fatalf("seed %d: others wait: %v, with %d of them", seed, others, needs[rd.MinClock])
				}
			}
			if all.Held() != held {
				t.Fatalf("seed %d: %d bytes count, want %d", seed, all.Held(), held)
			}
		}
	}
}

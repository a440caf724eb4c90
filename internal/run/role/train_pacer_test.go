package role

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

const ms = time.Millisecond

// TestPacer checks that a clock takes at least the minimum time, and that a fault extends it.
func TestPacer(t *testing.T) {
	for _, c := range []struct {
		name              string
		least             time.Duration
		kind              string
		factor            float64
		took              time.Duration
		shortest, longest time.Duration // of the whole clock
		drawn             bool
	}{
		{name: "nothing asked", took: 3 * ms, shortest: 3 * ms, longest: 3 * ms},
		{name: "padded", least: 10 * ms, took: 3 * ms, shortest: 10 * ms, longest: 10 * ms},
		{name: "long enough", least: 10 * ms, took: 12 * ms, shortest: 12 * ms, longest: 12 * ms},
		{name: "slow", kind: "slow", factor: 3, took: 4 * ms, shortest: 12 * ms, longest: 12 * ms},
		{
			name: "slow and padded", least: 10 * ms, kind: "slow", factor: 3, took: 4 * ms, shortest: 30 * ms,
			longest: 30 * ms,
		},
		{
			name: "jitter and padded", least: 10 * ms, kind: "jitter", factor: 2, took: 4 * ms, shortest: 10 * ms,
			longest: 20 * ms, drawn: true,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				clocks := func(seed uint64) (all [8]time.Duration) {
					p := &pacer{MinTime: c.least}
					if c.kind != "" {
						p.Set(c.kind, c.factor, 0, seed)
					}
					for i := range all {
						start := time.Now()
						must(t, p.wait(t.Context(), c.took))
						all[i] = c.took + time.Since(start)
						if all[i] < c.shortest || all[i] > c.longest {
							t.Errorf("a clock of %v took %v, want %v to %v", c.took, all[i], c.shortest, c.longest)
						}
					}
					return all
				}
				first := clocks(1)
				if clocks(1) != first {
					t.Error("the same seed drew different times")
				}
				if (clocks(2) != first) != c.drawn {
					t.Errorf("another seed drew different times: %t, want %t", !c.drawn, c.drawn)
				}
			})
		})
	}
}

// TestPacerRecovers checks that clocks take their usual time after a fault.
func TestPacerRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pacer{MinTime: 10 * ms}
		p.Set("slow", 3, time.Second, 1)
		during := p.target(4 * ms)
		time.Sleep(time.Second + ms)
		if after := p.target(4 * ms); during != 30*ms || after != 10*ms {
			t.Errorf("a clock takes %v during the fault and %v after it, want 30ms and 10ms", during, after)
		}
	})
}

// TestPacerEnds checks that a worker that only waits ends when its context ends.
func TestPacerEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p := &pacer{MinTime: time.Hour}
	if err := p.wait(ctx, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("wait returned %v", err)
	}
}

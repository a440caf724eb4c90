package replica

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/perdure/perdure"
)

// oneClock makes every slot send its update, wait for a row of the next clock, and tick. It settles after each step, as
// if each had arrived alone, and returns the number of answered reads.
func oneClock(b *bench, clock perdure.Clock) (answers int) {
	for slot := range perdure.Slot(len(b.readers)) {
		b.update(slot, clock, 0)
		b.Settle()
		b.read(slot, clock+1, 0, false)
	}
	for slot := range perdure.Slot(len(b.readers)) {
		b.tick(slot, clock)
		b.Settle()
	}
	answers = len(b.Effects().Answers)
	b.Effects().Clear()
	return answers
}

// TestCostOfAClock: the cost of a clock grows with the number of slots. The exponent comes from a fit over four sizes.
// It was 2.8 when every update scanned all slots and all waiting reads.
func TestCostOfAClock(t *testing.T) {
	sizes, took := []int{64, 128, 256, 512}, make([]float64, 4)
	for i, slots := range sizes {
		b := newBench(t, "bsp", "none", slots)
		b.view.Tables[0].Rows = 1
		var all []float64
		for clock := range perdure.Clock(7) {
			began := time.Now()
			if n := oneClock(b, clock); n != slots {
				t.Fatalf("%d of %d reads were answered at the end of clock %d", n, slots, clock)
			}
			all = append(all, time.Since(began).Seconds())
		}
		took[i] = slices.Min(all) // other processes on the machine only add time
	}
	if e := exponent(sizes, took); e > 1.5 {
		t.Errorf("a clock of %v slots takes %.3g s: the exponent is %.2f", sizes, took, e)
	} else {
		t.Logf("a clock of %v slots takes %.3g s: the exponent is %.2f", sizes, took, e)
	}
}

// exponent fits took = c · sizes^e by least squares of the logarithms.
func exponent(sizes []int, took []float64) float64 {
	var n, x, y, xx, xy float64
	for i, s := range sizes {
		u, v := math.Log(float64(s)), math.Log(took[i])
		n, x, y, xx, xy = n+1, x+u, y+v, xx+u*u, xy+u*v
	}
	return (n*xy - x*y) / (n*xx - x*x)
}

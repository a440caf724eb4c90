package protocol

import (
	"math"
	"testing"

	"github.com/perdure/perdure"
)

func nearRate(t *testing.T, r *Rate, at, want float64) {
	t.Helper()
	if got, known := r.PerSecond(at); !known || math.Abs(got-want) > 0.05*want {
		t.Errorf("at %v s: %v clocks/s, known %t; want %v", at, got, known, want)
	}
}

func TestRate(t *testing.T) {
	t.Run("whoever looks", func(t *testing.T) {
		// 250 clocks per second. Every 50th clock, an evaluation reads the rate twice and delays the job.
		var r Rate
		at := 0.0
		for clock := range perdure.Clock(1000) {
			r.Note(at, clock)
			if clock%50 == 0 && clock > 50 {
				nearRate(t, &r, at, 250)
				nearRate(t, &r, at+0.01, 250)
				r.Note(at+0.002, clock)
			}
			at += 0.004
		}
		if len(r.marks) > 2*rateMarks {
			t.Errorf("%d marks are kept", len(r.marks))
		}
	})
	t.Run("long clocks", func(t *testing.T) {
		var r Rate
		for clock := range perdure.Clock(5) {
			r.Note(5*float64(clock), clock)
		}
		nearRate(t, &r, 20, 0.2)
		nearRate(t, &r, 24.9, 0.2)
		nearRate(t, &r, 40, 0.05) // the current clock takes longer
	})
	t.Run("standing still", func(t *testing.T) {
		var r Rate
		for clock := range perdure.Clock(1000) {
			r.Note(float64(clock)/100, clock)
		}
		nearRate(t, &r, 10, 100)
		if got, _ := r.PerSecond(20); got > 2 {
			t.Errorf("after 10 s without a clock: %v clocks/s", got)
		}
	})
	t.Run("faster", func(t *testing.T) {
		var r Rate
		for clock := range perdure.Clock(100) {
			r.Note(float64(clock)/10, clock)
		}
		for clock := range perdure.Clock(1000) {
			r.Note(10+float64(clock)/200, 100+clock)
		}
		nearRate(t, &r, 15, 200)
	})
	t.Run("rolled back", func(t *testing.T) {
		var r Rate
		for clock := range perdure.Clock(300) {
			r.Note(float64(clock)/100, clock)
		}
		r.Note(3.5, 200)
		if got, known := r.PerSecond(3.5); known {
			t.Errorf("just rolled back: %v clocks/s", got)
		}
		for clock := range perdure.Clock(50) {
			r.Note(4+float64(clock)/50, 200+clock)
		}
		nearRate(t, &r, 5, 33)
	})
	if _, known := new(Rate).PerSecond(3); known {
		t.Error("nothing was noted, and the rate is known")
	}
}

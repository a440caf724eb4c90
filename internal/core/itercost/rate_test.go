package itercost

import (
	"math"
	"testing"
)

func TestRateOfALine(t *testing.T) {
	var distances []float64
	for clock := range 400 {
		distances = append(distances, 7*math.Pow(0.9, float64(clock)))
	}
	if c, err := Rate(distances); err != nil || !near(c, 0.9, 1e-9) {
		t.Fatalf("%v, %v; want 0.9", c, err)
	}
}

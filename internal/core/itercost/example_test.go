package itercost_test

import (
	"fmt"
	"math"

	"github.com/perdure/perdure/internal/core/itercost"
)

// Each clock of a training moves its two rows closer to the optimum, 0, by the factor c. A server dies at clock 30 with
// row 0. All rows were saved at clock 20.
func Example() {
	const c, epsilon = 0.9, 0.01
	row := func(start float64, clock int) float64 { return start * math.Pow(c, float64(clock)) }
	truth := []float64{row(8, 30), row(6, 30)}
	saved := []float64{row(8, 20), row(6, 20)}

	// train returns the distances of a run that continues from the given rows at clock 30.
	train := func(restored []float64) (distances []float64) {
		for clock := range 30 {
			distances = append(distances, row(10, clock))
		}
		for clock := range 90 {
			distances = append(distances, math.Hypot(row(restored[0], clock), row(restored[1], clock)))
		}
		return distances
	}
	judge := func(restored []float64) error {
		twin, err := itercost.Kappa(train(truth), epsilon)
		if err != nil {
			return err
		}
		reach, err := itercost.Kappa(train(restored), epsilon)
		if err != nil {
			return err
		}
		cost, err := itercost.Iota(reach, twin)
		if err != nil {
			return err
		}
		norm := math.Hypot(restored[0]-truth[0], restored[1]-truth[1])
		bound, err := itercost.NewBound(c, 10, []itercost.Perturbation{{Clock: 30, Norm: norm}})
		if err != nil {
			return err
		}
		most, err := bound.Cost(epsilon, twin)
		if err != nil {
			return err
		}
		fmt.Printf("‖δ‖ is %.3f: it costs %d clocks, at most %d\n", norm, cost.Clocks, most)
		return nil
	}
	for _, restored := range [][]float64{saved, {saved[0], truth[1]}} { // all rows roll back; only the lost row does
		if err := judge(restored); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// ‖δ‖ is 0.792: it costs 10 clocks, at most 10
	// ‖δ‖ is 0.633: it costs 8 clocks, at most 9
}

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
	train := func(restored []float64) (distances itercost.Series) {
		for clock := range 30 {
			distances = append(distances, itercost.Point{Clock: clock, Value: row(10, clock)})
		}
		for clock := range 90 {
			value := math.Hypot(row(restored[0], clock), row(restored[1], clock))
			distances = append(distances, itercost.Point{Clock: 30 + clock, Value: value})
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
		model := func(rows []float64) []itercost.Table[float64] {
			return []itercost.Table[float64]{{Name: "model", Dim: 1, Values: rows}}
		}
		delta, err := itercost.Between(model(truth), model(restored))
		if err != nil {
			return err
		}
		bound, err := itercost.NewBound(c, 10, []itercost.Perturbation{delta.At(30)})
		if err != nil {
			return err
		}
		most, err := bound.Cost(epsilon, twin)
		if err != nil {
			return err
		}
		fmt.Printf("‖δ‖ is %.3f: it costs %v clocks, at most %d\n", delta.Norm(), cost, most)
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

// Two strategies were exposed to the same five failures. One run under the first had not recovered when it ended.
func ExampleCompare() {
	known := func(clocks int) itercost.Cost { return itercost.Cost{Clocks: clocks} }
	pairs := []itercost.Pair{
		{First: known(40), Second: known(5)},
		{First: known(30), Second: known(6)},
		{First: itercost.Cost{Clocks: 90, Censored: true}, Second: known(20)},
		{First: known(10), Second: known(10)},
		{First: known(60), Second: known(15)},
	}
	c, err := itercost.Compare(pairs)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%d of %d censored\n", c.Censored, c.Pairs)
	fmt.Printf("mean difference of the others %.1f, median difference of all %v\n", c.Difference, c.MedianDifference)
	fmt.Printf("the first costs less in %v of the cases\n", c.Less)

	interval, err := itercost.Bootstrap{Seed: 1}.MedianDifference(pairs)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(interval)
	// Output:
	// 1 of 5 censored
	// mean difference of the others 26.0, median difference of all 35
	// the first costs less in 0.1 of the cases
	// 35 [0, +Inf]
}

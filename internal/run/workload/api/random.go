package api

import (
	"math/bits"

	"github.com/perdure/perdure"
)

// Shuffle permutes list by the Fisher–Yates algorithm; state determines the permutation. It does not use math/rand,
// because a seed must give the same order with every version of Go.
func Shuffle[T any](list []T, state uint64) {
	for i := len(list) - 1; i > 0; i-- {
		state += 0x9e3779b97f4a7c15
		// The high half of the product is in [0, i]; its bias is below 2⁻³².
		j, _ := bits.Mul64(Mix(state), uint64(i)+1)
		list[i], list[j] = list[j], list[i]
	}
}

// Mix is the output function of SplitMix64 (Steele, Lea, Flood 2014).
func Mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// PassState returns the random state for a slot's order of its data in a pass.
func PassState(seed uint64, slot perdure.Slot, pass int64) uint64 {
	return Mix(Mix(Mix(seed)+uint64(slot)+1) + uint64(pass) + 1)
}

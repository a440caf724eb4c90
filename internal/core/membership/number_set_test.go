package membership

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/perdure/perdure"
)

// TestCursor checks that a cursor determines whether all items are good, whatever its position, and checks the last bad
// one first.
func TestCursor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var at cursor
		var good []bool
		for range rapid.IntRange(1, 30).Draw(t, "times") {
			if len(good) > 0 && rapid.Bool().Draw(t, "turn") {
				i := rapid.IntRange(0, len(good)-1).Draw(t, "which")
				good[i] = !good[i]
			} else {
				good = rapid.SliceOfN(rapid.Bool(), 0, 5).Draw(t, "good")
			}
			want := true
			for _, g := range good {
				want = want && g
			}
			if got := at.All(len(good), func(i int) bool { return good[i] }); got != want {
				t.Fatalf("%v of %v", got, good)
			}
			looked := 0
			if got := at.All(len(good), func(i int) bool { looked++; return good[i] }); got != want ||
				!got && looked != 1 {
				t.Fatalf("%v of %v after %d checks", got, good, looked)
			}
		}
	})
}

// TestSet compares a set with a map.
func TestSet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s numberSet
		want := map[int]struct{}{}
		for range rapid.IntRange(1, 40).Draw(t, "times") {
			i := rapid.IntRange(0, 8).Draw(t, "number")
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0:
				s.Clear()
				clear(want)
			case 1, 2, 3:
				s.Remove(i)
				delete(want, i)
			default:
				s.Add(i)
				want[i] = struct{}{}
			}
			if _, in := want[i]; s.Has(i) != in || s.Len() != len(want) ||
				!slices.Equal(s.Sorted(), slices.Sorted(maps.Keys(want))) {
				t.Fatalf("%v, want %v", s.All(), slices.Sorted(maps.Keys(want)))
			}
		}
	})
}

// TestCensus compares a census with the smallest of all clocks.
func TestCensus(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var census clockCounts
		at := make([]perdure.Clock, rapid.IntRange(1, 5).Draw(t, "slots"))
		for i := range at {
			at[i] = -1
		}
		for range rapid.IntRange(1, 40).Draw(t, "times") {
			i := rapid.IntRange(0, len(at)-1).Draw(t, "slot")
			to := perdure.Clock(rapid.IntRange(-1, 6).Draw(t, "clock"))
			census.Move(at[i], to)
			at[i] = to
			least := perdure.Clock(-1)
			for _, c := range at {
				if c >= 0 && (least < 0 || c < least) {
					least = c
				}
			}
			if got := census.Min(); got != least {
				t.Fatalf("least %d of %v, want %d", got, at, least)
			}
		}
	})
}

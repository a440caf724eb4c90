package registrytest

import (
	"fmt"
	"testing"

	"github.com/anishathalye/porcupine"

	"github.com/perdure/perdure/internal/data/registry"
)

// TestHistoriesThatAreWrong: the check finds one answer that was changed, of
// every kind.
func TestHistoriesThatAreWrong(t *testing.T) {
	kinds := map[string]int{}
	for seed := range uint64(4) {
		memory := registry.NewMemory()
		open := func(testing.TB) registry.Registry { return memory.Another() }
		h := play(t, seed, open)
		for i, op := range h {
			in, out := op.Input.(asked), op.Output.(answered)
			switch {
			case in.op == "load":
				out.revision++
			case in.op == "acquire":
				continue // a refusal more or less may well be right
			case out.refused:
				out = answered{revision: in.previous + 1}
			case in.op == "save":
				out = answered{refused: true}
			default:
				continue
			}
			wrong := append([]porcupine.Operation(nil), h...)
			wrong[i].Output = out
			kinds[fmt.Sprint(in.op, out.refused)]++
			if porcupine.CheckOperationsTimeout(model, wrong, checking) != porcupine.Illegal {
				t.Errorf("seed %d: operation %d, %+v, cannot be answered %+v", seed, i, in, out)
			}
		}
	}
	if len(kinds) != 3 {
		t.Errorf("only these were changed: %v", kinds)
	}
}

package registrytest

import (
	"fmt"
	"testing"

	"github.com/anishathalye/porcupine"

	"github.com/perdure/perdure/internal/data/registry"
)

// TestHistoriesThatAreWrong checks that histories with one changed answer of any kind are rejected.
func TestHistoriesThatAreWrong(t *testing.T) {
	kinds := map[string]int{}
	for seed := range uint64(4) {
		memory := registry.NewMemory()
		open := func(testing.TB) registry.Registry { return memory.NewClient() }
		h := runClients(t, seed, open)
		for i, op := range h {
			in, out := op.Input.(request), op.Output.(response)
			switch {
			case in.op == "load":
				out.revision++
			case in.op == "acquire":
				continue // may be correct either way
			case out.rejected:
				out = response{revision: in.previous + 1}
			case in.op == "save":
				out = response{rejected: true}
			default:
				continue
			}
			wrong := append([]porcupine.Operation(nil), h...)
			wrong[i].Output = out
			kinds[fmt.Sprint(in.op, out.rejected)]++
			if porcupine.CheckOperationsTimeout(model, wrong, checking) != porcupine.Illegal {
				t.Errorf("seed %d: accepted operation %d, %+v, with the wrong answer %+v", seed, i, in, out)
			}
		}
	}
	if len(kinds) != 3 {
		t.Errorf("only these kinds were changed: %v", kinds)
	}
}

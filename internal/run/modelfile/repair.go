package modelfile

import (
	"github.com/perdure/perdure/internal/data/safetensors"
	"github.com/perdure/perdure/internal/run/workload"
)

// Repair lets the workload adjust a model's tensors before they are written.
func Repair(w workload.Workload, tensors []safetensors.Tensor) {
	m, is := w.(workload.Repairer)
	if !is {
		return
	}
	tables := map[string][]float32{}
	for _, t := range tensors {
		if t.Ints == nil {
			tables[t.Name] = t.Data
		}
	}
	m.Repair(tables)
}

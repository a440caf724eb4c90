package modelfile

import (
	"github.com/perdure/perdure/internal/data/safetensors"
	"github.com/perdure/perdure/internal/run/workload"
)

// Mend lets the workload adjust a model's tensors before they are written.
func Mend(w workload.Workload, tensors []safetensors.Tensor) {
	m, is := w.(workload.Mender)
	if !is {
		return
	}
	tables := map[string][]float32{}
	for _, t := range tensors {
		if t.Ints == nil {
			tables[t.Name] = t.Data
		}
	}
	m.Mend(tables)
}

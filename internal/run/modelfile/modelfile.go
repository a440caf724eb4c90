// Package modelfile reads the models that runs have made, and predicts with them. Another run can begin with one.
// What such a run begins with it writes as a checkpoint of clock 0 ([Model.Write]), so that whoever loses rows before
// anything else is saved has them from there.
//
// A Model is read once and not changed; then it is safe for concurrent use.
package modelfile

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/safetensors"
	"github.com/perdure/perdure/internal/run/plain"
)

// Name is what a run calls its model.
const Name = "model.safetensors"

// Model is what a model's file has.
type Model struct {
	Path    string
	Tensors []safetensors.Tensor
	Meta    map[string]string
}

// Open reads a model's file, or that of a run whose folder is named.
func Open(path string) (*Model, error) {
	info, err := os.Stat(path)
	if err == nil && info.IsDir() {
		path = filepath.Join(path, Name)
	}
	f, err := disk.OpenRegular(path)
	if err != nil {
		return nil, fmt.Errorf("%w: the model %s cannot be read: %w", perdure.ErrUsage, path, plain.Cause(err))
	}
	defer func() { _ = f.Close() }() // only read
	if info, err = f.Stat(); err != nil {
		return nil, err
	}
	m := &Model{Path: path}
	if m.Tensors, m.Meta, err = safetensors.Read(f, info.Size()); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

// Diverged says which value is no finite number; "": all are.
func (m *Model) Diverged() string {
	for i := range m.Tensors {
		t := &m.Tensors[i]
		at := slices.IndexFunc(t.Data, func(v float32) bool {
			return math.IsNaN(float64(v)) || math.IsInf(float64(v), 0)
		})
		if at < 0 {
			continue
		}
		values := 1 // of a row
		for _, n := range t.Shape[min(1, len(t.Shape)):] {
			values *= int(n)
		}
		return fmt.Sprintf("value %d of row %d of its table %s is %v, and no number; choose a model that has not "+
			"diverged", at%values, at/values, t.Name, t.Data[at])
	}
	return ""
}

// find returns the tensor of a name; nil: there is none.
func (m *Model) find(name string) *safetensors.Tensor {
	for i := range m.Tensors {
		if m.Tensors[i].Name == name {
			return &m.Tensors[i]
		}
	}
	return nil
}

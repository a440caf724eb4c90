// Package modelfile reads the models that runs have made, and makes predictions with them. Another run can start with
// such a model. It writes the model as a checkpoint of clock 0 ([Model.Write]), so that rows that are lost before
// anything else is saved can be restored from there.
//
// A Model does not change after it was read, and is then safe for concurrent use.
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
	"github.com/perdure/perdure/internal/run/humanize"
)

// Name is the file name of a run's model.
const Name = "model.safetensors"

// Model is the content of a model file.
type Model struct {
	Path    string
	Tensors []safetensors.Tensor
	Meta    map[string]string
}

// Open reads a model file, or the model in a run's directory.
func Open(path string) (*Model, error) {
	info, err := os.Stat(path)
	if err == nil && info.IsDir() {
		path = filepath.Join(path, Name)
	}
	f, err := disk.OpenRegular(path)
	if err != nil {
		return nil, perdure.Usagef("cannot read the model %s: %w", path, humanize.Cause(err))
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

// Diverged describes the first value that is not finite, or returns "" if all are.
func (m *Model) Diverged() string {
	for i := range m.Tensors {
		t := &m.Tensors[i]
		at := slices.IndexFunc(t.Data, func(v float32) bool {
			return math.IsNaN(float64(v)) || math.IsInf(float64(v), 0)
		})
		if at < 0 {
			continue
		}
		values := 1 // per row
		for _, n := range t.Shape[min(1, len(t.Shape)):] {
			values *= int(n)
		}
		return fmt.Sprintf("value %d of row %d of its table %s is %v, not a finite number; choose a model that has "+
			"not diverged", at%values, at/values, t.Name, t.Data[at])
	}
	return ""
}

// find returns the tensor with a name, or nil.
func (m *Model) find(name string) *safetensors.Tensor { return safetensors.Find(m.Tensors, name) }

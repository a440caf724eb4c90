// Package modelfile reads the models that runs have made: for predictions, and for another run that begins with one.
// What such a run begins with it writes as a checkpoint of clock 0 ([Model.Write]), so that whoever loses rows before
// anything else is saved has them from there.
//
// A Model is read once and not changed; then it is safe for concurrent use.
package modelfile

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/perdure/perdure"
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
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, Name)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%w: the model %s cannot be read: %w", perdure.ErrUsage, path, plain.Cause(err))
	}
	defer func() { _ = f.Close() }() // only read
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: the model %s is no regular file", perdure.ErrUsage, path)
	}
	m := &Model{Path: path}
	if m.Tensors, m.Meta, err = safetensors.Read(f, info.Size()); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
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

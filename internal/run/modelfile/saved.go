package modelfile

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/safetensors"
)

// A program of perdure.torch saves its state as a tree of dicts, lists and values, followed by the values of tensors.
// The Python package writes it (_state.py):
//
//	0      8     magic "PERDURE2"; the last byte is the version of the format
//	8      8     n
//	16     n     the tree: JSON
//	16+n   …     the values
//
// In the tree, a dict is {"dict": [[key, value], …]}, and a tensor {"tensor": at, "type": …, "shape": …}, where at is
// the position of its first byte among the values.
const (
	savedMagic = "PERDURE2"
	savedHead  = 16
)

// The places in the state of a DataParallel program of what an export needs: keys of dicts, from the root.
const (
	parametersPath = "shared/parameters" // a list, in the order of the description
	buffersPath    = "buffers"           // a list, in the order of the description
	stepPath       = "own/step"
	overPath       = "own/over"
)

// Saved is the model in the state that a DataParallel program has saved.
type Saved struct {
	Steps int64 // steps of the training that the weights contain
	Over  bool  // these are all steps of the job

	parameters, buffers []savedTensor
}

type savedTensor struct {
	At    int64   `json:"tensor"`
	Type  string  `json:"type"` // as PyTorch names it, with the prefix "torch."
	Shape []int64 `json:"shape"`

	values []byte // nil for types that safetensors does not have
}

// kind returns the safetensors type of the values.
func (t *savedTensor) kind() (kind safetensors.Type, supported bool) {
	kind, supported = types[strings.TrimPrefix(t.Type, "torch.")]
	return kind, supported
}

// ReadSaved reads the model from a state of the given size. It may leave a rest unread. It never allocates more memory
// than a small multiple of that size, whatever the state claims.
func ReadSaved(r io.Reader, size int64) (*Saved, error) {
	s, err := readSaved(r, size)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = malformed("truncated")
	}
	return s, err
}

func readSaved(r io.Reader, size int64) (*Saved, error) {
	head := make([]byte, savedHead)
	if _, err := io.ReadFull(r, head[:min(size, savedHead)]); err != nil {
		return nil, err
	}
	at := len(savedMagic) - 1
	version := head[at]
	n := binary.LittleEndian.Uint64(head[len(savedMagic):])
	switch size -= savedHead; {
	case string(head[:at]) != savedMagic[:at] || size < 0 || n > uint64(size):
		return nil, malformed("it is not a state of perdure.torch")
	case version != savedMagic[at]:
		return nil, perdure.Usagef("the saved state has format %q, but this version of perdure reads format %q; use "+
			"the version that trained the model", version, savedMagic[at])
	}
	tree, err := io.ReadAll(io.LimitReader(r, int64(n)))
	if err == nil && uint64(len(tree)) < n {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	s, err := decodeSaved(tree)
	if err != nil {
		return nil, malformed("%v", err)
	}
	return s, s.readValues(r, size-int64(n))
}

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", disk.ErrCorrupt, fmt.Sprintf(format, args...))
}

// decodeSaved decodes a tree, which it changes.
func decodeSaved(tree []byte) (*Saved, error) {
	replaceNonFinite(tree)
	root, err := dictOf(tree)
	if err != nil {
		return nil, err
	}
	s := new(Saved)
	return s, cmp.Or(root.find(parametersPath, &s.parameters), root.find(buffersPath, &s.buffers),
		root.find(stepPath, &s.Steps), root.find(overPath, &s.Over))
}

// replaceNonFinite replaces NaN and Infinity in a tree with 0. Python writes them as numbers; JSON does not allow that.
func replaceNonFinite(tree []byte) {
	quoted := false
	for i := 0; i < len(tree); i++ {
		switch c := tree[i]; {
		case c == '"':
			quoted = !quoted
		case quoted && c == '\\':
			i++
		case quoted:
		case c == 'N' && bytes.HasPrefix(tree[i:], []byte("NaN")):
			copy(tree[i:], "0  ")
		case c == 'I' && bytes.HasPrefix(tree[i:], []byte("Infinity")):
			copy(tree[i:], "0       ")
		}
	}
}

// savedDict is a dict of a tree, by the JSON text of its keys.
type savedDict map[string]json.RawMessage

func dictOf(tree json.RawMessage) (savedDict, error) {
	var d struct {
		Items [][2]json.RawMessage `json:"dict"`
	}
	if err := json.Unmarshal(tree, &d); err != nil {
		return nil, err
	}
	items := savedDict{}
	for _, of := range d.Items {
		items[string(of[0])] = of[1]
	}
	return items, nil
}

// find decodes the value at a path of keys, separated by slashes.
func (d savedDict) find(path string, to any) error {
	keys := strings.Split(path, "/")
	for i, key := range keys {
		value, has := d[strconv.Quote(key)]
		if !has {
			return fmt.Errorf("it has no %s; it was not saved by DataParallel", key)
		}
		var err error
		if i == len(keys)-1 {
			err = json.Unmarshal(value, to)
		} else {
			d, err = dictOf(value)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	return nil
}

// readValues reads the values of all tensors. The values of the whole state have size bytes.
func (s *Saved) readValues(r io.Reader, size int64) error {
	var all []*savedTensor
	for _, list := range [][]savedTensor{s.parameters, s.buffers} {
		for i := range list {
			all = append(all, &list[i])
		}
	}
	slices.SortStableFunc(all, func(a, b *savedTensor) int { return cmp.Compare(a.At, b.At) })
	end := int64(0)
	for _, t := range all {
		kind, supported := t.kind()
		if !supported {
			continue
		}
		n, err := elements(t.Shape)
		if err != nil {
			return malformed("%v", err)
		}
		n *= kind.Width()
		if t.At < end || n > size-t.At {
			return malformed("a tensor has %d bytes at %d of %d, but must start at %d or later", n, t.At, size, end)
		}
		if _, err := io.CopyN(io.Discard, r, t.At-end); err != nil {
			return err
		}
		t.values = make([]byte, n)
		if _, err := io.ReadFull(r, t.values); err != nil {
			return err
		}
		end = t.At + n
	}
	return nil
}

// set sets the values of a described tensor. known is false if safetensors does not have their type.
func (t *savedTensor) set(value *safetensors.Tensor, of *described) (known bool, err error) {
	if strings.TrimPrefix(t.Type, "torch.") != of.Type || !slices.Equal(t.Shape, of.Shape) {
		return false, malformed("the saved state has type %s and shape %v, but the job's description %s and %v", t.Type,
			t.Shape, of.Type, of.Shape)
	}
	kind, known := t.kind()
	value.SetBytes(kind, t.values)
	return known, nil
}

// byTensor assigns the saved tensors to the described ones that are in no table. A nil s has none.
func (s *Saved) byTensor(all []described) (map[*described]*savedTensor, error) {
	in := map[*described]*savedTensor{}
	if s == nil {
		return in, nil
	}
	left := map[string][]savedTensor{"trained": s.parameters, "buffer": s.buffers}
	for i := range all {
		of := &all[i]
		if of.Table != "" || of.Kind == "buffer" && slices.Contains(of.Shape, 0) { // empty buffers are not saved
			continue
		}
		if list, saved := left[of.Kind]; saved && len(list) > 0 {
			in[of], left[of.Kind] = &list[0], list[1:]
		} else if saved {
			return nil, malformed("the saved state lacks %s", of.Name)
		}
	}
	if n := len(left["trained"]) + len(left["buffer"]); n > 0 {
		return nil, malformed("the saved state has %d more tensors than the job's description", n)
	}
	return in, nil
}

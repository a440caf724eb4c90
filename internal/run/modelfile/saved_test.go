package modelfile

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/safetensors"
)

// golden returns a state that the Python package has encoded: see test_export.py.
func golden(t testing.TB) []byte {
	t.Helper()
	b, err := os.ReadFile("testdata/saved.state")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// savedText describes the model of the golden state.
const savedText = `{"version":1,"others":[],"tensors":[
	{"name":"half","keys":["half","tied"],"kind":"trained","type":"bfloat16","shape":[2,3]},
	{"name":"w","keys":["w"],"kind":"trained","type":"float32","shape":[2]},
	{"name":"none","keys":["none"],"kind":"trained","type":"float32","shape":[0,3]},
	{"name":"n","keys":["n"],"kind":"buffer","type":"int64","shape":[]},
	{"name":"flags","keys":["flags"],"kind":"buffer","type":"bool","shape":[3]},
	{"name":"wave","keys":["wave"],"kind":"buffer","type":"complex64","shape":[1]},
	{"name":"f","keys":["f"],"kind":"frozen","type":"uint8","shape":[2],"table":"buffers"},
	{"name":"large","keys":["large"],"kind":"frozen","type":"float32","shape":[9],"check":"01234567"},
	{"name":"empty","keys":["empty"],"kind":"buffer","type":"float32","shape":[0]}]}`

// TestSaved checks the tensors of a state that Python has encoded, with the types, ties and frozen parameters of the
// description.
func TestSaved(t *testing.T) {
	state := golden(t)
	saved, err := ReadSaved(iotest.OneByteReader(bytes.NewReader(state)), int64(len(state)))
	if err != nil || saved.Steps != 41 || !saved.Over {
		t.Fatalf("%+v, %v", saved, err)
	}
	tensors, missing, err := StateDict(tablesOf(savedText), saved)
	if err != nil || fmt.Sprint(missing) != "[wave large]" {
		t.Fatalf("missing %q: %v", missing, err)
	}
	half := "BF16 [2 3] 0000803f0040404080" + "40a040"
	want := map[string]string{
		"half": half, "tied": half, "w": "F32 [2] 0000003f000080be", "none": "F32 [0 3] ",
		"n": "I64 [] 0700000000000000", "flags": "BOOL [3] 010001", "f": "U8 [2] 0102", "empty": "F32 [0] ",
	}
	if got := written(t, tensors); !maps.Equal(got, want) {
		t.Errorf("%v\nwant %v", got, want)
	}
}

// written writes tensors to a file, and returns the type, shape and bytes of each.
func written(t *testing.T, tensors []safetensors.Tensor) map[string]string {
	t.Helper()
	var file bytes.Buffer
	if err := safetensors.Write(&file, tensors, nil); err != nil {
		t.Fatal(err)
	}
	n := binary.LittleEndian.Uint64(file.Bytes())
	header, values := file.Bytes()[8:8+n], file.Bytes()[8+n:]
	var entries map[string]struct {
		Dtype   string
		Shape   []int64
		Offsets [2]int64 `json:"data_offsets"`
	}
	if err := json.Unmarshal(header, &entries); err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for name, e := range entries {
		all[name] = fmt.Sprintf("%s %v %x", e.Dtype, e.Shape, values[e.Offsets[0]:e.Offsets[1]])
	}
	return all
}

// TestSavedOfAnotherModel checks that a state must have exactly the tensors that the job describes.
func TestSavedOfAnotherModel(t *testing.T) {
	state := golden(t)
	for name, c := range map[string][2]string{
		"type":          {`"type":"bfloat16"`, `"type":"float16"`},
		"shape":         {`"shape":[2,3]`, `"shape":[3,2]`},
		"more tensors":  {`"trained","type":"float32","shape":[0,3]`, `"frozen","type":"float32","shape":[0]`},
		"a lacking one": {`"type":"float32","shape":[0]`, `"type":"float32","shape":[1]`},
		"the order":     {`"int64","shape":[]`, `"bool","shape":[3]`},
	} {
		text := strings.Replace(savedText, c[0], c[1], 1)
		saved, err := ReadSaved(bytes.NewReader(state), int64(len(state)))
		if err != nil || text == savedText {
			t.Fatal(name, err)
		}
		if _, _, err := StateDict(tablesOf(text), saved); !errors.Is(err, disk.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// stateOf encodes a tree and values.
func stateOf(tree, values string) []byte {
	b := binary.LittleEndian.AppendUint64([]byte(savedMagic), uint64(len(tree)))
	return append(append(b, tree...), values...)
}

// unread is the number of bytes at the end of the golden state that are not read: the padding of the last real buffer,
// and a complex one.
const unread = 61 + 64

// TestMalformedSaved checks truncated states and those whose header or tree is wrong.
func TestMalformedSaved(t *testing.T) {
	good := golden(t)
	last := len(good) - unread
	for n := range last {
		if _, err := ReadSaved(bytes.NewReader(good[:n]), int64(n)); !errors.Is(err, disk.ErrCorrupt) {
			t.Fatalf("the first %d bytes: %v", n, err)
		}
		if _, err := ReadSaved(bytes.NewReader(good[:n]), int64(len(good))); !errors.Is(err, disk.ErrCorrupt) {
			t.Fatalf("a file that ends after %d bytes: %v", n, err)
		}
	}
	tree := func(parameters string) string {
		return `{"dict":[["own",{"dict":[["step",3],["over",false]]}],["shared",{"dict":[["parameters",` + parameters +
			`]]}],["buffers",[]]]}`
	}
	tensor := func(at, shape string) string {
		return tree(`[{"tensor":` + at + `,"type":"torch.float32","shape":` + shape + `}]`)
	}
	if _, err := ReadSaved(bytes.NewReader(stateOf(tensor("0", "[2]"), "12345678")), 1<<40); err != nil {
		t.Errorf("a valid tree: %v", err)
	}
	huge := binary.LittleEndian.AppendUint64([]byte(savedMagic), 1<<63+5)
	for name, state := range map[string][]byte{
		"a huge tree":              append(huge, good[savedHead:]...),
		"no magic":                 append([]byte("perdure2"), good[len(savedMagic):]...),
		"no JSON":                  stateOf(`{"dict":[["parameters",[}`, ""),
		"a list":                   stateOf(`[1]`, ""),
		"other keys":               stateOf(`{"dict":[["w",1]]}`, ""),
		"keys without values":      stateOf(`{"dict":[["parameters"],["buffers"],["step"],["over"]]}`, ""),
		"items without pairs":      stateOf(`{"dict":{"parameters":[]}}`, ""),
		"parameters of one number": stateOf(tree(`5`), ""),
		"parameters of numbers":    stateOf(tree(`[1,2]`), ""),
		"a place before the start": stateOf(tensor("-1", "[1]"), "12345678"),
		"a place after the end":    stateOf(tensor("9", "[0]"), "12345678"),
		"a far place":              stateOf(tensor("9223372036854775807", "[1]"), "12345678"),
		"too many values":          stateOf(tensor("4", "[2]"), "12345678"),
		"a shape that overflows":   stateOf(tensor("0", "[4611686018427387904,2]"), "12345678"),
		"a negative shape":         stateOf(tensor("0", "[-1]"), "12345678"),
		"deep nesting":             stateOf(tree(strings.Repeat("[", 1<<20)+strings.Repeat("]", 1<<20)), ""),
		"tensors that overlap": stateOf(tree(`[{"tensor":0,"type":"torch.int64","shape":[1]},`+
			`{"tensor":4,"type":"torch.int32","shape":[1]}]`), "12345678"),
	} {
		_, err := ReadSaved(bytes.NewReader(state), int64(len(state)))
		if !errors.Is(err, disk.ErrCorrupt) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
	later := bytes.Replace(good, []byte(savedMagic), []byte("PERDURE3"), 1)
	if _, err := ReadSaved(bytes.NewReader(later), int64(len(later))); !errors.Is(err, perdure.ErrUsage) {
		t.Errorf("a later version: %v", err)
	}
}

// TestFailingSaved checks that the error of a store is returned as it is.
func TestFailingSaved(t *testing.T) {
	good, failed := golden(t), errors.New("no answer")
	for n := range len(good) - unread {
		r := &failing{bytes.NewReader(good[:n]), failed}
		if _, err := ReadSaved(r, int64(len(good))); !errors.Is(err, failed) {
			t.Fatalf("after %d bytes: %v", n, err)
		}
	}
}

type failing struct {
	*bytes.Reader
	err error
}

func (f *failing) Read(b []byte) (int, error) {
	if f.Len() == 0 {
		return 0, f.err
	}
	return f.Reader.Read(b)
}

// FuzzReadSaved checks that any bytes are either a state or an error.
func FuzzReadSaved(f *testing.F) {
	f.Add(golden(f))
	f.Add(stateOf(`{"dict":[["parameters",[NaN]]]}`, ""))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, err := ReadSaved(bytes.NewReader(b), int64(len(b)))
		if err != nil && !errors.Is(err, disk.ErrCorrupt) && !errors.Is(err, perdure.ErrUsage) {
			t.Error(err)
		}
	})
}

package safetensors

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/perdure/perdure"
)

var update = flag.Bool("update", false, "write the golden files")

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func testTensors() []Tensor {
	return []Tensor{
		{Name: "w", Shape: []int64{2, 3}, Data: []float32{1, -2, 0.5, 4, 5, float32(math.Inf(-1))}},
		{Name: "b", Shape: []int64{3}, Data: []float32{0.25, 0, 3}},
		{Name: "empty", Shape: []int64{0, 7}, Data: []float32{}},
		{Name: "scalar", Shape: []int64{}, Data: []float32{9}},
	}
}

func encoded(t testing.TB, tensors []Tensor, meta map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	must(t, Write(&b, tensors, meta))
	return b.Bytes()
}

func read(b []byte) ([]Tensor, map[string]string, error) {
	return Read(bytes.NewReader(b), int64(len(b)))
}

func TestGolden(t *testing.T) {
	const golden = "testdata/model.safetensors"
	meta := map[string]string{"format": "pt", "by": "perdure"}
	got := encoded(t, testTensors(), meta)
	if *update {
		must(t, os.WriteFile(golden, got, 0o666))
	}
	want, err := os.ReadFile(golden)
	must(t, err)
	if !bytes.Equal(got, want) {
		t.Error("the bytes differ from the golden file")
	}
	if n := binary.LittleEndian.Uint64(got); n%8 != 0 || got[8] != '{' {
		t.Errorf("a header of %d bytes that starts with %q", n, got[8])
	}
	tensors, gotMeta, err := read(got)
	if err != nil || !reflect.DeepEqual(tensors, testTensors()) || !reflect.DeepEqual(gotMeta, meta) {
		t.Errorf("read %v, %v, %v", tensors, gotMeta, err)
	}
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.StringOf(rapid.RuneFrom([]rune("ab.<\"é_"))), 0, 4,
			rapid.ID[string]).Draw(rt, "names")
		var tensors []Tensor
		for _, name := range names {
			shape := rapid.SliceOfN(rapid.Int64Range(0, 4), 0, 3).Draw(rt, "shape")
			n, _ := elements(shape)
			data := make([]float32, n)
			for i := range data {
				data[i] = rapid.Float32().Draw(rt, "value")
			}
			tensor := Tensor{Name: name, Shape: append([]int64{}, shape...), Data: data}
			if rapid.Bool().Draw(rt, "int64") {
				tensor.Data, tensor.Ints = nil, make([]int64, n)
				for i := range tensor.Ints {
					tensor.Ints[i] = rapid.Int64().Draw(rt, "value")
				}
			}
			tensors = append(tensors, tensor)
		}
		got, _, err := read(encoded(t, tensors, nil))
		if err != nil || Hash(got) != Hash(tensors) || len(got) != len(tensors) {
			rt.Fatalf("wrote %v, read %v, %v", tensors, got, err)
		}
	})
}

func TestMoreThanOneChunk(t *testing.T) {
	v := make([]float32, chunkBytes/2+3)
	for i := range v {
		v[i] = float32(i)
	}
	ids := make([]int64, chunkBytes/4+3)
	for i := range ids {
		ids[i] = int64(-i) << 32
	}
	want := []Tensor{
		{Name: "i", Shape: []int64{int64(len(ids))}, Ints: ids},
		{Name: "v", Shape: []int64{int64(len(v))}, Data: v},
	}
	got, _, err := read(encoded(t, want, nil))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("values differ, %v", err)
	}
}

func TestWriteRefuses(t *testing.T) {
	for what, tensors := range map[string][]Tensor{
		"a wrong shape":      {{Name: "a", Shape: []int64{2}, Data: []float32{1}}},
		"a shape of ints":    {{Name: "a", Shape: []int64{2}, Ints: []int64{1}}},
		"a negative shape":   {{Name: "a", Shape: []int64{-1, -1}, Data: []float32{1}}},
		"an overflow":        {{Name: "a", Shape: []int64{1 << 32, 1 << 32}}},
		"one name twice":     {{Name: "a", Data: []float32{1}}, {Name: "a", Ints: []int64{1}}},
		"the metadata's key": {{Name: metadataKey, Data: []float32{1}}},
		"no UTF-8":           {{Name: "\xff", Data: []float32{1}}},
		"two types":          {{Name: "a", Data: []float32{1}, Ints: []int64{1}}},
	} {
		var b bytes.Buffer
		if err := Write(&b, tensors, nil); err == nil || b.Len() != 0 {
			t.Errorf("%s: %v, %d bytes", what, err, b.Len())
		}
	}
}

func file(header string, values int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, values)...)
}

func TestReadRefuses(t *testing.T) {
	const a = `"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}`
	if _, _, err := read(file("{"+a+"}", 4)); err != nil {
		t.Fatalf("the valid file: %v", err)
	}
	for what, b := range map[string][]byte{
		"an empty file":     {},
		"a lying length":    binary.LittleEndian.AppendUint64(nil, 1<<62),
		"a negative length": binary.LittleEndian.AppendUint64(nil, 1<<63),
		"no JSON":           file("hello", 0),
		"a list":            file("[]", 0),
		"half an object":    file("{"+a, 4),
		"two objects":       file("{"+a+"}{}", 4),
		"too few bytes":     file("{"+a+"}", 3),
		"too many bytes":    file("{"+a+"}", 5),
		"one name twice":    file("{"+a+","+a+"}", 4),
		"another type":      file(strings.ReplaceAll("{"+a+"}", "F32", "F16"), 4),
		"int64 in 4 bytes":  file(strings.ReplaceAll("{"+a+"}", "F32", "I64"), 4),
		"unsigned":          file(strings.ReplaceAll(strings.ReplaceAll("{"+a+"}", "F32", "U64"), ",4]", ",8]"), 8),
		"overflow of int64": file(strings.ReplaceAll(strings.ReplaceAll("{"+a+"}", "F32", "I64"), "[1]",
			"[2305843009213693953]"), 8),
		"a wrong shape":       file(strings.ReplaceAll("{"+a+"}", "[1]", "[2]"), 4),
		"an overflow":         file(strings.ReplaceAll("{"+a+"}", "[1]", "[4611686018427387905,4]"), 4),
		"a gap":               file(strings.ReplaceAll("{"+a+"}", "[0,4]", "[4,8]"), 8),
		"an overlap":          file("{"+a+`,"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, 4),
		"metadata of numbers": file("{"+`"__metadata__":{"x":1},`+a+"}", 4),
	} {
		_, _, err := read(b)
		if !errors.Is(err, ErrMalformed) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s gives %v", what, err)
		}
	}
	b := encoded(t, testTensors(), nil)
	for i := range b {
		if _, _, err := read(b[:i]); !errors.Is(err, ErrMalformed) {
			t.Errorf("truncated to %d gives %v", i, err)
		}
	}
}

func TestHash(t *testing.T) {
	// Computed by another implementation from the documented bytes.
	const want = "f1d381e6947cc3851e8340fe5ae85b6f9253d1288131de55d62a5414d2f673fe"
	tensors := testTensors()
	if got := Hash(tensors); got != want {
		t.Errorf("got %s", got)
	}
	tensors[0], tensors[2] = tensors[2], tensors[0]
	if Hash(tensors) != want {
		t.Error("the order of the tensors changes the hash")
	}
	for what, change := range map[string]func(t []Tensor){
		"name":      func(t []Tensor) { t[0].Name = "v" },
		"shape":     func(t []Tensor) { t[0].Shape = []int64{3, 2} },
		"value":     func(t []Tensor) { t[0].Data[5] = 0 },
		"type":      func(t []Tensor) { t[2].Data, t[2].Ints = nil, []int64{} }, // no values at all
		"zero sign": func(t []Tensor) { t[1].Data[1] = float32(math.Copysign(0, -1)) },
	} {
		tensors := testTensors()
		change(tensors)
		if Hash(tensors) == want {
			t.Errorf("the %s does not change the hash", what)
		}
	}
}

// TestHashOfTypes checks that the type counts, and that equal values have the same hash however a tensor holds them.
func TestHashOfTypes(t *testing.T) {
	ones := []byte{0, 0, 0x80, 0x3f, 0, 0, 0x80, 0x3f}
	seen := map[string]Type{}
	for _, kind := range []Type{Bool, U8, I8, I16, I32, I64, F16, BF16, F32, F64} {
		of := Tensor{Name: "x", Shape: []int64{8 / kind.Width()}}
		of.SetBytes(kind, ones)
		hash := Hash([]Tensor{of})
		if seen[hash] != "" {
			t.Errorf("%s has the hash of %s", kind, seen[hash])
		}
		seen[hash] = kind
	}
	floats := Hash([]Tensor{{Name: "x", Shape: []int64{2}, Data: []float32{1, 1}}})
	ints := Hash([]Tensor{{Name: "x", Shape: []int64{1}, Ints: []int64{0x3f8000003f800000}}})
	if seen[floats] != F32 || seen[ints] != I64 {
		t.Errorf("float32 has the hash of %q, int64 of %q", seen[floats], seen[ints])
	}
}

func FuzzRead(f *testing.F) {
	f.Add(encoded(f, sparseTensors(f), nil))
	f.Add(encoded(f, testTensors(), map[string]string{"a": "b"}))
	f.Fuzz(func(t *testing.T, b []byte) {
		tensors, meta, err := read(b)
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatalf("error is not ErrMalformed: %v", err)
			}
			return
		}
		again, _, err := read(encoded(t, tensors, meta))
		if err != nil || Hash(again) != Hash(tensors) {
			t.Fatalf("a model that was read cannot be written: %v", err)
		}
	})
}

func ExampleWrite() {
	var file bytes.Buffer
	err := Write(&file, []Tensor{{Name: "w", Shape: []int64{2}, Data: []float32{1, 2}}}, nil)
	tensors, _, readErr := Read(bytes.NewReader(file.Bytes()), int64(file.Len()))
	fmt.Println(tensors[0].Name, tensors[0].Shape, tensors[0].Data, err, readErr)
	// Output: w [2] [1 2] <nil> <nil>
}

// TestMetadataRule: the rule is that of the tables or, if these only add, that of the workers' steps.
func TestMetadataRule(t *testing.T) {
	for want, tables := range map[string][]string{
		"set": {"set", "set"}, "sgd": {"add", "add"}, "adam": {"set", "add"},
	} {
		settings := map[string]string{"params.Rule.kind": `"sgd"`, "tables.a.dim": "3"}
		if want == "adam" {
			settings["params.Rule.kind"] = `"adam"`
		}
		for i, kind := range tables {
			settings[fmt.Sprintf("tables.t%d.rule.kind", i)] = `"` + kind + `"`
		}
		job := &perdure.JobSpec{Seal: perdure.Seal{Settings: settings}}
		meta := Metadata(Origin{Job: job, Data: "/home/of/somebody/ratings.csv"})
		if meta["rule"] != want || meta["data"] != "ratings.csv" {
			t.Errorf("tables with rule %q: rule %q, data %q", tables, meta["rule"], meta["data"])
		}
	}
}

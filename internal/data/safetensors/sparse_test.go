package safetensors

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/perdure/perdure"
)

// sparseTensors returns a model with a dense table with an odd number of values and a sparse one. In the given order,
// the int64 ids would not be aligned.
func sparseTensors(t testing.TB) []Tensor {
	t.Helper()
	rows, ids, err := Sparse("w", 2,
		[]perdure.RowID{1 << 63, 7, math.MaxUint64, 0},
		[]float32{1, 2, 3, 4, 5, 6, 7, 8})
	must(t, err)
	return []Tensor{{Name: "b", Shape: []int64{3}, Data: []float32{0.25, 0, 3}}, rows, ids}
}

func TestSparseGolden(t *testing.T) {
	const golden = "testdata/sparse.safetensors"
	got := encoded(t, sparseTensors(t), nil)
	if *update {
		must(t, os.WriteFile(golden, got, 0o666))
	}
	want, err := os.ReadFile(golden)
	must(t, err)
	if !bytes.Equal(got, want) {
		t.Error("the bytes differ from the golden file")
	}
	// By hand, as in docs/formats/segments.md: the ids come first, so that they are aligned.
	header := string(got[8 : 8+binary.LittleEndian.Uint64(got)])
	const words = `{"w/ids":{"dtype":"I64","shape":[4],"data_offsets":[0,32]},` +
		`"b":{"dtype":"F32","shape":[3],"data_offsets":[32,44]},` +
		`"w":{"dtype":"F32","shape":[4,2],"data_offsets":[44,76]}}`
	if strings.TrimRight(header, " ") != words {
		t.Errorf("the header is %s", header)
	}
	var values []byte
	for _, id := range []uint64{0, 7, 1 << 63, math.MaxUint64} {
		values = binary.LittleEndian.AppendUint64(values, id)
	}
	for _, v := range []float32{0.25, 0, 3, 7, 8, 3, 4, 1, 2, 5, 6} {
		values = binary.LittleEndian.AppendUint32(values, math.Float32bits(v))
	}
	if !bytes.Equal(got[8+len(header):], values) {
		t.Errorf("the values are % x", got[8+len(header):])
	}
}

// TestSparse: rows in any order give the same file. The result is compared with a map.
func TestSparse(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dim := rapid.IntRange(1, 3).Draw(rt, "dim")
		ids := rapid.SliceOfNDistinct(rapid.Map(rapid.Uint64(),
			func(v uint64) perdure.RowID { return perdure.RowID(v) }),
			0, 20, rapid.ID[perdure.RowID]).Draw(rt, "ids")
		values := make([]float32, len(ids)*dim)
		rowOf := map[int64][]float32{}
		for i := range values {
			values[i] = float32(i)
		}
		for i, id := range ids {
			rowOf[int64(id)] = values[i*dim:][:dim]
		}
		given := append([]perdure.RowID(nil), ids...)
		rows, rowIDs, err := Sparse("w", dim, ids, values)
		if err != nil || rows.Name != "w" || rowIDs.Name != "w/ids" ||
			!reflect.DeepEqual(given, append([]perdure.RowID(nil), ids...)) {
			rt.Fatalf("%+v, %+v, %v", rows, rowIDs, err)
		}
		if len(rowIDs.Ints) != len(ids) || !reflect.DeepEqual(rows.Shape, []int64{int64(len(ids)), int64(dim)}) {
			rt.Fatalf("%d rows became %v of shape %v", len(ids), rowIDs.Ints, rows.Shape)
		}
		for i, id := range rowIDs.Ints {
			if i > 0 && uint64(rowIDs.Ints[i-1]) >= uint64(id) {
				rt.Fatalf("ids %d and %d", uint64(rowIDs.Ints[i-1]), uint64(id))
			}
			if !reflect.DeepEqual(rows.Data[i*dim:][:dim], rowOf[id]) {
				rt.Fatalf("row %d is %v, not %v", id, rows.Data[i*dim:][:dim], rowOf[id])
			}
		}
		if _, _, err := read(encoded(t, []Tensor{rows, rowIDs}, nil)); err != nil {
			rt.Fatal(err)
		}
	})
}

func TestSparseRefuses(t *testing.T) {
	for what, c := range map[string]struct {
		dim    int
		ids    []perdure.RowID
		values int
		want   string
	}{
		"an id twice in order":     {1, []perdure.RowID{1, 2, 2}, 3, "table w: row 2 occurs twice"},
		"an id twice out of order": {1, []perdure.RowID{2, 1, 2}, 3, "table w: row 2 occurs twice"},
		"half a row":               {2, []perdure.RowID{1}, 1, "1 values do not fit 1 rows of 2"},
		"too many rows":            {2, []perdure.RowID{1}, 4, "4 values do not fit 1 rows of 2"},
		"rows of nothing":          {0, nil, 0, "rows of 0"},
	} {
		_, _, err := Sparse("w", c.dim, c.ids, make([]float32, c.values))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s gives %v", what, err)
		}
	}
}

// TestHashOfSparse: the hash was computed by another implementation from the documented bytes.
func TestHashOfSparse(t *testing.T) {
	const want = "956a0648be7a6a3d87429a382f2aa023105f2a149250adcdbddee140cf370fc4"
	if got := Hash(sparseTensors(t)); got != want {
		t.Errorf("got %s", got)
	}
}

func ExampleSparse() {
	rows, ids, err := Sparse("users", 2, []perdure.RowID{90, 7}, []float32{1, 2, 3, 4})
	fmt.Println(rows.Name, rows.Shape, rows.Data)
	fmt.Println(ids.Name, ids.Shape, ids.Ints, err)
	// Output:
	// users [2 2] [3 4 1 2]
	// users/ids [2] [7 90] <nil>
}

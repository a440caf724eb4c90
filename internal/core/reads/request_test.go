package reads

import (
	"reflect"
	"testing"

	"github.com/perdure/perdure"
)

// A reused call keeps nothing of its former use, field by field.
func TestCallIsAsNew(t *testing.T) {
	r := New(Config{Slots: 1, Bytes: 1 << 20}, 2)
	c := r.newCall(nil, nil)
	*c = Call{
		r: r, t: &Table{}, dst: []float32{1}, pass: true, left: 1, again: true, made: []*request{{}}, open: c.open,
		encoding: perdure.EncodingInt8,
		saved:    [][]byte{{1}}, ids: []perdure.RowID{1}, count: 1, life: 7, clock: 7, seen: []readRecord{{n: 1}},
		held: 1, pushed: true, late: 1,
	}
	used := reflect.ValueOf(c).Elem()
	for i := range used.NumField() {
		if used.Field(i).IsZero() {
			t.Fatalf("the test does not set the field %s", used.Type().Field(i).Name)
		}
	}
	c.Free()
	if again := r.newCall(nil, nil); again != c {
		t.Fatal("the call was not reused")
	}
	fresh := reflect.ValueOf(New(r.cfg, 2).newCall(nil, nil)).Elem()
	for i := range used.NumField() {
		f, got, want := used.Type().Field(i), used.Field(i), fresh.Field(i)
		var same bool
		if f.Type.Kind() == reflect.Slice { // its memory is reused
			same = got.Len() == want.Len()
		} else {
			same = f.Name == "r" || got.Equal(want)
		}
		if !same {
			t.Errorf("%s is %v in a reused call, want %v", f.Name, got, want)
		}
	}
	for s, q := range c.open {
		if q != nil {
			t.Errorf("rows are still being added to a request to shard %d", s)
		}
	}
}

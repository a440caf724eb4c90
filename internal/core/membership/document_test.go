package membership

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// big returns the record of a job with entries in every list.
func big(t testing.TB) *JobRecord {
	scar := perdure.Recovery{Kind: perdure.RecoverScar, Every: 20, Share: perdure.DefaultShare}
	job := perdure.JobSpec{Servers: 3, Slots: 4, Shards: 5, Recovery: scar}
	f := NewJobRecord(job, 1, 0, []perdure.TableSpec{{Name: `"shards":[]`, Rows: 3, Dim: 1}})
	if len(f.Running.Files) != 5 || len(f.Running.Counted) != 5 {
		t.Fatalf("the job has no files of rows: %+v", f.Running)
	}
	return &f
}

// encodes checks that a document equals the encoding by package encoding/json.
func encodes(t testing.TB, d *Document, f *JobRecord, what string) {
	t.Helper()
	want, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	got, err := d.Encode(f)
	if err != nil || string(got) != string(want) {
		t.Fatalf("%s (%v):\n%s\nwant\n%s", what, err, got, want)
	}
}

// TestDocumentSeesEveryField checks that the document reflects a change of any field of the job record, even if it is
// made in place.
func TestDocumentSeesEveryField(t *testing.T) {
	f := big(t)
	f.View.Shards[2] = protocol.ShardView{
		Followers: make([]protocol.Holder, 2), Joining: &protocol.Holder{}, Base: make([]perdure.Clock, 2),
		Saved: make([]protocol.SavedFile, 2),
	}
	f.Slots[1].UnknownShards, f.Slots[1].Former = make([]perdure.ShardID, 2), make([]protocol.Interval, 2)
	f.Running.Files[1] = make([]protocol.SavedFile, 2)
	f.Running.States = [][]protocol.SavedFile{nil, make([]protocol.SavedFile, 1), nil, nil, nil}
	var d Document
	encodes(t, &d, f, "at first")
	changed := 0
	var walk func(v reflect.Value, path string)
	leaf := func(v reflect.Value, path string, change func()) {
		before := reflect.ValueOf(v.Interface())
		change()
		encodes(t, &d, f, path)
		v.Set(before)
		encodes(t, &d, f, path+", as it was")
		changed++
	}
	walk = func(v reflect.Value, path string) {
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				if v.Type().Field(i).IsExported() {
					walk(v.Field(i), path+"."+v.Type().Field(i).Name)
				}
			}
		case reflect.Pointer:
			if !v.IsNil() {
				walk(v.Elem(), path)
				leaf(v, path, v.SetZero)
			}
		case reflect.Slice:
			for i := range v.Len() {
				walk(v.Index(i), fmt.Sprintf("%s[%d]", path, i))
			}
			leaf(v, path, v.SetZero)
			leaf(v, path, func() { v.Set(reflect.MakeSlice(v.Type(), 0, 0)) })
			longer := reflect.Append(v.Slice3(0, v.Len(), v.Len()), reflect.Zero(v.Type().Elem()))
			leaf(v, path, func() { v.Set(longer) })
		case reflect.Bool:
			leaf(v, path, func() { v.SetBool(!v.Bool()) })
		case reflect.String:
			leaf(v, path, func() { v.SetString(v.String() + `<"slots":[]`) })
		case reflect.Int, reflect.Int32, reflect.Int64:
			leaf(v, path, func() { v.SetInt(v.Int() + 7) })
		case reflect.Uint8, reflect.Uint32, reflect.Uint64:
			leaf(v, path, func() { v.SetUint(v.Uint() + 7) })
		case reflect.Float64:
			leaf(v, path, func() { v.SetFloat(v.Float() + 0.5) })
		case reflect.Map:
		default:
			t.Fatalf("%s is a %v, which this test does not support", path, v.Kind())
		}
	}
	for path, of := range map[string]any{
		"View": &f.View, "Servers": &f.Servers, "Slots": &f.Slots, "Running": &f.Running, "lostUpdates": &f.lostUpdates,
	} {
		walk(reflect.ValueOf(of).Elem(), path)
	}
	if changed < 300 {
		t.Errorf("only %d fields were changed", changed)
	}
}

// TestDocumentCosts checks that unchanged items are not encoded again.
func TestDocumentCosts(t *testing.T) {
	f := big(t)
	var d Document
	encodes(t, &d, f, "at first")
	texts := func() (all [][]byte) {
		return slices.Concat(d.shards.texts, d.viewSlots.texts, d.servers.texts, d.slots.texts, d.files.texts,
			d.counted.texts)
	}
	before := texts()
	f.View.Revision++
	f.View.Shards[3].Epoch++
	f.Slots[2].PID = 9
	encodes(t, &d, f, "after a change")
	again := 0
	for i, text := range texts() {
		if &text[0] != &before[i][0] {
			again++
		}
	}
	if again != 2 {
		t.Errorf("%d of %d items are encoded again, want the two that have changed", again, len(before))
	}
}

// TestDocumentGrowsAndShrinks encodes lists of varying lengths in succession.
func TestDocumentGrowsAndShrinks(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var d Document
		for range 20 {
			f := big(t)
			f.Slots, f.View.Slots = make([]Member, rng.IntN(4)), make([]protocol.SlotView, rng.IntN(4))
			f.Servers, f.View.Shards = make([]Member, rng.IntN(4)), make([]protocol.ShardView, rng.IntN(4))
			f.Running.Files = f.Running.Files[:rng.IntN(5)]
			if rng.IntN(2) == 0 {
				f.Running.States = make([][]protocol.SavedFile, rng.IntN(3))
			}
			for i := range f.Slots {
				f.Slots[i].PID = rng.IntN(2)
			}
			encodes(t, &d, f, fmt.Sprintf("seed %d", seed))
		}
	}
}

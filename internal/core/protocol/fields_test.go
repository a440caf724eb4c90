package protocol

import (
	"reflect"
	"testing"

	"github.com/perdure/perdure"
)

// TestEveryField changes each field of a shard's status, and expects that the delta encoder notices: a new field that
// neither isActionable nor countsChanged compares would never be sent.
func TestEveryField(t *testing.T) {
	fields := reflect.TypeFor[ShardStatus]()
	for i := range fields.NumField() {
		f := fields.Field(i)
		switch {
		case f.Name == "Shard": // identifies the status
		case f.Type.Kind() == reflect.Struct:
			for j := range f.Type.NumField() {
				checkSent(t, f.Type.Field(j).Name, func(s reflect.Value) reflect.Value { return s.Field(i).Field(j) })
			}
		default:
			checkSent(t, f.Name, func(s reflect.Value) reflect.Value { return s.Field(i) })
		}
	}
}

// checkSent checks that the delta encoder notices a change of one field of a status.
func checkSent(t *testing.T, name string, field func(status reflect.Value) reflect.Value) {
	one := int64(1)
	now := ShardStatus{}
	switch f := field(reflect.ValueOf(&now).Elem()); f.Kind() {
	case reflect.Bool:
		f.SetBool(true)
	case reflect.Int64:
		f.SetInt(1)
	case reflect.Uint64:
		f.SetUint(1)
	case reflect.Float64:
		f.SetFloat(1)
	case reflect.String:
		f.SetString("x")
	case reflect.Slice:
		f.Set(reflect.MakeSlice(f.Type(), 1, 1))
	case reflect.Pointer:
		f.Set(reflect.ValueOf(&one))
	default:
		t.Fatalf("%s is a %s: extend this test", name, f.Kind())
	}
	if !isActionable(&ShardStatus{}, &now, perdure.MaxClock) && !countsChanged(&ShardStatus{}, &now) {
		t.Errorf("a change of %s is not sent", name)
	}
}

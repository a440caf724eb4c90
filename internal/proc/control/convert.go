package control

import (
	"encoding"
	"fmt"
	"reflect"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"
)

// convert converts a plain Go value to a message, or the reverse. Fields with the same name have the same meaning,
// so a new field needs no code here. A test fills every field and fails if one is missing.
func convert[T any](from any) (to T, err error) {
	if err = convertValue(reflect.ValueOf(&to).Elem(), reflect.ValueOf(from)); err != nil {
		err = fmt.Errorf("control: %T: %w", from, err)
	}
	return to, err
}

// convertValue copies structs field by field, lists element by element, and numbers and strings unchanged. A type with
// a text form, such as a recovery strategy, becomes that text in a message. Nil and "" leave to unchanged.
func convertValue(to, from reflect.Value) error {
	if from.Kind() == reflect.Pointer {
		if from.IsNil() {
			return nil
		}
		from = from.Elem()
	}
	if to.Kind() == reflect.Pointer {
		to.Set(reflect.New(to.Type().Elem()))
		to = to.Elem()
	}
	switch {
	case to.Kind() == reflect.Slice:
		return convertList(to, from)
	case to.Kind() == reflect.Struct && from.Kind() == reflect.Struct:
		for _, f := range fieldPairs(to.Type(), from.Type()) {
			if err := convertValue(to.FieldByIndex(f.to), from.FieldByIndex(f.from)); err != nil {
				return fmt.Errorf("%s: %w", to.Type().FieldByIndex(f.to).Name, err)
			}
		}
		return nil
	case from.Kind() == reflect.Struct:
		text, err := from.Interface().(encoding.TextMarshaler).MarshalText()
		to.SetString(string(text))
		return err
	case to.Kind() == reflect.Struct:
		if from.Len() == 0 {
			return nil
		}
		return to.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(from.String()))
	}
	to.Set(from.Convert(to.Type()))
	return nil
}

func convertList(to, from reflect.Value) error {
	n := from.Len()
	if n == 0 {
		return nil
	}
	to.Set(reflect.MakeSlice(to.Type(), n, n))
	for i := range n {
		if err := convertValue(to.Index(i), from.Index(i)); err != nil {
			return fmt.Errorf("%d: %w", i, err)
		}
	}
	return nil
}

// renamedFields maps names of message fields to different names in the plain values: messages include the unit.
var renamedFields = map[string]string{"IntervalSeconds": "Interval", "RanSeconds": "Ran", "QueuedBytes": "Bytes"}

type structs struct{ to, from reflect.Type }

// fieldPair has the indexes of a field that two structs share.
type fieldPair struct{ to, from []int }

// fieldCache caches the result of fieldPairs, because a view has thousands of shards.
var fieldCache sync.Map // []fieldPair by structs

// fieldPairs returns the shared fields of two structs, one of which is a message. Each field of the message must exist
// in the plain struct or in a struct embedded in it.
func fieldPairs(to, from reflect.Type) (all []fieldPair) {
	if all, is := fieldCache.Load(structs{to, from}); is {
		return all.([]fieldPair)
	}
	message, plain := to, from
	toMessage := reflect.PointerTo(to).Implements(reflect.TypeFor[proto.Message]())
	if !toMessage {
		message, plain = from, to
	}
	for _, m := range reflect.VisibleFields(message) {
		if !m.IsExported() {
			continue
		}
		name := m.Name
		if other, is := renamedFields[name]; is {
			name = other
		}
		p, is := plain.FieldByNameFunc(func(n string) bool { return strings.EqualFold(n, name) })
		switch {
		case !is:
			panic(fmt.Sprintf("control: %v lacks %s of %v", plain, name, message))
		case toMessage:
			all = append(all, fieldPair{m.Index, p.Index})
		default:
			all = append(all, fieldPair{p.Index, m.Index})
		}
	}
	fieldCache.Store(structs{to, from}, all)
	return all
}

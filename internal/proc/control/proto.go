package control

import (
	"encoding"
	"fmt"
	"reflect"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"
)

// translated makes a message of a plain Go value, or a plain value of a message. Fields of the same name have the same
// meaning, so that a new one needs no code here; a test fills every field and fails when one is forgotten.
func translated[T any](from any) (to T, err error) {
	if err = translate(reflect.ValueOf(&to).Elem(), reflect.ValueOf(from)); err != nil {
		err = fmt.Errorf("control: %T: %w", from, err)
	}
	return to, err
}

// translate copies structs field by field, lists item by item, and numbers and texts as they are. A value that has a
// text of its own, such as a recovery strategy, is that text in a message. Nil and "" leave to as it is.
func translate(to, from reflect.Value) error {
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
		return translateList(to, from)
	case to.Kind() == reflect.Struct && from.Kind() == reflect.Struct:
		for _, f := range fieldsOf(to.Type(), from.Type()) {
			if err := translate(to.FieldByIndex(f.to), from.FieldByIndex(f.from)); err != nil {
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

func translateList(to, from reflect.Value) error {
	n := from.Len()
	if n == 0 {
		return nil
	}
	to.Set(reflect.MakeSlice(to.Type(), n, n))
	for i := range n {
		if err := translate(to.Index(i), from.Index(i)); err != nil {
			return fmt.Errorf("%d: %w", i, err)
		}
	}
	return nil
}

// otherNames are fields of messages that plain values call otherwise: the messages say the unit.
var otherNames = map[string]string{"IntervalSeconds": "Interval", "RanSeconds": "Ran", "QueuedBytes": "Bytes"}

type structs struct{ to, from reflect.Type }

// sameFields is where two structs have the same field.
type sameFields struct{ to, from []int }

// known has the fields of two structs: a view has thousands of shards.
var known sync.Map // of []sameFields, by structs

// fieldsOf returns the fields of two structs, of which one is a message. Each field of a message is one of the plain
// value, or of a struct that is embedded there.
func fieldsOf(to, from reflect.Type) (all []sameFields) {
	if all, is := known.Load(structs{to, from}); is {
		return all.([]sameFields)
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
		if other, is := otherNames[name]; is {
			name = other
		}
		p, is := plain.FieldByNameFunc(func(n string) bool { return strings.EqualFold(n, name) })
		switch {
		case !is:
			panic(fmt.Sprintf("control: %v lacks %s of %v", plain, name, message))
		case toMessage:
			all = append(all, sameFields{m.Index, p.Index})
		default:
			all = append(all, sameFields{p.Index, m.Index})
		}
	}
	known.Store(structs{to, from}, all)
	return all
}

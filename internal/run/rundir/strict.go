package rundir

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"strconv"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
)

// MaxSettingsBytes is the maximum size of a run.json in bytes, far above any real one.
const MaxSettingsBytes = 64 << 20

// ReadRun reads a run.json into the struct that run points to. Each key must be a field of run, with the same case, and
// occur once: a key that would be ignored is an error. Each error is one line that names the file.
func ReadRun(file string, run any) error {
	b, err := disk.ReadRegular(file, MaxSettingsBytes)
	if err == nil && len(bytes.TrimSpace(b)) == 0 {
		err = errors.New("it is empty")
	}
	if err == nil {
		var tree any
		err = json.Unmarshal(b, &tree) // rejects invalid JSON
	}
	if err != nil {
		if at, is := errors.AsType[*fs.PathError](err); is {
			err = at.Err
		}
		return fmt.Errorf("%s is not a run's settings file: %w", file, err)
	}
	if err := checkSchema(b); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	s := strict{tokens: json.NewDecoder(bytes.NewReader(b))}
	if err := s.value("", reflect.TypeOf(run)); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if err := decode(b, run); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

func decode(b []byte, v any) error {
	err := json.Unmarshal(b, v)
	if bad, is := errors.AsType[*json.UnmarshalTypeError](err); is {
		return fmt.Errorf("%s cannot be a JSON %s", bad.Field, bad.Value)
	}
	return err
}

// checkSchema returns an error for settings with another schema version or none.
func checkSchema(b []byte) error {
	var of struct {
		Schema uint64 `json:"schema"`
	}
	if err := decode(b, &of); err != nil {
		return err
	}
	if err := disk.CheckVersion(of.Schema, Schema); err != nil {
		return perdure.Usagef("the run was %w", err)
	}
	return nil
}

// strict walks through valid JSON and the Go type for it in parallel.
type strict struct {
	tokens *json.Decoder
}

var textual = reflect.TypeFor[encoding.TextUnmarshaler]()

// value checks one value. A nil type accepts any value.
func (s *strict) value(path string, t reflect.Type) error {
	token, err := s.tokens.Token()
	if err != nil {
		return err
	}
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch token := token.(type) {
	case json.Delim:
		if token == '[' {
			return s.array(path, t)
		}
		return s.object(path, t)
	case string:
		if t != nil && reflect.PointerTo(t).Implements(textual) {
			v, _ := reflect.New(t).Interface().(encoding.TextUnmarshaler) // as checked above
			if err := v.UnmarshalText([]byte(token)); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
		}
	}
	return nil
}

func (s *strict) array(path string, t reflect.Type) error {
	var item reflect.Type
	if t != nil && (t.Kind() == reflect.Slice || t.Kind() == reflect.Array) {
		item = t.Elem()
	}
	for i := 0; s.tokens.More(); i++ {
		if err := s.value(path+"."+strconv.Itoa(i), item); err != nil {
			return err
		}
	}
	_, err := s.tokens.Token()
	return err
}

func (s *strict) object(path string, t reflect.Type) error {
	seen := map[string]bool{}
	for s.tokens.More() {
		token, err := s.tokens.Token()
		if err != nil {
			return err
		}
		key, _ := token.(string) // the decoder returns only strings as keys
		at := strings.TrimPrefix(path+"."+key, ".")
		if seen[key] {
			return fmt.Errorf("duplicate key %s; remove one of them", at)
		}
		seen[key] = true
		of, err := s.field(at, key, t)
		if err != nil {
			return err
		}
		if err := s.value(at, of); err != nil {
			return err
		}
	}
	_, err := s.tokens.Token()
	return err
}

// field returns the type of the field for a key.
func (s *strict) field(at, key string, t reflect.Type) (reflect.Type, error) {
	switch {
	case t == nil:
		return nil, nil
	case t.Kind() == reflect.Map:
		return t.Elem(), nil
	case t.Kind() != reflect.Struct:
		return nil, nil // Unmarshal reports the wrong type
	}
	like := ""
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "" || !f.IsExported() || name == "-":
			continue
		case name == "":
			name = f.Name
		}
		if name == key {
			return f.Type, nil
		}
		if strings.EqualFold(name, key) {
			like = "; write " + name
		}
	}
	if at == schemaKey {
		return nil, nil
	}
	return nil, fmt.Errorf("unknown key %s%s", at, like)
}

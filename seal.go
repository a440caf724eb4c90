package perdure

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// Seal holds the settings on which a job's model depends, by name, and their hash. A run that resumes from a checkpoint
// must have the same settings.
type Seal struct {
	SHA256 string `json:"sha256"`
	// Settings maps names to JSON values. A value that is false, 0 or empty is left out, so that later versions can add
	// settings.
	Settings map[string]string `json:"settings"`
}

// NewSeal seals the JSON encodings of values. Each field of an object becomes a setting of its own, named with a dot,
// as in a.b. Array items are named by their index in the same way.
func NewSeal(values map[string]any) (Seal, error) {
	s := Seal{Settings: map[string]string{}}
	for name, v := range values {
		text, err := plainJSON(v)
		if err != nil {
			return s, fmt.Errorf("setting %s: %w", name, err)
		}
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		var tree any
		if err := d.Decode(&tree); err != nil {
			return s, fmt.Errorf("setting %s: %w", name, err)
		}
		if err := s.add(name, tree); err != nil {
			return s, err
		}
	}
	s.SHA256 = s.sum()
	return s, nil
}

func plainJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSpace(b.Bytes()), err
}

func (s *Seal) add(name string, v any) error {
	switch v := v.(type) {
	case map[string]any:
		for key, item := range v {
			if err := s.add(name+"."+key, item); err != nil {
				return err
			}
		}
		return nil
	case []any:
		for i, item := range v {
			if err := s.add(name+"."+strconv.Itoa(i), item); err != nil {
				return err
			}
		}
		return nil
	}
	text, err := plainJSON(v)
	if err == nil && !slices.Contains([]string{"null", "false", "0", `""`}, string(text)) {
		s.Settings[name] = string(text)
	}
	return err
}

// sum returns a hexadecimal SHA-256 hash. It covers one line per setting, in ascending byte order of the names: name,
// "=", value, newline.
func (s *Seal) sum() string {
	h := sha256.New() // its Write never fails
	for _, name := range slices.Sorted(maps.Keys(s.Settings)) {
		fmt.Fprintf(h, "%s=%s\n", name, s.Settings[name])
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Validate returns an error if the hash does not match the settings. A job in memory may have no seal.
func (s *Seal) Validate() error {
	none := s.SHA256 == "" && len(s.Settings) == 0
	if got := s.sum(); !none && got != s.SHA256 {
		return fmt.Errorf("the seal does not match its settings: it has hash %.16s…, but the settings have %.16s…",
			s.SHA256, got)
	}
	return nil
}

// Without returns a seal without the settings for which leave returns true.
func (s *Seal) Without(leave func(name string) bool) Seal {
	t := Seal{Settings: maps.Clone(s.Settings)}
	maps.DeleteFunc(t.Settings, func(name, _ string) bool { return leave(name) })
	t.SHA256 = t.sum()
	return t
}

// Differs returns the name of the first setting in which the two seals differ, and both values. A setting that is
// missing from one seal has the value "none". The name is "" if the seals are equal.
func (s *Seal) Differs(other *Seal) (name, mine, others string) {
	if s.SHA256 == other.SHA256 {
		return "", "", ""
	}
	names := slices.Concat(slices.Collect(maps.Keys(s.Settings)), slices.Collect(maps.Keys(other.Settings)))
	slices.Sort(names)
	for _, n := range names {
		a, inMine := s.Settings[n]
		b, inOthers := other.Settings[n]
		if a == b && inMine == inOthers {
			continue
		}
		if !inMine {
			a = "none"
		}
		if !inOthers {
			b = "none"
		}
		return n, a, b
	}
	return "settings", s.SHA256, other.SHA256
}

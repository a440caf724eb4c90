package settings

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// FirstDifference returns the first key of run.json in which a requested run differs from the one that was started,
// with both values. It returns "" if they are equal. Values that every run takes from its command line, and values that
// are completed when a run starts, are not compared.
func FirstDifference(started, asked Run) string {
	was, is := asTree(started), asTree(asked)
	key, a, b := differs("", was, is)
	if key == "" {
		return ""
	}
	return fmt.Sprintf("%s is %s there, but %s is requested", key, a, b)
}

// asTree returns a run as maps and scalars, without the values that are not compared.
func asTree(bare Run) any {
	bare.Version, bare.Log, bare.Saved, bare.Tables, bare.Checkpoints.Init = "", nil, nil, nil, nil
	job := &bare.Job
	job.ID, job.AwaitExport, job.FixedEnd, job.Log, job.LogSecret = "", false, false, "", false
	if len(bare.Faults) == 0 {
		bare.Faults = nil
	}
	var tree any
	b, err := json.Marshal(bare)
	if err == nil {
		bare, err = Decode(b) // as if it was read from a file, with the defaults for missing values
	}
	if err == nil {
		b, err = json.Marshal(bare)
	}
	if err == nil {
		err = json.Unmarshal(b, &tree)
	}
	if err != nil {
		return err.Error() // settings that cannot be written have never started
	}
	return tree
}

// sealKey is compared last because it follows from all other keys.
const sealKey = "seal"

// differs returns the first key in which two trees differ, and both values.
func differs(at string, a, b any) (key, was, is string) {
	x, y := asMap(a), asMap(b)
	if x == nil || y == nil {
		if reflect.DeepEqual(a, b) {
			return "", "", ""
		}
		return strings.TrimPrefix(at, "."), short(a), short(b)
	}
	all := maps.Clone(x)
	maps.Copy(all, y)
	keys := slices.Sorted(maps.Keys(all))
	slices.SortStableFunc(keys, func(a, b string) int { return last(a) - last(b) })
	for _, k := range keys {
		if key, was, is = differs(at+"."+k, x[k], y[k]); key != "" {
			return key, was, is
		}
	}
	return "", "", ""
}

func last(key string) int {
	if key == sealKey {
		return 1
	}
	return 0
}

func asMap(v any) map[string]any {
	m, _ := v.(map[string]any) // nil if it is not a map
	return m
}

// short returns a value as one line.
func short(v any) string {
	const most = 60
	if v == nil {
		return "not set"
	}
	b, err := json.Marshal(v)
	if err != nil || len(b) > most {
		return "a longer value"
	}
	return string(b)
}

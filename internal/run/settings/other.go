package settings

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Other says in what a run that is asked for is another than the one that has begun: by the first key of
// run.json that differs. "" where both are the same; what each run is told anew, and what is completed when
// one begins, does not count.
func Other(begun, asked Run) string {
	was, is := asTree(begun), asTree(asked)
	key, a, b := differs("", was, is)
	if key == "" {
		return ""
	}
	return fmt.Sprintf("%s is %s there, and %s is asked for", key, a, b)
}

// asTree is a run as maps and scalars, without what does not count.
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
		bare, err = Told(b) // as one that was read, with what such a one has where nothing is said
	}
	if err == nil {
		b, err = json.Marshal(bare)
	}
	if err == nil {
		err = json.Unmarshal(b, &tree)
	}
	if err != nil {
		return err.Error() // settings that cannot be written have never begun
	}
	return tree
}

// sealKey is what follows from all others: it is looked at last.
const sealKey = "seal"

// differs finds the first key in which two trees differ, and what they have there.
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
	m, _ := v.(map[string]any) // nil: it is none
	return m
}

// short is a value in one line.
func short(v any) string {
	const most = 60
	if v == nil {
		return "not said"
	}
	b, err := json.Marshal(v)
	if err != nil || len(b) > most {
		return "something else"
	}
	return string(b)
}

package settings

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Flatten returns the leaves of v's JSON by path, for example settings by their path in run.json. A list is one leaf.
// Flatten omits null.
func Flatten(v any) (map[string]any, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var tree any
	if err := json.Unmarshal(b, &tree); err != nil {
		return nil, err
	}
	leaves := map[string]any{}
	flatten(leaves, "", tree)
	return leaves, nil
}

func flatten(to map[string]any, path string, tree any) {
	object, ok := tree.(map[string]any)
	if !ok && tree != nil {
		to[path] = tree
	}
	for name, v := range object {
		flatten(to, strings.TrimPrefix(path+"."+name, "."), v)
	}
}

// FirstDifference returns the first key of run.json in which a requested run differs from the one that was started,
// with both values. It returns "" if they are equal. Values that every run takes from its command line, and values that
// are completed when a run starts, are not compared.
func FirstDifference(started, asked Run) (string, error) {
	was, err := comparedValues(started)
	if err != nil {
		return "", err
	}
	is, err := comparedValues(asked)
	if err != nil {
		return "", err
	}
	all := maps.Clone(was)
	maps.Copy(all, is)
	keys := slices.SortedFunc(maps.Keys(all), func(a, b string) int {
		if x, y := strings.HasPrefix(a, sealKey), strings.HasPrefix(b, sealKey); x != y && x {
			return 1
		} else if x != y {
			return -1
		}
		return strings.Compare(a, b)
	})
	for _, k := range keys {
		if !reflect.DeepEqual(was[k], is[k]) {
			return fmt.Sprintf("%s is %s there, but %s is requested", k, short(was[k]), short(is[k])), nil
		}
	}
	return "", nil
}

// sealKey is compared last because the seal follows from all other settings.
const sealKey = "job.seal."

// comparedValues returns the values of a run that are compared, as if it was read from a file, with the defaults for
// missing values.
func comparedValues(s Run) (map[string]any, error) {
	s.Version, s.Log, s.Saved, s.Tables, s.Checkpoints.Init = "", nil, nil, nil, nil
	job := &s.Job
	job.ID, job.AwaitExport, job.FixedEnd, job.Log, job.LogSecret = "", false, false, "", false
	if len(s.Faults) == 0 {
		s.Faults = nil
	}
	b, err := json.Marshal(s)
	if err == nil {
		s, err = Decode(b)
	}
	if err != nil {
		return nil, err
	}
	return Flatten(s)
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

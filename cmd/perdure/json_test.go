package main

import (
	"encoding/json"
	"testing"
)

// TestJSON: what commands say is JSON where that is asked for, and nothing else.
func TestJSON(t *testing.T) {
	t.Parallel()
	_, dir := trained(t, small("--clocks", "20", "--recovery", "checkpoint:10")...)
	_, other := trained(t, small("--clocks", "20")...)
	for _, args := range [][]string{
		{"version"},
		{"workloads"},
		{"data"},
		{"runs", "ls", dir},
		{"runs", "show", dir},
		{"runs", "compare", dir, other},
		{"status", dir},
		{"status", "--run", dir},
		{"checkpoint", "ls", dir},
		{"checkpoint", "show", dir},
		{"checkpoint", "verify", dir},
	} {
		code, out, errs := invoke(t, append(args, "--json")...)
		var document any
		if err := json.Unmarshal([]byte(out), &document); err != nil || code != 0 || errs != "" {
			t.Errorf("%v: exit code %d, %v, %q\n%s", args, code, err, errs, out)
		}
	}
}

// TestRunIsNamedOnce: the folder of a run is an argument of status and stop, or --run.
func TestRunIsNamedOnce(t *testing.T) {
	t.Parallel()
	wantRefused(t, exitUsage, "the run is named twice", "status", "a", "--run", "b")
	wantRefused(t, exitUsage, "the run is named twice", "stop", "a", "--run", "b")
}

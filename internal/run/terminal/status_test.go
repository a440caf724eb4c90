package terminal

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/proc/control"
)

// TestDrainedLine checks the states of a draining server. It is draining while it hands over, drained when other
// servers have all its replicas, and gone when it has ended, however often the coordinator has restarted since. Its
// successor has a state of its own. A server that ended before the others had everything is dead.
func TestDrainedLine(t *testing.T) {
	for name, c := range map[string]struct {
		state                control.ProcessState
		draining             bool
		drained, incarnation perdure.Incarnation
		word                 string
		gone                 bool
	}{
		"it works":               {control.ProcessLive, false, 0, 2, "live", false},
		"it never came":          {control.ProcessStarting, false, 0, 0, "starting", false},
		"it hands over":          {control.ProcessLive, true, 0, 2, "draining", false},
		"one before was drained": {control.ProcessLive, true, 1, 2, "draining", false},
		"others have all":        {control.ProcessLive, true, 2, 2, "drained", false},
		"it has ended":           {control.ProcessDead, true, 2, 2, "drained", true},
		"the coordinator is new": {control.ProcessStarting, false, 2, 2, "drained", true},
		"another has its place":  {control.ProcessLive, false, 2, 3, "live", false},
		"another is to have it":  {control.ProcessStarting, false, 2, 3, "starting", false},
		"it ended before":        {control.ProcessDead, true, 1, 2, "dead", false},
	} {
		line := processLine(&control.Process{
			Role: "server", Index: 1, State: c.state, Draining: c.draining, Drained: c.drained,
			Incarnation: c.incarnation, Shards: 3, Bytes: 2e6,
		})
		if word := strings.Fields(line)[5]; word != c.word || strings.HasSuffix(line, ", gone") != c.gone ||
			strings.Contains(line, "left") != (c.word == "draining") {
			t.Errorf("%s: %s", name, line)
		}
	}
}

// TestAwayLine checks that a status reports since when and why the registry is unavailable, and only then.
func TestAwayLine(t *testing.T) {
	now := time.Date(2026, time.November, 26, 7, 0, 5, 0, time.UTC)
	want := "the registry has been unavailable since 06:59:50, for 15 s; until it answers, the coordinator " +
		"decides nothing; training continues, and this is the state at that time; no answer"
	if got := registryWaitLine(&control.RegistryWait{Seconds: 15, Why: "no answer"}, now); got != want {
		t.Errorf("%q; want %q", got, want)
	}
	for _, away := range []*control.RegistryWait{nil, {Seconds: 3}} {
		var out bytes.Buffer
		PrintStatus(&out, &control.Status{RegistryAway: away}, &protocol.View{}, "")
		if got := strings.Contains(out.String(), "the registry has been unavailable since"); got != (away != nil) {
			t.Errorf("away %v: %s", away, &out)
		}
	}
}

// TestVersions checks that a status shows versions if and only if a process has another one than the coordinator, and
// that it lists the processes on standby.
func TestVersions(t *testing.T) {
	for name, c := range map[string]struct {
		coordinator, server, standby string
		want                         []string // versions at the ends of lines
	}{
		"one version":        {"a", "a", "a", nil},
		"unknown versions":   {"a", "", "", nil},
		"an older server":    {"b", "a", "b", []string{"b", "a", "b"}},
		"only the standby":   {"a", "", "b", []string{"a", "b"}},
		"an old coordinator": {"", "b", "", []string{"b"}},
	} {
		var out bytes.Buffer
		PrintStatus(&out, &control.Status{
			Processes: []control.Process{
				{Role: "coordinator", Version: c.coordinator}, {Role: "server", Version: c.server},
			},
			Standbys: []control.Standby{{Role: "worker", PID: 7, Host: "h", Version: c.standby}},
		}, &protocol.View{}, "")
		if !strings.Contains(out.String(), "\n  standby      pid 7        worker, host h") {
			t.Errorf("%s: the status lacks the standby: %s", name, &out)
		}
		var got []string
		for line := range strings.Lines(out.String()) {
			if _, version, found := strings.Cut(strings.TrimSpace(line), ", version "); found {
				got = append(got, version)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: versions %q; want %q", name, got, c.want)
		}
	}
}

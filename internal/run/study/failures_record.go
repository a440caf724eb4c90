package study

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"time"

	"github.com/perdure/perdure"
)

// machineTrace records when real machines were added and when they were preempted.
type machineTrace struct {
	events []machineEvent // in order of time
}

// machineEvent is the addition or removal of one machine.
type machineEvent struct {
	at      time.Duration // since the start of the record
	added   bool
	machine string
}

// readMachineTrace reads a record in one of two formats, which it distinguishes by their first byte:
//
//   - lines `milliseconds,add|remove,name`, in order of time, like Bamboo's records;
//   - `{"metadata":{"gap_seconds":G},"data":[count,…]}`, like SkyPilot's: the number of machines every G seconds. It
//     does not name the machines that leave, so the last one added is removed first. A job thus loses a machine only
//     if fewer remain than it needs.
//
// Errors name the line. If a machine is removed without having been added, the record is rejected as incomplete.
func readMachineTrace(b []byte) (*machineTrace, error) {
	r, err := &machineTrace{}, error(nil)
	if start := bytes.TrimSpace(b); len(start) > 0 && start[0] == '{' {
		err = r.readCounts(start)
	} else {
		err = r.readLines(b)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", perdure.ErrUsage, err)
	case len(r.events) == 0:
		return nil, fmt.Errorf("%w: the record adds no machine; it must have lines `milliseconds,add|remove,name`, "+
			"or be "+
			"SkyPilot's JSON", perdure.ErrUsage)
	}
	return r, nil
}

// maxTraceMillis limits the times of a record to 30 years.
const maxTraceMillis = 1e12

func (r *machineTrace) readLines(b []byte) error {
	lines := csv.NewReader(bytes.NewReader(b))
	lines.FieldsPerRecord, lines.Comment = -1, '#'
	there := map[string]bool{}
	for {
		cells, err := lines.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		n, _ := lines.FieldPos(0)
		if len(cells) != 3 || cells[1] != "add" && cells[1] != "remove" {
			return fmt.Errorf("line %d: want milliseconds,add|remove,name, for example 480000,add,node1", n)
		}
		ms, err := strconv.ParseInt(cells[0], 10, 64)
		e := machineEvent{time.Duration(ms) * time.Millisecond, cells[1] == "add", cells[2]}
		switch {
		case err != nil || ms < 0 || ms > maxTraceMillis:
			return fmt.Errorf("line %d: %q is not a valid number of milliseconds", n, cells[0])
		case len(r.events) > 0 && e.at < r.events[len(r.events)-1].at:
			return fmt.Errorf("line %d: its time is before that of the previous line; sort the lines by time", n)
		case !e.added && !there[e.machine]:
			return fmt.Errorf("line %d: %s is removed but was not added; the record is incomplete", n, e.machine)
		case e.added && there[e.machine]:
			return fmt.Errorf("line %d: %s is added twice; the record is incomplete", n, e.machine)
		}
		there[e.machine] = e.added
		r.events = append(r.events, e)
	}
}

func (r *machineTrace) readCounts(b []byte) error {
	var counts struct {
		Metadata struct {
			Gap float64 `json:"gap_seconds"`
		} `json:"metadata"`
		Data []int `json:"data"`
	}
	if err := json.Unmarshal(b, &counts); err != nil {
		return fmt.Errorf(`invalid JSON, want {"metadata":{"gap_seconds":G},"data":[count,…]}: %w`, err)
	}
	gap := counts.Metadata.Gap
	if !(gap > 0) || math.IsInf(gap, 0) || gap*float64(len(counts.Data)) > maxTraceMillis/1000 {
		return fmt.Errorf("metadata.gap_seconds is %v; it must be a number of seconds above 0", gap)
	}
	var there []string // in the order in which they were added
	came := 0
	for i, n := range counts.Data {
		at := time.Duration(float64(i) * gap * float64(time.Second))
		if n < 0 || n > maxTraceMachines {
			return fmt.Errorf("data.%d is %d; it must be a number of machines, 0 to %d", i, n, maxTraceMachines)
		}
		for len(there) > n {
			last := len(there) - 1
			r.events = append(r.events, machineEvent{at, false, there[last]})
			there = there[:last]
		}
		for len(there) < n {
			came++
			there = append(there, "machine"+strconv.Itoa(came))
			r.events = append(r.events, machineEvent{at, true, there[len(there)-1]})
		}
	}
	return nil
}

// maxTraceMachines limits the number of machines.
const maxTraceMachines = 100_000

// at lists the machines that are up just before t, in the order in which they were added.
func (r *machineTrace) at(t time.Duration) (there []string) {
	for _, e := range r.events {
		if e.at >= t {
			break
		}
		there = e.onto(there)
	}
	return there
}

// onto returns the machines that are up after the event.
func (e *machineEvent) onto(there []string) []string {
	if e.added {
		return append(there, e.machine)
	}
	kept := there[:0]
	for _, m := range there {
		if m != e.machine {
			kept = append(kept, m)
		}
	}
	return kept
}

// firstTimeWith returns the first moment at which that number of machines is up. It returns false if there is none.
func (r *machineTrace) firstTimeWith(machines int) (time.Duration, bool) {
	there := 0
	for _, e := range r.events {
		if e.added {
			there++
		} else {
			there--
		}
		if there == machines {
			return e.at + time.Nanosecond, true
		}
	}
	return 0, false
}

// end returns the time of the last event.
func (r *machineTrace) end() time.Duration { return r.events[len(r.events)-1].at }

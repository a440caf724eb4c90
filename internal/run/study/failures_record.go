package study

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/perdure/perdure"
)

// machineTrace records when real machines were added and when they were preempted, in order of time.
type machineTrace []machineEvent

// machineEvent is the addition or removal of one machine.
type machineEvent struct {
	at      time.Duration // since the start of the trace
	added   bool
	machine string
}

// readMachineTrace reads a record with lines `milliseconds,add|remove,name`, in order of time, like Bamboo's. Errors
// name the line. If a machine is removed without having been added, the trace is rejected as incomplete.
func readMachineTrace(b []byte) (machineTrace, error) {
	r, err := readEvents(b)
	if err == nil && len(r) == 0 {
		err = errors.New(
			"the machine trace adds no machine: it needs at least one line `milliseconds,add,name`; each line is " +
				"`milliseconds,add|remove,name`")
	}
	if err != nil {
		return nil, perdure.Usagef("%w", err)
	}
	return r, nil
}

// maxTraceMillis limits the times of a record to 30 years.
const maxTraceMillis = 1e12

func readEvents(b []byte) (r machineTrace, err error) {
	lines := csv.NewReader(bytes.NewReader(b))
	lines.FieldsPerRecord, lines.Comment = -1, '#'
	there := map[string]bool{}
	for {
		cells, err := lines.Read()
		if errors.Is(err, io.EOF) {
			return r, nil
		}
		if err != nil {
			return nil, err
		}
		n, _ := lines.FieldPos(0)
		if len(cells) != 3 || cells[1] != "add" && cells[1] != "remove" {
			return nil, fmt.Errorf("line %d: want milliseconds,add|remove,name, for example 480000,add,node1", n)
		}
		ms, err := strconv.ParseInt(cells[0], 10, 64)
		e := machineEvent{time.Duration(ms) * time.Millisecond, cells[1] == "add", cells[2]}
		switch {
		case err != nil || ms < 0 || ms > maxTraceMillis:
			return nil, fmt.Errorf("line %d: %q is not a valid number of milliseconds", n, cells[0])
		case len(r) > 0 && e.at < r[len(r)-1].at:
			return nil, fmt.Errorf("line %d: its time is before that of the previous line; sort the lines by time",
				n)
		case !e.added && !there[e.machine]:
			return nil, fmt.Errorf("line %d: %s is removed but was not added; the trace is incomplete", n, e.machine)
		case e.added && there[e.machine]:
			return nil, fmt.Errorf("line %d: %s is added twice; the trace is incomplete", n, e.machine)
		}
		there[e.machine] = e.added
		r = append(r, e)
	}
}

// at lists the machines that are up just before t, in the order in which they were added.
func (r machineTrace) at(t time.Duration) (there []string) {
	for _, e := range r {
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
	return slices.DeleteFunc(there, func(m string) bool { return m == e.machine })
}

// firstTimeWith returns the first moment at which that number of machines is up. It returns false if there is none.
func (r machineTrace) firstTimeWith(machines int) (time.Duration, bool) {
	there := 0
	for _, e := range r {
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
func (r machineTrace) end() time.Duration { return r[len(r)-1].at }

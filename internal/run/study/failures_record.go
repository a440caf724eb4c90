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

// machineRecord is what was seen of real machines: when each came, and when it was taken away.
type machineRecord struct {
	events []machineEvent // in order of time
}

// machineEvent is one machine that comes or goes.
type machineEvent struct {
	at      time.Duration // since the record began
	came    bool
	machine string
}

// readMachineRecord reads a record in one of two formats, which it tells apart by their beginnings:
//
//   - lines `milliseconds,add|remove,name`, in order of time, as Bamboo's records are;
//   - `{"metadata":{"gap_seconds":G},"data":[count,…]}`, as SkyPilot's are: how many machines there were, every
//     G seconds. It does not say which one went, so it is the one that came last: a job has a machine less only
//     when there are fewer than it needs.
//
// Errors name the line. A machine that goes without having come makes the record unusable, since what is
// missing of it may be more.
func readMachineRecord(b []byte) (*machineRecord, error) {
	r, err := &machineRecord{}, error(nil)
	if begin := bytes.TrimSpace(b); len(begin) > 0 && begin[0] == '{' {
		err = r.readCounts(begin)
	} else {
		err = r.readLines(b)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", perdure.ErrUsage, err)
	case len(r.events) == 0:
		return nil, fmt.Errorf("%w: no machine comes in it; a record has lines `milliseconds,add|remove,name`, or is "+
			"SkyPilot's JSON", perdure.ErrUsage)
	}
	return r, nil
}

// mostMillis bounds times of a record: 30 years.
const mostMillis = 1e12

func (r *machineRecord) readLines(b []byte) error {
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
			return fmt.Errorf("line %d: write milliseconds,add|remove,name, for example 480000,add,node1", n)
		}
		ms, err := strconv.ParseInt(cells[0], 10, 64)
		e := machineEvent{time.Duration(ms) * time.Millisecond, cells[1] == "add", cells[2]}
		switch {
		case err != nil || ms < 0 || ms > mostMillis:
			return fmt.Errorf("line %d: %q is no number of milliseconds", n, cells[0])
		case len(r.events) > 0 && e.at < r.events[len(r.events)-1].at:
			return fmt.Errorf("line %d: its time is before the line above; a record is in order of time", n)
		case !e.came && !there[e.machine]:
			return fmt.Errorf("line %d: %s is taken away, and is not there; the record is not whole", n, e.machine)
		case e.came && there[e.machine]:
			return fmt.Errorf("line %d: %s comes, and is there already; the record is not whole", n, e.machine)
		}
		there[e.machine] = e.came
		r.events = append(r.events, e)
	}
}

func (r *machineRecord) readCounts(b []byte) error {
	var counts struct {
		Metadata struct {
			Gap float64 `json:"gap_seconds"`
		} `json:"metadata"`
		Data []int `json:"data"`
	}
	if err := json.Unmarshal(b, &counts); err != nil {
		return fmt.Errorf(`it is no JSON of {"metadata":{"gap_seconds":G},"data":[count,…]}: %w`, err)
	}
	gap := counts.Metadata.Gap
	if !(gap > 0) || math.IsInf(gap, 0) || gap*float64(len(counts.Data)) > mostMillis/1000 {
		return fmt.Errorf("metadata.gap_seconds is %v; it must be a number of seconds above 0", gap)
	}
	var there []string // in order of their coming
	came := 0
	for i, n := range counts.Data {
		at := time.Duration(float64(i) * gap * float64(time.Second))
		if n < 0 || n > mostCounted {
			return fmt.Errorf("data.%d is %d; it must be a number of machines, 0 to %d", i, n, mostCounted)
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

// mostCounted bounds the machines of a count.
const mostCounted = 100_000

// at lists the machines that are there at a moment, before what happens at it; who came first is first.
func (r *machineRecord) at(t time.Duration) (there []string) {
	for _, e := range r.events {
		if e.at >= t {
			break
		}
		there = e.onto(there)
	}
	return there
}

// onto is who is there after the event.
func (e *machineEvent) onto(there []string) []string {
	if e.came {
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

// enough is the first moment at which that number of machines is there; false: there never is.
func (r *machineRecord) enough(machines int) (time.Duration, bool) {
	there := 0
	for _, e := range r.events {
		if e.came {
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

// end is when the record ends.
func (r *machineRecord) end() time.Duration { return r.events[len(r.events)-1].at }

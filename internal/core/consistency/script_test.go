package consistency

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/mutation"
	"github.com/perdure/perdure/internal/core/protocol"
)

// TestScripts runs the scripts of testdata/scripts, which specify Sequencer: each command prints the verdict and the
// updates that are applied because of it.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		var in *Sequencer
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "new" {
				in = scriptIntake(t, d)
				return describe(in)
			}
			return scriptCommand(t, d, in)
		})
	})
}

// scriptIntake parses "new slots=2 [two-step | atomic] [applied=(3,4)] [cut=K] [end=K]".
func scriptIntake(t *testing.T, d *datadriven.TestData) *Sequencer {
	slots, cut, end := 2, 0, 0
	d.MaybeScanArgs(t, "slots", &slots)
	d.MaybeScanArgs(t, "cut", &cut)
	d.MaybeScanArgs(t, "end", &end)
	applied := make([]perdure.Clock, slots)
	if arg, ok := d.Arg("applied"); ok {
		arg.ExpectNumVals(t, slots)
		for i := range applied {
			var n int
			arg.Scan(t, i, &n)
			applied[i] = perdure.Clock(n)
		}
	}
	mode := perdure.ClockOneStep
	switch {
	case d.HasArg("two-step"):
		mode = perdure.ClockTwoStep
	case d.HasArg("atomic"):
		mode = perdure.ClockAtomic
	}
	in := NewSequencer(mode, applied, mutation.Set{})
	in.SetCut(perdure.Clock(cut))
	in.SetEnd(perdure.Clock(end))
	return in
}

func scriptCommand(t *testing.T, d *datadriven.TestData, in *Sequencer) string {
	slot, clock, inc, start, at := 0, 0, 1, 0, 0
	d.MaybeScanArgs(t, "slot", &slot)
	d.MaybeScanArgs(t, "clock", &clock)
	d.MaybeScanArgs(t, "inc", &inc)
	d.MaybeScanArgs(t, "start", &start)
	d.MaybeScanArgs(t, "at", &at)
	clocks := 0 // clocks that an offer covers
	d.MaybeScanArgs(t, "clocks", &clocks)
	s, c, i := perdure.Slot(slot), perdure.Clock(clock), perdure.Incarnation(inc)
	var out strings.Builder
	switch d.Cmd {
	case "offer":
		p := UpdatePart{
			Slot: s, Clock: c, Clocks: clocks, Incarnation: i, Of: 1, Ticked: d.HasArg("ticked"),
			Payload: []byte(fmt.Sprintf("i%d", inc)),
		}
		if arg, ok := d.Arg("part"); ok { // part=(0,2): the first of two parts
			arg.Scan(t, 0, &p.Index)
			arg.Scan(t, 1, &p.Of)
			p.Payload = fmt.Appendf(p.Payload, "p%d", p.Index)
		}
		if d.HasArg("changed") { // its content differs from when the clock was started before
			p.Payload = append(p.Payload, '*')
		}
		fmt.Fprintln(&out, in.Offer(p))
	case "tick":
		fmt.Fprintln(&out, in.Tick(s, i, c))
	case "next":
	case "fence":
		in.Fence(s, i)
	case "decide":
		in.Decide(s, i, perdure.Clock(start))
	case "cut":
		in.SetCut(perdure.Clock(at))
	case "end":
		in.SetEnd(perdure.Clock(at))
	case "roster": // roster n=1 intervals=(0,0,4,9): slot 0 always, slot 1 in clocks 4 to 8
		var n int
		d.ScanArgs(t, "n", &n)
		arg, _ := d.Arg("intervals")
		intervals := make([]protocol.Interval, len(arg.Vals)/2)
		for i := range intervals {
			var from, until int
			arg.Scan(t, 2*i, &from)
			arg.Scan(t, 2*i+1, &until)
			intervals[i] = protocol.Interval{From: perdure.Clock(from), Until: perdure.Clock(until)}
		}
		in.SetMembership(uint64(n), intervals)
	case "show":
		return describe(in)
	default:
		d.Fatalf(t, "unknown command %q", d.Cmd)
	}
	for u := in.Next(); u != nil; u = in.Next() {
		fmt.Fprintf(&out, "apply slot %d %s: %s\n", u.Slot, clocksOf(u), content(u))
	}
	if in.AtCut() {
		fmt.Fprintf(&out, "at cut %d\n", in.cut)
	}
	return out.String()
}

// clocksOf names the clocks that an update covers.
func clocksOf(u *Update) string {
	if u.Clocks > 1 {
		return fmt.Sprintf("clocks %d to %d", u.Clock, u.Last())
	}
	return fmt.Sprintf("clock %d", u.Clock)
}

// content names the content of an applied update.
func content(u *Update) string {
	if u.Lost {
		return "lost"
	}
	var parts []string
	for _, p := range u.Parts {
		parts = append(parts, string(p))
	}
	return strings.Join(parts, "+")
}

// describe prints the state, one line per slot.
func describe(in *Sequencer) string {
	var out strings.Builder
	for i := range in.slots {
		n := in.Counts(perdure.Slot(i))
		fmt.Fprintf(&out, "slot %d: applied %d ticked %d staged %d", i, n.Applied, n.Ticked, n.Staged)
		if least := in.Incarnation(perdure.Slot(i)); least > 0 {
			fmt.Fprintf(&out, ", refuses incarnations < %d", least)
			if in.Decided(perdure.Slot(i), least) {
				out.WriteString(", decision carried out")
			}
		}
		for _, u := range in.Pending(perdure.Slot(i)) {
			if !u.complete() {
				fmt.Fprintf(&out, ", has %d of %d parts of %s", u.received, u.of, clocksOf(u))
			}
		}
		out.WriteString("\n")
	}
	fmt.Fprintf(&out, "MinClock %d\n", in.MinClock())
	return out.String()
}

// String is for test messages.
func (v Outcome) String() string {
	names := []string{"kept", "duplicate", "fenced", "gap", "torn"}
	return names[slices.Index([]Outcome{Kept, Duplicate, Fenced, Gap, Torn}, v)]
}

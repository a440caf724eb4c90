package replica

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/perdure/perdure"
)

// TestProtocolScripts runs the scripts of testdata/protocol. They read as traces of the messages between slots and one
// or two shards. "0:0,1 1:0" is a row with the updates of clocks 0 and 1 of slot 0, and of clock 0 of slot 1.
func TestProtocolScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/protocol", func(t *testing.T, path string) {
		var s *system
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "new" {
				s = newSystem(scriptPlan(t, d))
				s.trace = &strings.Builder{}
				return ""
			}
			s.trace.Reset()
			if err := s.command(t, d); err != nil {
				s.say("error: %v", err)
			}
			return s.trace.String()
		})
	})
}

// scriptPlan parses "new essp:1 [slots=2] [shards=1] [rows=2] [piece=2] [clocks=9] [sparse]". Every slot reads and
// changes all rows in every clock, unless "reads=(0,1)" gives the number of rows for each slot, starting at the first.
func scriptPlan(t *testing.T, d *datadriven.TestData) *plan {
	p := &plan{model: model(t, d.CmdArgs[0].Key), slots: 2, shards: 1, rows: 2, piece: 2, sparse: d.HasArg("sparse")}
	if vals := d.CmdArgs[0].Vals; len(vals) > 0 {
		t.Fatalf("%s: write the model first", d.Pos)
	}
	clocks := 9
	d.MaybeScanArgs(t, "slots", &p.slots)
	d.MaybeScanArgs(t, "shards", &p.shards)
	d.MaybeScanArgs(t, "rows", &p.rows)
	d.MaybeScanArgs(t, "piece", &p.piece)
	d.MaybeScanArgs(t, "clocks", &clocks)
	if p.rows <= p.piece {
		p.spare = 1
	}
	for slot := range p.slots {
		reads, writes := p.rows, p.rows
		if arg, ok := d.Arg("reads"); ok {
			arg.Scan(t, slot, &reads)
		}
		if arg, ok := d.Arg("writes"); ok {
			arg.Scan(t, slot, &writes)
		}
		p.ends[slot] = perdure.Clock(clocks)
		p.oneWay = p.oneWay || reads == 0
		for clock := range clocks {
			p.reads[slot][clock], p.writes[slot][clock] = 1<<reads-1, 1<<writes-1
		}
	}
	return p
}

// command runs one command of a script:
//
//	slot 0 [times=3]        slot 0 takes its next step: reads, requests a row, or ends its clock
//	to-shard 0              shard 0 receives everything that slot 0 has sent
//	to-slot 0 [times=1]     slot 0 receives everything that shard 0 has sent, or that number of messages
//	push 0                  shard 0 continues its pushes to slot 0
//	settle                  everything in transit arrives, and everything due is pushed
//	clock 0                 slot 0 continues until its next clock, while all messages arrive
//	drop 0 row=1            slot 0 will drop row 1 at the end of its clock
//	reconnect 0             slot 0 loses its connection and opens another
//	kill 0                  slot 0's process dies and is not replaced
//	show                    prints the state of all slots, and the updates in transit
func (s *system) command(t *testing.T, d *datadriven.TestData) error {
	slot, shard, times, row := 0, 0, 1, 0
	if d.Cmd != "settle" && d.Cmd != "show" {
		if _, err := fmt.Sscan(d.CmdArgs[0].Key, &slot); err != nil {
			d.Fatalf(t, "%s: invalid slot: %v", d.Cmd, err)
		}
	}
	if d.Cmd == "to-slot" {
		times = len(s.downs[slot][shard])
	}
	d.MaybeScanArgs(t, "shard", &shard)
	d.MaybeScanArgs(t, "times", &times)
	d.MaybeScanArgs(t, "row", &row)
	switch d.Cmd {
	case "slot":
		return s.repeat(times, func() error {
			if s.next(slot) == waits {
				s.say("slot %d waits at clock %d", slot, s.readers[slot].clock)
			}
			return s.goOn(slot)
		})
	case "to-shard":
		return s.repeat(len(s.ups[slot][shard]), func() error { return s.toShard(slot, shard) })
	case "to-slot":
		return s.repeat(times, func() error { return s.toReader(slot, shard) })
	case "push":
		s.push(slot, shard)
	case "settle":
		return s.quiet()
	case "clock":
		return s.toNextClock(slot)
	case "drop":
		s.unwant(slot, row)
	case "reconnect":
		s.late[slot][shard] = nil
		s.open(slot, shard)
		s.late[slot][shard] = nil
	case "kill":
		return s.die(slot)
	case "show":
		s.show()
	default:
		d.Fatalf(t, "unknown command %q", d.Cmd)
	}
	return nil
}

func (s *system) repeat(n int, do func() error) error {
	for range n {
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}

// quiet delivers everything in transit and pushes everything due.
func (s *system) quiet() error {
	for again := true; again; {
		again = false
		for _, m := range s.moves() {
			if m.kind == up || m.kind == down || m.kind == pushOn {
				if err := s.do(m); err != nil {
					return err
				}
				again = true
				break
			}
		}
	}
	return nil
}

// toNextClock runs a slot until its clock has ended, or until it has to wait for others.
func (s *system) toNextClock(slot int) error {
	for clock := s.readers[slot].clock; s.readers[slot].clock == clock; {
		if err := s.quiet(); err != nil {
			return err
		}
		if s.next(slot) == waits {
			s.say("slot %d waits at clock %d", slot, clock)
			return nil
		}
		if err := s.goOn(slot); err != nil {
			return err
		}
	}
	return s.quiet()
}

// show prints the state of all slots and what the shards know of it.
func (s *system) show() {
	for slot := range s.slots {
		r := &s.readers[slot]
		s.say("slot %d: clock %d", slot, r.clock)
		for row := range s.rows {
			l := r.look(row)
			if !l.Known {
				continue
			}
			pushed := "not pushed"
			if l.Pushed {
				pushed = "pushed"
			}
			s.say("  row %d: %v, MinClock %d, %s", row, setOf(l.Values), l.MinClock, pushed)
		}
		for shard := range s.plan.shards {
			n := s.countsOf(slot, shard)
			s.say("  shard %d: applied %d, seen %d, subscribed to %d rows", shard, n.Applied, n.Seen,
				s.shards[shard].rep.Readers.pushes.subs[0].Rows(perdure.Slot(slot)))
		}
	}
}

func model(t *testing.T, s string) perdure.Consistency {
	t.Helper()
	m, err := perdure.ParseConsistency(s)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

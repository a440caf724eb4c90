package testcluster

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
)

// ForgedToCoordinator returns messages that a worker of slot 0 must not send to the coordinator. The job has two slots,
// two servers and four shards, and ends at clock 100. Each message closes its connection and leaves the job unchanged.
// In a larger job, some of those about the end and about existing objects are valid.
func ForgedToCoordinator() map[string]wire.Frame {
	zero := 0.0
	end := func(slot perdure.Slot, clock perdure.Clock) wire.Frame {
		return wire.Control(wire.KindReport, wire.Report{Slot: slot, Generation: 1, Clock: clock, EndAfter: true})
	}
	status := func(st protocol.WorkerStatus) wire.Frame {
		var sent protocol.WorkerDeltaEncoder
		return wire.Control(wire.KindWorkerStatus, sent.Delta(&st, true))
	}
	table := perdure.TableSpec{
		Name: "w", Rows: 1 << 58, Dim: 1, Rule: perdure.Rule{Kind: perdure.RuleAdd},
		Consistency: perdure.Consistency{Kind: perdure.BSP},
	}
	return map[string]wire.Frame{
		"an order to finish":   wire.Control(wire.KindOrder, wire.Order{Kind: "finish"}),
		"an order to end":      wire.Control(wire.KindOrder, wire.Order{Kind: "end"}),
		"an order to lose all": wire.Control(wire.KindOrder, wire.Order{Kind: "drop", Spec: "1 1"}),
		"a pass": wire.Control(wire.KindOrder,
			wire.Order{Kind: "pass", Target: "worker:1", Spec: "end 0 0s"}),
		"the end":                       end(0, 1),
		"the end, of a negative clock":  end(0, -5),
		"the end, for another slot":     end(1, 1),
		"the end, of a clock far ahead": end(0, 1<<62),
		"a report for another slot": wire.Control(wire.KindReport,
			wire.Report{Slot: 1, Generation: 1, TestAccuracy: &zero}),
		"a report for no slot": wire.Control(wire.KindReport,
			wire.Report{Slot: -1, Generation: 1, TestAccuracy: &zero}),
		"another's end":          wire.Control(wire.KindExited, wire.Exited{Role: wire.RoleWorker, Index: 1}),
		"a server's end":         wire.Control(wire.KindExited, wire.Exited{Role: wire.RoleServer, Index: 0}),
		"a server's status":      wire.Control(wire.KindStatus, protocol.ServerDelta{Number: 1, Revision: 1 << 60}),
		"a progress":             wire.Control(wire.KindProgress, wire.Progress{Complete: true}),
		"a view":                 wire.Control(wire.KindView, protocol.View{Revision: 1 << 60, Done: true}),
		"a clock below 0":        status(protocol.WorkerStatus{Generation: 1, Clock: -1}),
		"a clock beyond the end": status(protocol.WorkerStatus{Generation: 1, Clock: 101, Finished: true}),
		"more than was sent": status(protocol.WorkerStatus{
			Generation: 1,
			Acked:      []protocol.AckedClock{{Shard: 0, Applied: 1 << 60}},
		}),
		"shards that are not": status(protocol.WorkerStatus{
			Generation: 1, Acked: []protocol.AckedClock{{Shard: 4}},
		}),
		"a table that fits nowhere": wire.Control(wire.KindTable, table),
		"a frame of data":           {Header: wire.Header{Kind: wire.KindUpdate}},
		"a fence of another slot":   {Header: wire.Header{Kind: wire.KindFence, Slot: 1, Incarnation: 9}},
	}
}

// ForgedToServer returns messages that a worker of slot 0, incarnation 1, must not send to a server of such a job,
// whichever shards it holds. Each message closes its connection.
func ForgedToServer() map[string]wire.Frame {
	frame := func(kind wire.Kind, slot perdure.Slot) wire.Frame {
		return wire.Frame{Header: wire.Header{
			Kind: kind, Generation: 1, Epoch: 1, Slot: slot, Incarnation: 1, Parts: 1,
		}}
	}
	return map[string]wire.Frame{
		"an update for another slot":      frame(wire.KindUpdate, 1),
		"a tick for another slot":         frame(wire.KindTick, 1),
		"the state of another slot":       frame(wire.KindLoad, 1),
		"the state of a slot that is not": frame(wire.KindLoad, 3),
		"a fence":                         frame(wire.KindFence, 0),
		"a fence of another slot":         frame(wire.KindFence, 1),
		"a wish to follow a shard":        frame(wire.KindFollow, 0),
		"a snapshot":                      frame(wire.KindSnapshot, 0),
		"a roster":                        frame(wire.KindMembership, 0),
		"a second hello":                  frame(wire.KindHello, 0), "what is no kind": frame(99, 0),
	}
}

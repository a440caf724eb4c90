package worker

import (
	"cmp"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/outbox"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/machine"
	"github.com/perdure/perdure/internal/proc/transport"
)

// queuedStatus is a status, the connection on which to send it, and how often to send it.
type queuedStatus struct {
	protocol.WorkerStatus
	to    transport.Conn
	beats int // heartbeats per status
}

// statusSender sends this worker's status to the coordinator: the whole status first on each connection, then changes.
// Only the heartbeat goroutine uses it.
type statusSender struct {
	queuedStatus // the last status
	encoder      protocol.WorkerDeltaEncoder
	beat         transport.Heartbeat
}

// skipsBeat counts a heartbeat, and reports whether no status is due at it.
func (w *statusSender) skipsBeat() bool { return w.beat.Skip(w.beats) }

// send sends the coordinator the changes of the status.
func (w *statusSender) send(now time.Time) {
	if w.to == nil {
		return
	}
	if w.beat.SendingOn(w.to) {
		w.encoder = protocol.WorkerDeltaEncoder{}
	}
	st := w.WorkerStatus
	st.Resources = machine.ResourcesInUse()
	d := w.encoder.Delta(&st, w.beat.CountsDue(now, st.Finished))
	_ = transport.SendOrClose(w.to,
		wire.Control(wire.KindWorkerStatus, &d)) // the link reports a broken connection itself
}

func (l *locked) status() protocol.WorkerStatus {
	retained, crowded := l.out.Retained()
	read, made, out := l.reads.Stats(), &l.out.Counters, &l.outages.Watch
	st := protocol.WorkerStatus{
		Revision: l.view.Revision, Generation: l.generation, Clock: l.out.Clock(), NeedsCut: crowded,
		Counters: perdure.WorkerCounters{
			UpdatesSent: made.Updates, BytesPushed: made.Pushed, BytesPulled: read.Pulled,
			Samples: l.samples, BeyondBound: made.Beyond,
			ClockDifferential: read.Differential.Counts(), ReadLag: read.Lag.Counts(),
			MissingUpdates: read.Missing.Counts(),
			OutageClocks:   out.Clocks, StaleRows: read.Beyond, QueuedBytes: out.Queued, OutageNs: out.Waited,
			ComputeNs: int64(l.time.Compute(time.Now())), StalenessNs: int64(l.time.Stale()),
			CommNs: int64(l.time.Comm()),
		},
		KeptBytes: retained, SaveSeconds: l.saving.took.Seconds(),
		Mark: l.shared.clock, Passed: l.shared.unable || len(l.shared.passed) > 0,
		SavesOwn: l.shared.own, NeedsCopy: l.shared.needs,
		WaitReason:  cmp.Or(l.log.waits.Reason(), l.saving.WaitReason()),
		Outage:      l.outages.now(l.shards, l.out.Queued()),
		Unreachable: l.servers.contact.Unreachable(),
	}
	if l.out.Phase() == outbox.RolledBack {
		st.Clock = l.view.StartClock(l.slot)
	}
	n, older := l.saving.Lost()
	st.Counters.StatesLost, st.Counters.StatesOlder = n, int64(older)
	st.Finished = l.out.IsLast() && l.out.AllApplied()
	for i := range l.view.Shards {
		if sv := &l.view.Shards[i]; sv.Lost && sv.Base == nil {
			applied := l.shards[i].out.Counts().Applied
			if l.cfg.mutations.AckTracking {
				applied = max(applied, l.out.Clock())
			}
			st.Acked = append(st.Acked,
				protocol.AckedClock{Shard: perdure.ShardID(i), Epoch: sv.Epoch, Applied: applied})
		}
	}
	return st
}

// Snapshot returns the present state of this client.
func (c *Client) Snapshot() perdure.WorkerSnapshot {
	stateErr := c.saves.CheckReachable()
	l := c.lock()
	defer c.mu.Unlock()
	st := l.status()
	kept, bytes := l.out.Kept()
	return perdure.WorkerSnapshot{
		Clock: st.Clock, Counters: st.Counters, Kept: kept, Bytes: bytes, Resent: l.out.Counters.Resent,
		Outage: st.Outage, WaitReason: st.WaitReason, StateErr: stateErr, Err: l.waits.Err,
	}
}

// AddSamples counts training samples that the program has processed.
func (c *Client) AddSamples(n int) {
	l := c.lock()
	defer c.mu.Unlock()
	l.samples += int64(n)
}

package protocol

import (
	"fmt"
	"math"
	"slices"

	"github.com/perdure/perdure"
)

// StoreWaitPrefix is the prefix of WorkerStatus.WaitReason if the worker waits for the job's store.
const StoreWaitPrefix = "the job's store: "

// WorkerStatus is the status that a worker reports to the coordinator.
type WorkerStatus struct {
	Revision   uint64             `json:"revision"` // of the view that the worker acts on
	Generation perdure.Generation `json:"generation"`
	Clock      perdure.Clock      `json:"clock"`
	// Finished reports whether all updates of clocks < Clock are applied and the worker will send no more.
	Finished bool `json:"finished"`
	// Mark is the clock whose start the program's shared state belongs to. The program can then save the state for a
	// process that lacks it; 0: it cannot.
	Mark perdure.Clock `json:"mark,omitempty"`
	// Passed reports that the view names this process as the source of shared state that it no longer had when it
	// received the view, or that it cannot save any: it does not reach the job's store.
	Passed bool `json:"passed,omitempty"`
	// SavesOwn reports whether the program saves its own state with each update, so that it can continue with a copy of
	// the shared state.
	SavesOwn bool `json:"saves_own,omitempty"`
	// NeedsCopy reports that the program waits for a copy of the shared state.
	NeedsCopy bool `json:"needs_copy,omitempty"`
	// Acked lists the clocks that were acknowledged to this slot as applied, for shards whose rows were lost and whose
	// base the view does not know yet.
	Acked []AckedClock `json:"acked,omitempty"`
	// NeedsCut reports whether the updates that the worker keeps until the next cut take most of the memory available
	// for them, so that a cut is needed now.
	NeedsCut bool `json:"crowded,omitempty"`
	// WaitReason is why writes to the update log wait or, prefixed with StoreWaitPrefix, why reads or writes of states
	// in the job's store wait; "": none do.
	WaitReason string `json:"log,omitempty"`
	// Unreachable lists the addresses of servers that this worker needs and cannot reach.
	Unreachable []string `json:"unreached,omitempty"`
	// KeptBytes is the size of the updates that the worker keeps until a checkpoint contains them.
	KeptBytes int64 `json:"kept_bytes,omitempty"`
	// SaveSeconds is how long the last state took that the worker wrote to the job's store; 0: it has written none.
	SaveSeconds float64 `json:"save_seconds,omitempty"`
	// Outage lists the shards that the worker continues without; nil: all are available, or it waits for them.
	Outage   *perdure.WorkerOutage  `json:"outage,omitempty"`
	Counters perdure.WorkerCounters `json:"counters"`
	// Resources are those of the whole process that the client runs in.
	Resources Resources `json:"resources"`
}

// AckedClock is how many of the worker's clocks a shard has acknowledged as applied, before the given epoch.
type AckedClock struct {
	Shard   perdure.ShardID `json:"shard"`
	Epoch   perdure.Epoch   `json:"epoch"`
	Applied perdure.Clock   `json:"applied"`
}

// Validate returns an error if the status cannot come from a correct worker of the job.
func (s *WorkerStatus) Validate(job *perdure.JobSpec, v *View) error {
	if err := s.CheckSize(job); err != nil {
		return err
	}
	latest := v.ClockLimit(job)
	if s.Clock < 0 || s.Clock > latest {
		return fmt.Errorf("%w: a worker reports clock %d; the job has clocks 0 to %d", perdure.ErrRefused,
			s.Clock, latest)
	}
	if s.Mark < 0 || s.Mark > s.Clock {
		return fmt.Errorf("%w: a worker at clock %d reports the shared state of clock %d", perdure.ErrRefused, s.Clock,
			s.Mark)
	}
	for _, a := range s.Acked {
		if a.Shard < 0 || int(a.Shard) >= job.Shards || a.Applied < 0 || a.Applied > latest {
			return fmt.Errorf("%w: a worker reports that shard %d has applied %d of the worker's clocks; the job has "+
				"%d shards and clocks 0 to %d", perdure.ErrRefused, a.Shard, a.Applied, job.Shards, latest)
		}
	}
	return nil
}

// CheckSize returns an error if the status is larger than any worker of the job may send, whatever the view. A decoded
// list takes many times the memory of its message, so receivers check this before they keep it.
func (s *WorkerStatus) CheckSize(job *perdure.JobSpec) error {
	if len(s.Unreachable) > perdure.MaxServers {
		return fmt.Errorf("%w: a worker reports %d unreachable servers; a job has at most %d", perdure.ErrRefused,
			len(s.Unreachable), perdure.MaxServers)
	}
	if took := s.SaveSeconds; !(took >= 0) || math.IsInf(took, 1) {
		return fmt.Errorf("%w: a worker reports that its last state took %v s to save", perdure.ErrRefused, took)
	}
	if len(s.Acked) > job.Shards {
		return fmt.Errorf("%w: a worker reports acknowledgements for %d shards; the job has %d", perdure.ErrRefused,
			len(s.Acked), job.Shards)
	}
	if o := s.Outage; o != nil && (len(o.Shards) > job.Shards || o.Seconds < 0 || o.Bytes < 0) {
		return fmt.Errorf("%w: a worker sent an invalid outage report: %d of %d shards unavailable for %v s, with %d "+
			"bytes queued",
			perdure.ErrRefused, len(o.Shards), job.Shards, o.Seconds, o.Bytes)
	}
	return nil
}

// WorkerDelta is the change of a WorkerStatus since the previous delta on the connection. The first delta holds the
// whole status; later ones leave out Acked, Outage and Counters unless they have changed.
type WorkerDelta struct {
	Number uint64 `json:"Number"` // sequence number on the connection, from 1
	WorkerStatus
	// These report which of the optional fields are present.
	HasAcked    bool `json:"HasAcked"`
	HasOutage   bool `json:"HasOutage"`
	HasCounters bool `json:"HasCounters"`
}

// WorkerDeltaEncoder tracks what a worker has sent on a connection. The zero value has sent nothing.
type WorkerDeltaEncoder struct {
	number uint64
	sent   WorkerStatus
}

// Delta returns the change to send for a status, and records it as sent. It includes changed counters and the duration
// of an outage only if counts is set. Delta keeps st, which must not change afterwards.
func (t *WorkerDeltaEncoder) Delta(st *WorkerStatus, counts bool) WorkerDelta {
	t.number++
	first := t.number == 1
	d := WorkerDelta{Number: t.number, WorkerStatus: *st}
	d.HasAcked = first || !slices.Equal(t.sent.Acked, st.Acked)
	d.HasCounters = first || counts && !t.sent.Counters.Equal(&st.Counters)
	d.HasOutage = first || (t.sent.Outage == nil) != (st.Outage == nil) ||
		st.Outage != nil && (counts || !slices.Equal(t.sent.Outage.Shards, st.Outage.Shards))
	told := *st
	if !d.HasAcked {
		told.Acked = t.sent.Acked
	}
	if !d.HasCounters {
		told.Counters = t.sent.Counters
	}
	if !d.HasOutage {
		told.Outage = t.sent.Outage
	}
	d.WorkerStatus, t.sent = told, told
	return d
}

// Apply applies the next delta of a worker.
func (st *WorkerStatus) Apply(d *WorkerDelta) {
	before := *st
	*st = d.WorkerStatus
	if !d.HasAcked {
		st.Acked = before.Acked
	}
	if !d.HasOutage {
		st.Outage = before.Outage
	}
	if !d.HasCounters {
		st.Counters = before.Counters
	}
}

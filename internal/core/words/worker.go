package words

import (
	"fmt"
	"slices"

	"github.com/perdure/perdure"
)

// StoreWaits begins the text of a worker that waits for the job's store.
const StoreWaits = "the job's store: "

// WorkerStatus is a worker's Status.
type WorkerStatus struct {
	Revision   uint64             `json:"revision"` // of the view it acts on
	Generation perdure.Generation `json:"generation"`
	Clock      perdure.Clock      `json:"clock"`
	// Finished says that every update of clocks < Clock is applied, and it will send no more.
	Finished bool `json:"finished"`
	// Acked answers for the shards whose rows were lost and whose base the view
	// does not know yet: what was acknowledged to this slot as applied.
	Acked []Acked `json:"acked,omitempty"`
	// Crowded says that the updates that it keeps for want of a cut take much of the
	// memory that it may use for them: a cut is wanted now.
	Crowded bool `json:"crowded,omitempty"`
	// Log says why what goes to the update log, or, behind StoreWaits, what is saved in the job's store or is
	// to be read there waits, "" if nothing does.
	Log string `json:"log,omitempty"`
	// Unreached are addresses of servers that it wants something of and cannot reach.
	Unreached []string `json:"unreached,omitempty"`
	// KeptBytes are of updates that it keeps until they are in a checkpoint.
	KeptBytes int64 `json:"kept_bytes,omitempty"`
	// Outage is what it goes on without; nil: nothing is out, or it waits.
	Outage   *perdure.WorkerOutage  `json:"outage,omitempty"`
	Counters perdure.WorkerCounters `json:"counters"`
	// Resources are those of the process, of which the client is a part.
	Resources Resources `json:"resources"`
}

// Acked says how many of the worker's clocks a shard has acknowledged as
// applied, before the given epoch.
type Acked struct {
	Shard   perdure.ShardID `json:"shard"`
	Epoch   perdure.Epoch   `json:"epoch"`
	Applied perdure.Clock   `json:"applied"`
}

// Validate reports what no worker that keeps the rules would say of itself in a job, if
// anything.
func (s *WorkerStatus) Validate(job *perdure.JobSpec, v *View) error {
	if err := s.Fits(job); err != nil {
		return err
	}
	latest := v.Latest(job)
	if s.Clock < 0 || s.Clock > latest {
		return fmt.Errorf("%w: a worker at clock %d; the job's are 0 to %d", perdure.ErrRefused, s.Clock, latest)
	}
	for _, a := range s.Acked {
		if a.Shard < 0 || int(a.Shard) >= job.Shards || a.Applied < 0 || a.Applied > latest {
			return fmt.Errorf("%w: a worker of whose clocks shard %d has applied %d; the job has %d shards and the "+
				"clocks 0 to %d", perdure.ErrRefused, a.Shard, a.Applied, job.Shards, latest)
		}
	}
	return nil
}

// Fits reports what is too much of a job's worker, whatever the view is, if anything. A list takes many times the
// memory that it took in a message, so this is looked at before it is kept.
func (s *WorkerStatus) Fits(job *perdure.JobSpec) error {
	if len(s.Unreached) > perdure.MaxServers {
		return fmt.Errorf("%w: a worker that cannot reach %d servers; a job has at most %d", perdure.ErrRefused,
			len(s.Unreached), perdure.MaxServers)
	}
	if len(s.Acked) > job.Shards {
		return fmt.Errorf("%w: a worker that speaks of %d shards of %d", perdure.ErrRefused, len(s.Acked), job.Shards)
	}
	if o := s.Outage; o != nil && (len(o.Shards) > job.Shards || o.Seconds < 0 || o.Bytes < 0) {
		return fmt.Errorf("%w: a worker for which %d shards of %d have been out for %v s, with %d bytes queued",
			perdure.ErrRefused, len(o.Shards), job.Shards, o.Seconds, o.Bytes)
	}
	return nil
}

// WorkerDelta is what a worker tells of its WorkerStatus: on each connection all of it
// first, then of Acked, Outage and Counters only what has changed.
type WorkerDelta struct {
	Number uint64 `json:"Number"` // on its connection, from 1
	WorkerStatus
	// These are told.
	HasAcked    bool `json:"HasAcked"`
	HasOutage   bool `json:"HasOutage"`
	HasCounters bool `json:"HasCounters"`
}

// WorkerSpeaker knows what a worker has told on a connection. The zero one has told nothing.
type WorkerSpeaker struct {
	number uint64
	told   WorkerStatus
}

// Delta returns what is to be told of a status, and notes it as told. Counters, and how
// long an outage has lasted, are told only if counts says so. It keeps the status, which
// must stay as it is.
func (t *WorkerSpeaker) Delta(st *WorkerStatus, counts bool) WorkerDelta {
	t.number++
	first := t.number == 1
	d := WorkerDelta{Number: t.number, WorkerStatus: *st}
	d.HasAcked = first || !slices.Equal(t.told.Acked, st.Acked)
	d.HasCounters = first || counts && !t.told.Counters.Equal(&st.Counters)
	d.HasOutage = first || (t.told.Outage == nil) != (st.Outage == nil) ||
		st.Outage != nil && (counts || !slices.Equal(t.told.Outage.Shards, st.Outage.Shards))
	told := *st
	if !d.HasAcked {
		told.Acked = t.told.Acked
	}
	if !d.HasCounters {
		told.Counters = t.told.Counters
	}
	if !d.HasOutage {
		told.Outage = t.told.Outage
	}
	d.WorkerStatus, t.told = told, told
	return d
}

// Take takes what a worker says next of itself.
func (st *WorkerStatus) Take(d *WorkerDelta) {
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

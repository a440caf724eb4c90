package perdure

import (
	"fmt"
	"slices"
)

// JobSpec is what a job is asked to be. It never changes while the job lives.
type JobSpec struct {
	ID          string      `json:"id"` // unique; peers of another job are refused
	Workload    string      `json:"workload"`
	Seed        uint64      `json:"seed"`
	Slots       int         `json:"slots"`
	Servers     int         `json:"servers"`
	Shards      int         `json:"shards"`
	Clocks      Clock       `json:"clocks"` // the job ends when every slot has finished so many; 0: no end
	Consistency Consistency `json:"consistency"`
	Recovery    Recovery    `json:"recovery"`

	// Alarms are clocks whose beginning workers report at once, since somebody
	// waits for them (a fault that is planned, say).
	Alarms []Clock `json:"alarms,omitempty"`
	// AwaitExport keeps a completed job alive until its parent says that the model
	// has been exported.
	AwaitExport bool `json:"await_export,omitempty"`
}

// Validate reports what is wrong with the job, if anything.
func (j JobSpec) Validate() error {
	for _, n := range []struct {
		name  string
		value int
		most  int
	}{{"workers", j.Slots, 4096}, {"servers", j.Servers, 4096}, {"shards", j.Shards, 65536}} {
		if n.value < 1 || n.value > n.most {
			return fmt.Errorf("%w: %d %s; choose 1 to %d", ErrUsage, n.value, n.name, n.most)
		}
	}
	if j.Servers > j.Shards {
		return fmt.Errorf("%w: %d servers for %d shards; use at least as many shards as servers", ErrUsage, j.Servers, j.Shards)
	}
	if j.Clocks < 0 {
		return fmt.Errorf("%w: %d clocks; choose at least 1", ErrUsage, j.Clocks)
	}
	if _, err := ParseConsistency(j.Consistency.String()); err != nil {
		return err
	}
	if _, err := ParseRecovery(j.Recovery.String()); err != nil {
		return err
	}
	return nil
}

// TwoStep reports whether the job's clocks are staged on all shards before they
// are ticked: if any table's model asks for it, since a slot's update of a clock
// is one for all tables.
func (j *JobSpec) TwoStep(tables []TableSpec) bool {
	return j.Consistency.TwoStep() || slices.ContainsFunc(tables, func(t TableSpec) bool { return t.Consistency.TwoStep() })
}

// View is the job's shape as the coordinator recorded it: who holds which
// shard, which process speaks for which slot, and where the job was last
// rolled back to. Views are totally ordered by Revision; a view takes effect
// only once the registry has it.
type View struct {
	Revision   uint64      `json:"revision"`
	Generation Generation  `json:"generation"`
	Cut        Clock       `json:"cut"`     // the clock this generation began at
	End        Clock       `json:"end"`     // no update of a clock ≥ End is ever applied; 0: no end yet
	Pause      bool        `json:"pause"`   // no slot ends a clock until it is decided where the job ends
	Durable    Clock       `json:"durable"` // the newest published checkpoint's cut
	Done       bool        `json:"done"`
	Tables     []TableSpec `json:"tables"`
	Shards     []ShardView `json:"shards"`
	Slots      []SlotView  `json:"slots"`
}

// ShardView says who holds a shard. A shard that nobody holds has Server -1.
type ShardView struct {
	Server      int         `json:"server"`
	Incarnation Incarnation `json:"incarnation"` // of the server's process
	Addr        string      `json:"addr"`
	Epoch       Epoch       `json:"epoch"`

	// Base is the applied vector that the shard starts this epoch with, where the
	// strategy lets rows be lost: for each slot, what it was acknowledged. Nil
	// until all live slots have told it; always nil under other strategies.
	Base []Clock `json:"base,omitempty"`
	// Lost says that this epoch began with the shard's rows lost.
	Lost bool `json:"lost,omitempty"`
}

// SlotView says which incarnation of a slot may speak, and from which clock.
type SlotView struct {
	Incarnation Incarnation `json:"incarnation"` // 0: never taken; older ones are fenced
	// Decided says that the fate of the older incarnations' last clock is decided:
	// every shard ticks what it has staged of clocks < Start and drops the rest.
	// Until then the slot's next process must wait.
	Decided bool  `json:"decided"`
	Start   Clock `json:"start"`
	// Settled says that every shard has carried the decision out: the slot's
	// process may speak.
	Settled bool `json:"settled"`
}

// Counts says how far one slot's updates have come on one shard: how many of
// its clocks are staged, ticked and applied. Applied ≤ Ticked ≤ Staged.
type Counts struct {
	Staged  Clock `json:"staged"`
	Ticked  Clock `json:"ticked"`
	Applied Clock `json:"applied"`
	// Seen, on the wire only, says how many of them every active slot can see in
	// whatever it reads: ≤ Applied, and less only under vap.
	Seen Clock `json:"-"`
}

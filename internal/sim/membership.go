package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/registry"
	"github.com/perdure/perdure/internal/proc/coordinator"
)

// Planned is a change in the number of workers that is known before the job begins: Workers workers from clock At.
type Planned struct {
	Workers int
	At      perdure.Clock
}

// initialRecord returns the initial job record.
func initialRecord(job perdure.JobSpec, plan []Planned) membership.JobRecord {
	record := membership.NewJobRecord(job, 1, 0, nil)
	for _, p := range plan {
		if err := record.Plan(p.Workers, p.At); err != nil {
			panic(fmt.Sprintf("sim: invalid plan: %v", err))
		}
	}
	return record
}

// initialRecord returns the job record that the cluster starts with.
func (o *Options) initialRecord() membership.JobRecord {
	if o.Resume != nil {
		return o.Resume.JobRecord.Clone()
	}
	return initialRecord(o.Job, o.Plan)
}

// PlannedMembership returns the planned membership interval of each slot.
func PlannedMembership(job perdure.JobSpec, plan []Planned) []protocol.Interval {
	record := initialRecord(job, plan)
	return record.View.Intervals()
}

// Scale asks the coordinator for a change, computed from the current job record. It does nothing if the coordinator
// does not answer.
func (c *Cluster) Scale(change func(*membership.JobRecord) (membership.Change, error)) {
	ctx, cancel := context.WithTimeout(c.ctx, time.Second)
	defer cancel()
	co := c.hosts.Leader()
	if co == nil {
		return
	}
	_ = co.Ask(ctx, func(core *membership.Core, _ coordinator.Latest) { // a dead coordinator does not answer
		ch, err := change(core.Record())
		if err == nil {
			err = core.Scale(ch)
		}
		c.fault("scale to %+v: %v", ch, err)
	})
}

// observedRegistry is a registry that passes each saved job record to the cluster before any process acts on it.
type observedRegistry struct {
	registry.Registry
	saved func(*membership.JobRecord)
}

func (t observedRegistry) Acquire(ctx context.Context, h registry.Holder) (registry.Lease, error) {
	lease, err := t.Registry.Acquire(ctx, h)
	return observedLease{lease, t.saved}, err
}

type observedLease struct {
	registry.Lease
	saved func(*membership.JobRecord)
}

func (t observedLease) Save(ctx context.Context, doc []byte, previous uint64) (uint64, error) {
	revision, err := t.Lease.Save(ctx, doc, previous)
	var record membership.JobRecord
	if err == nil && json.Unmarshal(doc, &record) == nil {
		t.saved(&record)
	}
	return revision, err
}

// term is a membership interval of a slot, named by its first clock.
type term struct {
	slot int
	from perdure.Clock
}

// initialMembers returns the terms of the slots that have joined when a job begins, and the workers of those that have
// not left. The other workers start when their joining is recorded.
func (o *Options) initialMembers() (terms []term, workers []string) {
	v := o.initialRecord().View
	for i := range v.Slots {
		sl := &v.Slots[i]
		if sl.From > v.Cut && !sl.Left {
			continue
		}
		if terms = append(terms, term{i, sl.From}); !sl.Left {
			workers = append(workers, fmt.Sprintf("worker:%d", i))
		}
	}
	return terms, workers
}

// recordSaved reports a saved job record and starts the workers of slots that have joined.
func (c *Cluster) recordSaved(record *membership.JobRecord) {
	if record.View.Done {
		c.jobEndedAt.CompareAndSwap(0, time.Now().UnixNano())
	}
	if c.o.Events != nil {
		c.mu.Lock()
		died := maps.Clone(c.restartedSlots)
		c.mu.Unlock()
		c.o.Events.Saved(record, c.hosts.Disk, died)
	}
	if slices.ContainsFunc(record.Servers, func(p membership.Member) bool {
		return p.Left && !p.Draining &&
			!p.AnyIndex
	}) {
		c.takeovers.Add(1)
	}
	c.slotCuts.add(&record.View)
	var hosts []string
	c.mu.Lock()
	for i, s := range record.View.Slots {
		t := term{i, s.From}
		if s.From == 0 || slices.Contains(c.terms, t) {
			continue
		}
		c.terms = append(c.terms, t)
		host := fmt.Sprintf("worker:%d", i)
		switch {
		case c.processes[host] != nil: // its previous term is just ending
			c.hasNextTerm[host] = true
		case c.unfinishedTerms[host] > 0:
			continue // it died with its term finished; its replacement does this term
		default:
			hosts = append(hosts, host)
		}
		c.unfinished++
		c.unfinishedTerms[host]++
	}
	c.mu.Unlock()
	for _, host := range hosts {
		c.start(host)
	}
}

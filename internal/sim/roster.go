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
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/registry"
	"github.com/perdure/perdure/internal/proc/coordinator"
)

// Planned is a change in the number of workers that is known before the job begins: Workers workers from clock At.
type Planned struct {
	Workers int
	At      perdure.Clock
}

// begin returns the initial job record.
func begin(job perdure.JobSpec, plan []Planned) membership.JobRecord {
	facts := membership.NewJobRecord(job, 1, 0, nil)
	for _, p := range plan {
		if err := facts.Plan(p.Workers, p.At); err != nil {
			panic(fmt.Sprintf("sim: invalid plan: %v", err))
		}
	}
	return facts
}

// begin returns the job record that the cluster starts with.
func (o *Options) begin() membership.JobRecord {
	if o.Next != nil {
		return o.Next.Begin.Clone()
	}
	return begin(o.Job, o.Plan)
}

// Spans returns the planned membership interval of each slot.
func Spans(job perdure.JobSpec, plan []Planned) []words.Interval {
	facts := begin(job, plan)
	return facts.View.Intervals()
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

// tapped is a registry that passes each saved job record to the cluster before any process acts on it.
type tapped struct {
	registry.Registry
	saved func(*membership.JobRecord)
}

func (t tapped) Acquire(ctx context.Context, h registry.Holder) (registry.Lease, error) {
	lease, err := t.Registry.Acquire(ctx, h)
	return tappedLease{lease, t.saved}, err
}

type tappedLease struct {
	registry.Lease
	saved func(*membership.JobRecord)
}

func (t tappedLease) Save(ctx context.Context, doc []byte, previous uint64) (uint64, error) {
	revision, err := t.Lease.Save(ctx, doc, previous)
	var facts membership.JobRecord
	if err == nil && json.Unmarshal(doc, &facts) == nil {
		t.saved(&facts)
	}
	return revision, err
}

// term is a membership interval of a slot, named by its first clock.
type term struct {
	slot int
	from perdure.Clock
}

// members returns the terms of the slots that have joined when a job begins, and the workers of those that have not
// left. The other workers start when their joining is recorded.
func (o *Options) members() (terms []term, workers []string) {
	v := o.begin().View
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

// onSaved reports a saved job record and starts the workers of slots that have joined.
func (c *Cluster) onSaved(facts *membership.JobRecord) {
	if facts.View.Done {
		c.done.CompareAndSwap(0, time.Now().UnixNano())
	}
	if c.o.Told != nil {
		c.mu.Lock()
		died := maps.Clone(c.dead)
		c.mu.Unlock()
		c.o.Told.Saved(facts, c.hosts.Disk, died)
	}
	if slices.ContainsFunc(facts.Servers, func(p membership.Member) bool {
		return p.Left && !p.Draining &&
			!p.AnyIndex
	}) {
		c.taken.Add(1)
	}
	var hosts []string
	c.mu.Lock()
	for i, s := range facts.View.Slots {
		t := term{i, s.From}
		if s.From == 0 || slices.Contains(c.terms, t) {
			continue
		}
		c.terms = append(c.terms, t)
		host := fmt.Sprintf("worker:%d", i)
		switch {
		case c.procs[host] != nil: // its previous term is just ending
			c.next[host] = true
		case c.working[host] > 0:
			continue // it died with its term finished; its replacement does this term
		default:
			hosts = append(hosts, host)
		}
		c.left++
		c.working[host]++
	}
	c.mu.Unlock()
	for _, host := range hosts {
		c.start(host)
	}
}

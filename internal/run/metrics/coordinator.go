package metrics

import (
	"context"
	"fmt"
	"time"

	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/data/registry"
	"github.com/perdure/perdure/internal/proc/coordinator"
	"github.com/perdure/perdure/internal/proc/httpdebug"
)

var (
	coordinatorMetrics   []*httpdebug.Metric
	newCoordinatorMetric = metricConstructor(&coordinatorMetrics)

	leads = newCoordinatorMetric(httpdebug.Gauge, "perdure_coordinator_leads",
		"1 if this coordinator leads the job; 0 if it is on standby and has none of the metrics below.")
	epoch = newCoordinatorMetric(httpdebug.Gauge, "perdure_coordinator_view_revision",
		"Revision of the view; each change increments it.")
	generation = newCoordinatorMetric(httpdebug.Gauge, "perdure_coordinator_generation",
		"Generation of the job: 1, plus 1 for each rollback of the whole job.")
	minClock = newCoordinatorMetric(httpdebug.Gauge, "perdure_coordinator_min_clock",
		"MinClock: the smallest clock of all slots.")
	end = newCoordinatorMetric(httpdebug.Gauge, "perdure_coordinator_end_clock",
		"Clock at which the job ends; 0 while it is unknown.")
	durable = newCoordinatorMetric(httpdebug.Gauge, "perdure_coordinator_durable_clock",
		"Clock of the newest durable checkpoint.")
	complete = newCoordinatorMetric(httpdebug.Gauge, "perdure_coordinator_complete",
		"1 if every slot has finished its last clock.")
	serving = newCoordinatorMetric(httpdebug.Gauge, "perdure_coordinator_serving",
		"1 if every shard is serving and every slot is working.")
	shards  = newCoordinatorMetric(httpdebug.Gauge, "perdure_coordinator_shards", "Shards of the job.")
	orphans = newCoordinatorMetric(httpdebug.Gauge, "perdure_coordinator_shards_without_server",
		"Shards that no server holds.")
	members = newCoordinatorMetric(httpdebug.Gauge, "perdure_coordinator_places",
		"Servers and worker slots by state: alive, silent, dead, waiting (no process yet), left.",
		"place_role", "state")
	alive = newCoordinatorMetric(httpdebug.Gauge, "perdure_coordinator_place_alive",
		"1 if the server index or slot has a process that is not silent.", "place")
	active = newCoordinatorMetric(httpdebug.Gauge, "perdure_coordinator_slots_active", "Worker slots that take part.")
	events = newCoordinatorMetric(httpdebug.Counter, "perdure_coordinator_events_total",
		"Events since this coordinator started, by their kind in events.jsonl.", "kind")
	deaths = newCoordinatorMetric(httpdebug.Counter, "perdure_coordinator_deaths_total",
		"Deaths detected since this coordinator started, by kind.", "of")
	recoveries = newCoordinatorMetric(httpdebug.Counter, "perdure_coordinator_recoveries_total",
		"Recoveries since this coordinator started, by kind.", "of")
	outage = newCoordinatorMetric(httpdebug.Counter, "perdure_coordinator_outage_seconds_total",
		"Seconds in which a shard did not serve or a slot did not work, since this coordinator first saw all of them "+
			"work.")
	updatesIn = newCoordinatorMetric(httpdebug.Gauge, "perdure_coordinator_updates_contained",
		"Updates that the rows of all shards contain; it falls when the job rolls back.")
	updatesLost = newCoordinatorMetric(httpdebug.Counter, "perdure_coordinator_updates_lost_total",
		"Updates of the job that are permanently lost.")
	clocksRedone = newCoordinatorMetric(httpdebug.Counter, "perdure_coordinator_clocks_redone_total",
		"Clocks of slots that were computed, completely or in part, and then repeated.")
	rejected = newCoordinatorMetric(httpdebug.Counter, "perdure_coordinator_connections_refused_total",
		"Connections refused because their peer already had the maximum number.")
	saves = newCoordinatorMetric(httpdebug.Summary, "perdure_coordinator_registry_save_seconds",
		"Saves of the job record in the registry: their number and total time.")
	saveFailures = newCoordinatorMetric(httpdebug.Counter, "perdure_coordinator_registry_failures_total",
		"Failed attempts to save the job record in the registry.")
	saveWaits = newCoordinatorMetric(httpdebug.Gauge, "perdure_coordinator_registry_waiting_seconds",
		"How long the current save has waited for the registry; 0 if none is in progress.")
)

// Coordinator returns a probe of a coordinator's loop, which works as long as ctx.
func Coordinator(
	ctx context.Context,
	co *coordinator.Coordinator,
	reg *registry.SaveCounter,
	who Identity,
) *httpdebug.Probe {
	state := func() httpdebug.State { return queryLoop(ctx, co, reg) }
	return httpdebug.NewProbe(StuckTimeout, state, func() []httpdebug.Sample {
		r := reg.Stats()
		return append(common(&who), leads.Sample(1), saves.SummarySample(r.Saves, r.TotalDuration.Seconds()),
			saveFailures.Sample(float64(r.Failures)), saveWaits.Sample(r.PendingFor.Seconds()))
	})
}

// Standby returns a probe of a standby coordinator, which has no job to report.
func Standby(look func() httpdebug.State, who Identity) *httpdebug.Probe {
	return httpdebug.NewProbe(StuckTimeout, look,
		func() []httpdebug.Sample { return append(common(&who), leads.Sample(0)) })
}

// slowSave is the time after which a save in the registry counts as delaying the loop. It is shorter than StuckTimeout.
const slowSave = time.Second

// queryLoop asks the loop for the state of the job. It does not wait while the loop is blocked on a registry that does
// not answer.
func queryLoop(ctx context.Context, co *coordinator.Coordinator, reg *registry.SaveCounter) (l httpdebug.State) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answered := make(chan error, 1)
	go func() {
		answered <- co.Ask(ctx, func(core *membership.Core, latest coordinator.Latest) {
			l = coreState(core, latest.Counts)
			l.Samples = append(l.Samples, rejected.Sample(float64(latest.Refused())))
		})
	}()
	again := time.NewTicker(slowSave / 20)
	defer again.Stop()
	for {
		select {
		case err := <-answered:
			if err != nil {
				l = httpdebug.State{NotReady: "the process ends"}
			}
			return l
		case <-again.C:
		}
		r := reg.Stats()
		if r.PendingFor < slowSave && r.LastError == "" {
			continue
		}
		cancel()
		if err := <-answered; err != nil {
			l = httpdebug.State{
				BlockedOn: "it waits for its registry: changes that are not saved there have no effect yet",
			}
			if r.LastError != "" {
				l.BlockedOn += ": " + r.LastError
			}
		}
		return l
	}
}

// coreState returns the state of the job according to its core.
func coreState(core *membership.Core, t *coordinator.EventCounts) (l httpdebug.State) {
	f := core.Record()
	l.Activity = fmt.Sprintf("it leads job %s, at clock %d", f.Job.ID, core.MinClock())
	if f.Failed != "" {
		l.NotReady = "the job has failed: " + f.Failed
	}
	add := func(s ...httpdebug.Sample) { l.Samples = append(l.Samples, s...) }
	lost := 0
	for i := range f.View.Shards {
		if f.View.Shards[i].Server < 0 {
			lost++
		}
	}
	add(epoch.Sample(float64(f.View.Revision)), generation.Sample(float64(f.View.Generation)),
		minClock.Sample(float64(core.MinClock())), end.Sample(float64(f.View.End)),
		durable.Sample(float64(f.View.Durable)), complete.Sample(boolValue(core.Complete())),
		serving.Sample(boolValue(core.Serving())), shards.Sample(float64(len(f.View.Shards))),
		orphans.Sample(float64(lost)), outage.Sample(t.Outage.Seconds()), updatesIn.Sample(float64(core.NumUpdates())),
		updatesLost.Sample(float64(f.UpdatesLost)), clocksRedone.Sample(float64(f.ClocksRedone)))
	n := 0
	for i := range f.View.Slots {
		if !f.View.Slots[i].Left {
			n++
		}
	}
	add(active.Sample(float64(n)))
	addMembers(&l, core, membership.Server, len(f.Servers))
	addMembers(&l, core, membership.Worker, len(f.Slots))
	for kind, n := range t.Events {
		add(events.Sample(float64(n), kind))
	}
	for _, of := range []string{"server", "worker", "shards"} { // always present, even if 0
		add(deaths.Sample(float64(t.Deaths[of]), of))
	}
	for _, of := range []string{"server", "worker", "shards", "log", "store"} {
		add(recoveries.Sample(float64(t.Recoveries[of]), of))
	}
	return l
}

// addMembers adds the states of the places of a kind.
func addMembers(l *httpdebug.State, core *membership.Core, k membership.Kind, n int) {
	states := map[string]int{"alive": 0, "silent": 0, "dead": 0, "waiting": 0, "left": 0}
	for i := range n {
		state := core.MemberStatus(k, i).State
		states[state]++
		if state != "left" {
			l.Samples = append(l.Samples, alive.Sample(boolValue(state == "alive"), fmt.Sprintf("%s:%d", k, i)))
		}
	}
	for state, n := range states {
		l.Samples = append(l.Samples, members.Sample(float64(n), string(k), state))
	}
}

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
	ofCoordinator []*httpdebug.Metric
	inCoordinator = known(&ofCoordinator)

	leads = inCoordinator(httpdebug.Gauge, "perdure_coordinator_leads",
		"1 if this coordinator leads the job; 0 while it stands by, when it has none of what follows.")
	epoch = inCoordinator(httpdebug.Gauge, "perdure_coordinator_view_revision",
		"Revision of the view: one more with each change.")
	generation = inCoordinator(httpdebug.Gauge, "perdure_coordinator_generation",
		"1, and one more each time that the whole job was rolled back.")
	minClock = inCoordinator(httpdebug.Gauge, "perdure_coordinator_min_clock",
		"MinClock: the least clock of all slots.")
	end = inCoordinator(httpdebug.Gauge, "perdure_coordinator_end_clock",
		"Clock at which the job ends; 0: it is not known yet.")
	durable = inCoordinator(httpdebug.Gauge, "perdure_coordinator_durable_clock",
		"Clock of the newest checkpoint that is durable.")
	complete = inCoordinator(httpdebug.Gauge, "perdure_coordinator_complete",
		"1 if every slot has done its last clock.")
	serving = inCoordinator(httpdebug.Gauge, "perdure_coordinator_serving",
		"1 if every shard serves and every slot works.")
	shards  = inCoordinator(httpdebug.Gauge, "perdure_coordinator_shards", "Shards of the job.")
	orphans = inCoordinator(httpdebug.Gauge, "perdure_coordinator_shards_without_server",
		"Shards that no server holds.")
	places = inCoordinator(httpdebug.Gauge, "perdure_coordinator_places",
		"Places of servers and slots of workers by how they are: alive, silent, dead, waiting (nobody is "+
			"there), left.",
		"place_role", "state")
	alive = inCoordinator(httpdebug.Gauge, "perdure_coordinator_place_alive",
		"1 if a process is in the place and is heard.", "place")
	active = inCoordinator(httpdebug.Gauge, "perdure_coordinator_slots_active", "Slots of workers that take part.")
	events = inCoordinator(httpdebug.Counter, "perdure_coordinator_events_total",
		"What has happened, by the kind that events.jsonl has, since this coordinator began.", "kind")
	deaths = inCoordinator(httpdebug.Counter, "perdure_coordinator_deaths_total",
		"Deaths that were noticed since this coordinator began, by what has died.", "of")
	recoveries = inCoordinator(httpdebug.Counter, "perdure_coordinator_recoveries_total",
		"What works again after it was missed, since this coordinator began.", "of")
	outage = inCoordinator(httpdebug.Counter, "perdure_coordinator_outage_seconds_total",
		"Seconds in which not every shard served and every slot worked, since this coordinator began and all did.")
	updatesIn = inCoordinator(httpdebug.Gauge, "perdure_coordinator_updates_contained",
		"Updates that the rows of all shards contain: it falls where the job goes back.")
	updatesLost = inCoordinator(httpdebug.Counter, "perdure_coordinator_updates_lost_total",
		"Updates of the job that are lost for good.")
	redone = inCoordinator(httpdebug.Counter, "perdure_coordinator_clocks_redone_total",
		"Clocks of slots that were done, wholly or in part, and then done again.")
	turnedAway = inCoordinator(httpdebug.Counter, "perdure_coordinator_connections_refused_total",
		"Connections that were refused since their peer had as many as one may have.")
	saves = inCoordinator(httpdebug.Summary, "perdure_coordinator_registry_save_seconds",
		"Saves of the job's facts in the registry: how many, and how long they took.")
	saveFailures = inCoordinator(httpdebug.Counter, "perdure_coordinator_registry_failures_total",
		"Tries to save the job's facts in the registry that have failed.")
	saveWaits = inCoordinator(httpdebug.Gauge, "perdure_coordinator_registry_waiting_seconds",
		"How long the save that is under way has waited for the registry; 0: none is under way.")
)

// Coordinator asks a coordinator's loop, as long as ctx lasts.
func Coordinator(ctx context.Context, co *coordinator.Coordinator, reg *registry.Counted, who Who) *httpdebug.Probe {
	return httpdebug.NewProbe(Bound, func() httpdebug.Look { return askLoop(ctx, co, reg) }, func() []httpdebug.Sample {
		r := reg.Counts()
		return append(common(&who), leads.Is(1), saves.Sums(r.Saves, r.Took.Seconds()),
			saveFailures.Is(float64(r.Failures)), saveWaits.Is(r.Waits.Seconds()))
	})
}

// Standby asks a coordinator that stands by. It has no job to tell of.
func Standby(look func() httpdebug.Look, who Who) *httpdebug.Probe {
	return httpdebug.NewProbe(Bound, look, func() []httpdebug.Sample { return append(common(&who), leads.Is(0)) })
}

// slow is how long a save in the registry takes at least that is said to keep the loop waiting. It is less than Bound.
const slow = time.Second

// askLoop asks the loop how the job is. It does not wait for a registry that does not answer, for which the loop waits.
func askLoop(ctx context.Context, co *coordinator.Coordinator, reg *registry.Counted) (l httpdebug.Look) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answered := make(chan error, 1)
	go func() {
		answered <- co.Ask(ctx, func(core *membership.Core, latest coordinator.Latest) {
			l = lookAt(core, latest.Tally)
			l.Samples = append(l.Samples, turnedAway.Is(float64(latest.Refused())))
		})
	}()
	again := time.NewTicker(slow / 20)
	defer again.Stop()
	for {
		select {
		case err := <-answered:
			if err != nil {
				l = httpdebug.Look{NotReady: "the process ends"}
			}
			return l
		case <-again.C:
		}
		r := reg.Counts()
		if r.Waits < slow && r.Failing == "" {
			continue
		}
		cancel()
		if err := <-answered; err != nil {
			l = httpdebug.Look{Waits: "it waits for its registry: what is not saved there is not decided"}
			if r.Failing != "" {
				l.Waits += ": " + r.Failing
			}
		}
		return l
	}
}

// lookAt is how the job is, as its core knows.
func lookAt(core *membership.Core, t *coordinator.Tally) (l httpdebug.Look) {
	f := core.Facts()
	l.Does = fmt.Sprintf("it leads job %s, at clock %d", f.Job.ID, core.MinClock())
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
	add(epoch.Is(float64(f.View.Revision)), generation.Is(float64(f.View.Generation)),
		minClock.Is(float64(core.MinClock())), end.Is(float64(f.View.End)), durable.Is(float64(f.View.Durable)),
		complete.Is(is(core.Complete())), serving.Is(is(core.Serving())), shards.Is(float64(len(f.View.Shards))),
		orphans.Is(float64(lost)), outage.Is(t.Outage.Seconds()), updatesIn.Is(float64(core.UpdatesIn())),
		updatesLost.Is(float64(f.UpdatesLost)), redone.Is(float64(f.ClocksRedone)))
	n := 0
	for i := range f.View.Slots {
		if !f.View.Slots[i].Left {
			n++
		}
	}
	add(active.Is(float64(n)))
	addPlaces(&l, core, membership.Server, len(f.Servers))
	addPlaces(&l, core, membership.Worker, len(f.Slots))
	for kind, n := range t.Events {
		add(events.Is(float64(n), kind))
	}
	for _, of := range []string{"server", "worker", "shards"} { // there, also while they are 0
		add(deaths.Is(float64(t.Deaths[of]), of))
	}
	for _, of := range []string{"server", "worker", "shards", "log", "store"} {
		add(recoveries.Is(float64(t.Recoveries[of]), of))
	}
	return l
}

// addPlaces adds how the places of a kind are.
func addPlaces(l *httpdebug.Look, core *membership.Core, k membership.Kind, n int) {
	states := map[string]int{"alive": 0, "silent": 0, "dead": 0, "waiting": 0, "left": 0}
	for i := range n {
		state := core.Condition(k, i).State
		states[state]++
		if state != "left" {
			l.Samples = append(l.Samples, alive.Is(is(state == "alive"), fmt.Sprintf("%s:%d", k, i)))
		}
	}
	for state, n := range states {
		l.Samples = append(l.Samples, places.Is(float64(n), string(k), state))
	}
}

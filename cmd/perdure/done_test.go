package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/run/settings"
)

// TestKilledWhenDone: a server that is killed when every worker has finished takes
// nothing away, and nobody is started in its place.
func TestKilledWhenDone(t *testing.T) {
	t.Parallel()
	for _, recovery := range []string{"checkpoint:10", "resend:10", "chain:2", "stateless"} {
		t.Run(recovery, func(t *testing.T) {
			r, err := perdure.ParseRecovery(recovery)
			must(t, err)
			s := settings.Run{Job: perdure.JobSpec{
				Slots: 2, Servers: 3, Shards: 6, Clocks: 20, Seed: 5,
				Consistency: perdure.Consistency{Kind: perdure.ASP}, Recovery: r,
			}}
			j, ended := startPrograms(t, s, "sums")
			select {
			case <-j.Complete():
			case err := <-ended:
				t.Fatal(err)
			}
			must(t, j.Job().Group().Kill(wire.RoleServer, 0))
			await(t, func() bool { // until the coordinator knows
				return slices.ContainsFunc(j.Told().Places, func(p wire.PlaceProgress) bool {
					return p.Role == wire.RoleServer && p.Index == 0 && p.State == "dead"
				})
			}, func() string { return "nobody knows that server:0 is dead" })
			sum := j.Summary(nil)
			if want := int64(20 * 2 * 6); *sum.UpdatesApplied != want || *sum.UpdatesLost != 0 {
				t.Errorf("%d updates applied and %d lost, want %d and 0", *sum.UpdatesApplied, *sum.UpdatesLost, want)
			}
			log := fileOf(t, j.Dir().Path(), "logs", "server-0.log")
			if n := strings.Count(log, "=== server:0: process "); n != 1 {
				t.Errorf("server:0 has had %d processes", n)
			}
		})
	}
}

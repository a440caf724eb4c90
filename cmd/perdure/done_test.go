package main

import (
	"context"
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/run/settings"
)

// TestKilledWhenDone: a server is killed after every worker has finished and before the model is read. Nothing is lost:
// a replacement starts, and the model is complete.
func TestKilledWhenDone(t *testing.T) {
	t.Parallel()
	for _, recovery := range []string{"checkpoint:10", "resend:10", "chain:2", "stateless"} {
		t.Run(recovery, func(t *testing.T) {
			r, err := perdure.ParseRecovery(recovery)
			must(t, err)
			s := settings.Run{Job: perdure.JobSpec{
				Slots: sumsSlots, Servers: 3, Shards: 6, Clocks: sumsClocks, Seed: 5,
				Consistency: perdure.Consistency{Kind: perdure.ASP}, Recovery: r,
			}}
			j, ended := startPrograms(t, s, "sums")
			select {
			case <-j.Complete():
			case err := <-ended:
				t.Fatal(err)
			}
			must(t, j.Job().Group().Kill(wire.RoleServer, 0))
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			await(t, func() bool { // until the coordinator knows the replacement
				return slices.ContainsFunc(j.Progress().Members, func(p wire.MemberProgress) bool {
					return p.Role == wire.RoleServer && p.Index == 0 && p.Incarnation == 2 && p.State == "alive"
				})
			}, func() string { return "no second process of server:0 has joined" })
			compareSums(ctx, t, j, s.Job.Seed)
			sum := j.Summary(nil)
			if want := int64(sumsClocks * sumsSlots * 6); *sum.UpdatesApplied != want || *sum.UpdatesLost != 0 {
				t.Errorf("%d updates applied and %d lost, want %d and 0", *sum.UpdatesApplied, *sum.UpdatesLost, want)
			}
		})
	}
}

package coordinator_test

import (
	"reflect"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/rig"
)

// Whoever is there is told what changes, whoever comes the whole view: they know the
// same, and nobody who is there is told the whole view again, or what does not concern it.
func TestDeltas(t *testing.T) {
	inJob(t, rig.Job("ssp:1", "chain:2", 1, 2, 8), func(t *testing.T, on *lone) {
		mem := on.Net
		var err error

		early := peer(t, mem, wire.Hello{Role: wire.RoleObserver, Process: "early"})
		var known words.View
		await(t, early, wire.KindView, &known)
		var servers []transport.Conn
		for i, name := range []string{"a", "b"} {
			servers = append(servers,
				peer(t, mem, wire.Hello{Role: wire.RoleServer, Index: i, Process: name, PID: i + 1, Zone: name}))
			var w wire.Welcome
			await(t, servers[i], wire.KindWelcome, &w)
		}
		table := perdure.TableSpec{
			Name: "w", Rows: 10, Dim: 3, Rule: perdure.Rule{Kind: perdure.RuleAdd},
			Consistency: perdure.Consistency{Kind: perdure.ASP},
		}
		for known.Shards[7].Replicas() < 2 {
			var d words.ViewDelta
			await(t, early, wire.KindViewDelta, &d)
			if known, err = d.Apply(&known); err != nil {
				t.Fatal(err)
			}
		}
		if known.Revision < 3 || known.Shards[7].Replicas() != 2 {
			t.Errorf("the view is %+v", known)
		}
		// A worker asks for the slot: that concerns the servers, which refuse its
		// predecessors. The others hear of it with what concerns them, too.
		worker := peer(t, mem, wire.Hello{Role: wire.RoleWorker, Index: 0, Process: "w", PID: 9})
		var d words.ViewDelta
		for len(d.Slots) == 0 {
			d = words.ViewDelta{}
			await(t, servers[1], wire.KindViewDelta, &d)
		}
		if err := worker.Send(wire.Control(wire.KindTable, table)); err != nil {
			t.Fatal(err)
		}
		d = words.ViewDelta{}
		if await(t, early, wire.KindViewDelta, &d); len(d.Tables) != 1 || len(d.Slots) != 1 ||
			d.Base != known.Revision || d.Revision < d.Base+2 {
			t.Errorf("the observer of revision %d is told %+v", known.Revision, d)
		}
		if known, err = d.Apply(&known); err != nil {
			t.Fatal(err)
		}
		var late words.View
		await(t, peer(t, mem, wire.Hello{Role: wire.RoleObserver, Process: "late"}), wire.KindView, &late)
		if !reflect.DeepEqual(known, late) {
			t.Errorf("who was there knows %+v, who comes is told %+v", known, late)
		}
	})
}

package coordinator_test

import (
	"reflect"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/testcluster"
)

// TestDeltas checks that connected members receive deltas and new ones the complete view, and that both know the same.
// No member receives the complete view twice, or changes that do not concern it.
func TestDeltas(t *testing.T) {
	inJob(t, testcluster.Job("ssp:1", "chain:2", 1, 2, 8), func(t *testing.T, on *lone) {
		mem := on.Net
		var err error

		early := peer(t, mem, wire.Hello{Role: wire.RoleObserver, Process: "early"})
		var known protocol.View
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
			var d protocol.ViewDelta
			await(t, early, wire.KindViewDelta, &d)
			if known, err = d.Apply(&known); err != nil {
				t.Fatal(err)
			}
		}
		if known.Revision < 3 || known.Shards[7].Replicas() != 2 {
			t.Errorf("the view is %+v", known)
		}
		// When a worker asks for the slot, the servers are notified so that they reject its predecessors. Other members
		// receive that change together with a later one that concerns them.
		worker := peer(t, mem, wire.Hello{Role: wire.RoleWorker, Index: 0, Process: "w", PID: 9})
		var d protocol.ViewDelta
		for len(d.Slots) == 0 {
			d = protocol.ViewDelta{}
			await(t, servers[1], wire.KindViewDelta, &d)
		}
		if err := worker.Send(wire.Control(wire.KindTable, table)); err != nil {
			t.Fatal(err)
		}
		d = protocol.ViewDelta{}
		if await(t, early, wire.KindViewDelta, &d); len(d.Tables) != 1 || len(d.Slots) != 1 ||
			d.Base != known.Revision || d.Revision < d.Base+2 {
			t.Errorf("the observer of revision %d received %+v", known.Revision, d)
		}
		if known, err = d.Apply(&known); err != nil {
			t.Fatal(err)
		}
		var late protocol.View
		await(t, peer(t, mem, wire.Hello{Role: wire.RoleObserver, Process: "late"}), wire.KindView, &late)
		if !reflect.DeepEqual(known, late) {
			t.Errorf("an old member knows %+v, a new one received %+v", known, late)
		}
	})
}

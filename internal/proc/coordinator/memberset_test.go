package coordinator

import (
	"testing"

	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// heard is a connection that records the frames sent on it.
type heard struct {
	transport.Conn
	frames []wire.Frame
}

func (h *heard) TrySend(frames ...wire.Frame) error {
	h.frames = append(h.frames, frames...)
	return nil
}

func (h *heard) Close() error { return nil }

// TestCrewEncodesOnce checks that a complete view is encoded once per revision, and a delta once for all its receivers.
// Members that are waiting, have gone, or have another role receive no delta.
func TestCrewEncodesOnce(t *testing.T) {
	v := &protocol.View{Revision: 7, Shards: make([]protocol.ShardView, 3), Slots: make([]protocol.SlotView, 2)}
	c := newMemberSet()
	first, again := c.view(v), c.view(v)
	v.Revision, v.Shards[1].Epoch = 8, 9
	next := c.view(v)
	var known protocol.View
	switch err := wire.ParseControl(&next, &known); {
	case &first.Payload[0] != &again.Payload[0]:
		t.Error("one view is encoded twice")
	case err != nil || known.Revision != 8 || known.Shards[1].Epoch != 9:
		t.Errorf("a later member received %+v (%v)", known, err)
	}
	conns := map[string]*heard{}
	join := func(name string, role wire.Role, index int, welcome bool) *member {
		conns[name] = &heard{}
		m := &member{conn: conns[name], hello: wire.Hello{Role: role, Index: index, Process: name}, index: index}
		c.add(m)
		if welcome {
			c.markWelcomed(m)
		}
		return m
	}
	join("server", wire.RoleServer, 0, true)
	join("waits", wire.RoleServer, 1, false)
	gone := join("gone", wire.RoleServer, 2, true)
	c.remove(gone)
	join("worker", wire.RoleWorker, 0, true)
	join("observer", wire.RoleObserver, -1, true)
	join("supervisor", wire.RoleSupervisor, -1, true)
	join("back", wire.RoleWorker, 1, true)
	conns["before"] = conns["back"]
	join("back", wire.RoleWorker, 1, true) // its former connection is dropped
	d := &protocol.ViewDelta{Base: 7, Revision: 8}
	c.broadcast(d, c.servers)
	c.broadcast(nil, c.servers)
	c.broadcast(d, c.readers)
	for name, want := range map[string]int{
		"server": 1, "waits": 0, "gone": 0, "worker": 1, "observer": 1, "supervisor": 0, "before": 0, "back": 1,
	} {
		if got := conns[name].frames; len(got) != want {
			t.Errorf("%s received %d frames, want %d", name, len(got), want)
		}
	}
	if w, o := conns["worker"].frames[0], conns["observer"].frames[0]; &w.Payload[0] != &o.Payload[0] {
		t.Error("one delta is encoded twice")
	}
}

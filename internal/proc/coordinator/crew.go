package coordinator

import (
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/wire"
)

// slotID identifies a server or a worker slot. One connection per slotID is the newest.
type slotID struct {
	kind  membership.Kind
	index int
}

// crew holds the connected members. A server or worker waits until its assignment is saved, and a worker also until its
// slot is settled.
type crew struct {
	members map[*member]struct{}
	newest  map[slotID]*member   // the newest connection for each slotID
	waiting map[*member]struct{} // the waiting members
	servers map[*member]struct{} // the welcomed servers
	readers map[*member]struct{} // the welcomed clients of servers
	whole   wire.Frame           // the last encoded complete view; its payload is nil before the first
	of      uint64               // the revision of that view
}

func newCrew() crew {
	none := func() map[*member]struct{} { return map[*member]struct{}{} }
	return crew{members: none(), newest: map[slotID]*member{}, waiting: none(), servers: none(), readers: none()}
}

// add registers a member, which waits until it is welcomed. An older connection of the same process is dropped; it has
// broken without being noticed.
func (c *crew) add(m *member) {
	if o := c.newest[m.slotID()]; o != nil && o != m && o.hello.Process == m.hello.Process {
		c.forget(o)
	}
	c.members[m], c.waiting[m] = struct{}{}, struct{}{}
	c.newest[m.slotID()] = m
}

// welcome marks a member as welcomed.
func (c *crew) welcome(m *member) {
	delete(c.waiting, m)
	c.members[m], m.welcomed = struct{}{}, true
	if m.hello.Role == wire.RoleServer {
		c.servers[m] = struct{}{}
	} else if m.reads() {
		c.readers[m] = struct{}{}
	}
}

// view returns the encoded complete view. It is encoded once per revision.
func (c *crew) view(v *words.View) wire.Frame {
	if c.whole.Payload == nil || c.of != v.Revision {
		c.whole, c.of = wire.Control(wire.KindView, v), v.Revision
	}
	return c.whole
}

// forget closes a connection that a newer one has replaced.
func (c *crew) forget(m *member) {
	c.remove(m)
	m.conn.Close() // the receiving goroutine notices
}

// remove removes a member whose connection has ended. It reports whether the member was registered.
func (c *crew) remove(m *member) bool {
	_, there := c.members[m]
	delete(c.members, m)
	delete(c.waiting, m)
	delete(c.servers, m)
	delete(c.readers, m)
	return there
}

// vacate releases the slotID of a member whose connection has ended. It returns false if the member had none or its
// process has reconnected.
func (c *crew) vacate(m *member) bool {
	if !m.place() || c.newest[m.slotID()] != m {
		return false
	}
	delete(c.newest, m.slotID())
	return true
}

// current reports whether a member's messages count: it was welcomed and has no newer connection, on which its process
// would report everything again.
func (c *crew) current(m *member, role wire.Role) bool {
	return m.hello.Role == role && m.welcomed && c.newest[m.slotID()] == m
}

// broadcast sends a view delta to some of the welcomed members. Waiting members receive the complete view later.
func (c *crew) broadcast(d *words.ViewDelta, whom map[*member]struct{}) {
	if d == nil {
		return
	}
	f := []wire.Frame{wire.Control(wire.KindViewDelta, d)} // shared, since no receiver changes it
	for m := range whom {
		m.send(f...)
	}
}

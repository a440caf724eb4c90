package coordinator

import (
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/wire"
)

// seat is a place, of which one connection is the newest.
type seat struct {
	kind  membership.Kind
	index int
}

// crew is who is connected. A member that has asked for a place waits until that is
// recorded, and a worker until its slot is settled.
type crew struct {
	members map[*member]struct{}
	seated  map[seat]*member     // the newest of each place
	waiting map[*member]struct{} // of the members
	servers map[*member]struct{} // of the members who are welcome
	readers map[*member]struct{} // likewise: clients of the servers
	whole   wire.Frame           // the whole view, as it was told last; it has no payload before that
	of      uint64               // its revision
}

func newCrew() crew {
	none := func() map[*member]struct{} { return map[*member]struct{}{} }
	return crew{members: none(), seated: map[seat]*member{}, waiting: none(), servers: none(), readers: none()}
}

// seat gives a member its place, where it waits until it is welcome. The connection that its
// process had before broke, and that was not noticed yet: it is forgotten.
func (c *crew) seat(m *member) {
	if o := c.seated[m.seat()]; o != nil && o != m && o.hello.Process == m.hello.Process {
		c.forget(o)
	}
	c.members[m], c.waiting[m] = struct{}{}, struct{}{}
	c.seated[m.seat()] = m
}

// welcome lets a member in.
func (c *crew) welcome(m *member) {
	delete(c.waiting, m)
	c.members[m], m.welcomed = struct{}{}, true
	if m.hello.Role == wire.RoleServer {
		c.servers[m] = struct{}{}
	} else if m.reads() {
		c.readers[m] = struct{}{}
	}
}

// view returns the whole view for who is welcome. It is encoded once for all who come before the next one.
func (c *crew) view(v *words.View) wire.Frame {
	if c.whole.Payload == nil || c.of != v.Revision {
		c.whole, c.of = wire.Control(wire.KindView, v), v.Revision
	}
	return c.whole
}

// forget ends a connection in whose place another has come.
func (c *crew) forget(m *member) {
	c.remove(m)
	m.conn.Close() // its reader notices
}

// remove takes a member off whose connection has ended; false: it was not there.
func (c *crew) remove(m *member) bool {
	_, there := c.members[m]
	delete(c.members, m)
	delete(c.waiting, m)
	delete(c.servers, m)
	delete(c.readers, m)
	return there
}

// vacate takes the place from a member whose connection has ended; false: it had none, or
// its process has come again.
func (c *crew) vacate(m *member) bool {
	if !m.place() || c.seated[m.seat()] != m {
		return false
	}
	delete(c.seated, m.seat())
	return true
}

// current reports whether what a member says counts: it has its place, and its process
// has no later connection, on which it says all anew.
func (c *crew) current(m *member, role wire.Role) bool {
	return m.hello.Role == role && m.welcomed && c.seated[m.seat()] == m
}

// tell tells some of those who are welcome what changed of the view. Who waits is told the whole
// view later.
func (c *crew) tell(d *words.ViewDelta, whom map[*member]struct{}) {
	if d == nil {
		return
	}
	f := []wire.Frame{wire.Control(wire.KindViewDelta, d)} // one for all: none changes it
	for m := range whom {
		m.send(f...)
	}
}

package coordinator

import (
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
)

// memberID identifies a server or a worker slot. One connection per slotID is the newest.
type memberID struct {
	kind  membership.Kind
	index int
}

// memberSet holds the connected members. A server or worker waits until its assignment is saved, and a worker also
// until its slot is settled.
type memberSet struct {
	all             map[*member]struct{}
	newest          map[memberID]*member // the newest connection for each slotID
	waiting         map[*member]struct{} // the waiting members
	servers         map[*member]struct{} // the welcomed servers
	readers         map[*member]struct{} // the welcomed clients of servers
	standbys        standbys             // the processes that wait for a free slot or server index
	encodedView     wire.Frame           // the last encoded complete view; its payload is nil before the first
	encodedRevision uint64               // the revision of that view
}

func newMemberSet() memberSet {
	none := func() map[*member]struct{} { return map[*member]struct{}{} }
	return memberSet{all: none(), newest: map[memberID]*member{}, waiting: none(), servers: none(), readers: none()}
}

// add registers a member, which waits until it is welcomed. An older connection of the same process is dropped; it has
// broken without being noticed.
func (c *memberSet) add(m *member) {
	if o := c.newest[m.id()]; o != nil && o != m && o.hello.Process == m.hello.Process {
		c.replace(o)
	}
	c.all[m], c.waiting[m] = struct{}{}, struct{}{}
	c.newest[m.id()] = m
}

// markWelcomed marks a member as welcomed.
func (c *memberSet) markWelcomed(m *member) {
	delete(c.waiting, m)
	c.all[m], m.welcomed = struct{}{}, true
	if m.hello.Role == wire.RoleServer {
		c.servers[m] = struct{}{}
	} else if m.readsServers() {
		c.readers[m] = struct{}{}
	}
}

// view returns the encoded complete view. It is encoded once per revision.
func (c *memberSet) view(v *protocol.View) wire.Frame {
	if c.encodedView.Payload == nil || c.encodedRevision != v.Revision {
		c.encodedView, c.encodedRevision = wire.Control(wire.KindView, v), v.Revision
	}
	return c.encodedView
}

// replace closes a connection that a newer one has replaced.
func (c *memberSet) replace(m *member) {
	c.remove(m)
	m.conn.Close() // the receiving goroutine notices
}

// remove removes a member whose connection has ended. It reports whether the member was registered.
func (c *memberSet) remove(m *member) bool {
	_, there := c.all[m]
	delete(c.all, m)
	delete(c.waiting, m)
	delete(c.servers, m)
	delete(c.readers, m)
	return there
}

// releaseID releases the slotID of a member whose connection has ended. It returns false if the member had none or its
// process has reconnected.
func (c *memberSet) releaseID(m *member) bool {
	if !m.holdsID() || c.newest[m.id()] != m {
		return false
	}
	delete(c.newest, m.id())
	return true
}

// current reports whether a member's messages count: it was welcomed and has no newer connection, on which its process
// would report everything again.
func (c *memberSet) current(m *member, role wire.Role) bool {
	return m.hello.Role == role && m.welcomed && c.newest[m.id()] == m
}

// broadcast sends a view delta to some of the welcomed members. Waiting members receive the complete view later.
func (c *memberSet) broadcast(d *protocol.ViewDelta, whom map[*member]struct{}) {
	if d == nil {
		return
	}
	f := []wire.Frame{wire.Control(wire.KindViewDelta, d)} // shared, since no receiver changes it
	for m := range whom {
		m.send(f...)
	}
}

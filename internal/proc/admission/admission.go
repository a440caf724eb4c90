// Package admission decides who may connect to a process and what each peer may send: it performs the
// handshake ([Door]), bounds the connections of one peer and the bytes that may wait on all of them
// together, and holds the table of which role may send which kind of message ([ToCoordinator], [ToServer]).
//
//	hello, peer, err := d.Enter(conn)
//	if err != nil {
//		return // the peer and the log know why
//	}
//	defer peer.Leave()
//	defer conn.Close()
//
// A peer is everybody who shows the same certificate from the same machine: all workers of a job may share
// a certificate, and whoever has stolen it takes nothing from those on other machines. Without certificates
// a peer is a machine, and over a Unix socket a process.
package admission

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

const (
	// patience is how long a peer may take to say who it is.
	patience = 5 * time.Second
	// A peer may have Least connections, and PerPlace more for each place of the job. A machine that has all of the
	// job's processes needs one for each, and now and then another: one that broke may not be noticed yet, and a copy
	// of a shard has its own. So this is a few times what anybody needs.
	Least    = 256
	PerPlace = 4
	// PlaceBytes is how much each place of the job may leave unread, and may have waiting: as much as one connection
	// may. A peer may have that for each place, since a machine may have all of them, and for Spare more: a connection
	// that broke may not be noticed yet, and who looks at the job has no place.
	PlaceBytes = transport.DefaultMaxQueued
	Spare      = 4
	// aMachine is how much of an address is a machine's where that has many.
	aMachine = 64
)

// Door is where others come in. It is safe for concurrent use.
type Door struct {
	Keys wire.Keys // what who comes must show
	Log  *slog.Logger
	// Visited says that it is usual to come and go without a word: so others look whether the process can be reached.
	Visited bool
	Bytes   int64 // of one place; 0: PlaceBytes

	places  atomic.Int64
	refused atomic.Int64

	lines sync.Once // sets said
	said  *slog.Logger

	mu     sync.Mutex       // guards what follows
	inside map[string]*Peer // who has connections, by name
}

// Peer is somebody who has connections to this process.
type Peer struct {
	// Unread counts what is queued for the peer on its connections, which Enter sees to, and Waiting what it has asked
	// for and waits for, which is up to who answers.
	Unread, Waiting *transport.Budget

	door        *Door
	name        string
	connections int // guarded by Door.mu
}

// Expect says how many places the job has.
func (d *Door) Expect(places int) { d.places.Store(int64(places)) }

// Refused is how many connections were refused because their peer had as many as one may have.
func (d *Door) Refused() int64 { return d.refused.Load() }

// Connections is the log for lines about single connections. Peers can cause them as often as they like, so it writes
// few of them and counts the others, where the log can do that: httpdebug.NewLog's can.
func (d *Door) Connections() *slog.Logger {
	d.lines.Do(func() {
		d.said = d.Log
		if h, ok := d.Log.Handler().(interface{ Sparing() slog.Handler }); ok {
			d.said = slog.New(h.Sparing())
		}
	})
	return d.said
}

// Enter waits for the greeting of a connection that was accepted. Who is let in calls peer.Leave when the connection is
// closed. Who is not has been told why.
func (d *Door) Enter(c transport.Conn) (hello wire.Hello, peer *Peer, err error) {
	if hello, err = transport.Greet(c, patience, d.Keys); err != nil {
		say := d.Connections().Warn
		if d.Visited && errors.Is(err, io.EOF) {
			say = d.Log.Debug
		}
		say("closed a connection that did not say who it is", "peer", c.Peer(), "err", err)
		return hello, nil, err
	}
	if peer, err = d.enter(nameOf(c)); err != nil {
		d.refused.Add(1)
		d.Connections().Warn("refused a connection", "peer", c.Peer(), "peer_role", hello.Role, "reason", err)
		_ = transport.Refuse(c, wire.Refusal{Again: true, Reason: err.Error()}) // it is being closed anyway
		return hello, nil, err
	}
	c.Charge(peer.Unread)
	return hello, peer, nil
}

func (d *Door) enter(who string) (*Peer, error) {
	most := Least + PerPlace*int(d.places.Load())
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.inside[who]
	switch {
	case p == nil:
		p = &Peer{Unread: transport.NewBudget(d.room), Waiting: transport.NewBudget(d.room), door: d, name: who}
		if d.inside == nil {
			d.inside = map[string]*Peer{}
		}
		d.inside[who] = p
	case p.connections >= most:
		return nil, fmt.Errorf("%s has %d connections to this process already, and one peer may have no more; end "+
			"some of them", who, most)
	}
	p.connections++
	return p, nil
}

// room is how many bytes one peer may have waiting.
func (d *Door) room() int64 { return (d.places.Load() + Spare) * cmp.Or(d.Bytes, PlaceBytes) }

// Leave says that a connection of the peer is closed.
func (p *Peer) Leave() {
	p.door.mu.Lock()
	defer p.door.mu.Unlock()
	if p.connections--; p.connections == 0 {
		delete(p.door.inside, p.name)
	}
}

// nameOf says whom a connection counts for.
func nameOf(c transport.Conn) string {
	at := c.Peer()
	if host, _, err := net.SplitHostPort(at); err == nil {
		at = host
	}
	if ip, err := netip.ParseAddr(at); err == nil && ip.Is6() && !ip.Is4In6() {
		if p, err := ip.WithZone("").Prefix(aMachine); err == nil {
			at = p.String()
		}
	}
	if who := c.Who(); who.Role != "" {
		return who.String() + " at " + at
	}
	return at
}

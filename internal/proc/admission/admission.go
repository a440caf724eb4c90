// Package admission authenticates incoming connections and limits how many one peer may open. It performs the handshake
// ([Door]) and bounds each peer's connections and the bytes queued on all of them together. Which role may send which
// kind of message is in package wire.
//
//	hello, peer, err := d.Enter(conn)
//	if err != nil {
//		return // already logged and reported to the peer
//	}
//	defer peer.Leave()
//	defer conn.Close()
//
// A peer is identified by its certificate and its machine. All workers of a job may share a certificate, so a stolen
// certificate cannot use up the limits of workers on other machines. Without certificates, a peer is a machine, or a
// process if the connection is a Unix socket.
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
	// handshakeTimeout limits how long a handshake may take.
	handshakeTimeout = 5 * time.Second
	// A peer may have Least connections, plus PerPlace for each slot and server of the job. A machine that runs the
	// whole job needs one connection per process, plus a few: a broken connection may not be noticed yet, and the copy
	// of a shard uses its own. The limit is a few times the largest legitimate need.
	Least    = 256
	PerPlace = 4
	// PlaceBytes is the limit of one connection. A peer may leave that many bytes unread, and have that many pending,
	// for each slot and server of the job, because one machine may run all of them. Spare adds room for connections
	// that broke but were not noticed yet, and for observers, which have no slot.
	PlaceBytes = transport.DefaultMaxQueued
	Spare      = 4
	// machinePrefix is the number of leading bits of an IPv6 address that identify a machine.
	machinePrefix = 64
)

// Door admits connections to this process. It is safe for concurrent use.
type Door struct {
	Keys wire.Keys // the keys that a peer must present
	Log  *slog.Logger
	// Visited reports whether connections that close without a handshake are normal, because other processes probe
	// whether this one is reachable. They are then logged at debug level.
	Visited bool
	Bytes   int64 // per slot or server; 0: PlaceBytes

	members atomic.Int64
	refused atomic.Int64

	connectionsOnce sync.Once // sets connections
	connections     *slog.Logger

	mu    sync.Mutex       // guards peers
	peers map[string]*Peer // connected peers, by name
}

// Peer is a remote party with open connections to this process.
type Peer struct {
	// Unread counts the bytes queued on the peer's connections; Enter maintains it. Waiting counts the bytes of the
	// peer's pending requests; the request handlers maintain it.
	Unread, Waiting *transport.Budget

	door        *Door
	name        string
	connections int // guarded by Door.mu
}

// Expect sets the size of the job, from which the limits follow: its slots plus its servers or shards.
func (d *Door) Expect(places int) { d.members.Store(int64(places)) }

// Refused returns the number of connections rejected because their peer had reached its limit.
func (d *Door) Refused() int64 { return d.refused.Load() }

// Connections returns the logger for messages about single connections. Peers can trigger these as often as they like,
// so the logger samples them and counts the rest if its handler supports that (see httpdebug.NewLog).
func (d *Door) Connections() *slog.Logger {
	d.connectionsOnce.Do(func() {
		d.connections = d.Log
		if h, ok := d.Log.Handler().(interface{ Sparing() slog.Handler }); ok {
			d.connections = slog.New(h.Sparing())
		}
	})
	return d.connections
}

// Enter performs the handshake of an accepted connection. On success, the caller must call peer.Leave when the
// connection is closed. On failure, the peer has been sent the reason.
func (d *Door) Enter(c transport.Conn) (hello wire.Hello, peer *Peer, err error) {
	if hello, err = transport.Greet(c, handshakeTimeout, d.Keys); err != nil {
		say := d.Connections().Warn
		if d.Visited && errors.Is(err, io.EOF) {
			say = d.Log.Debug
		}
		say("handshake failed; closed the connection", "peer", c.Peer(), "err", err)
		return hello, nil, err
	}
	if peer, err = d.enter(peerName(c)); err != nil {
		d.refused.Add(1)
		d.Connections().Warn("rejected a connection", "peer", c.Peer(), "peer_role", hello.Role, "reason", err)
		_ = transport.Refuse(c, wire.Refusal{Temporary: true, Reason: err.Error()}) // it is being closed anyway
		return hello, nil, err
	}
	c.Charge(peer.Unread)
	return hello, peer, nil
}

func (d *Door) enter(who string) (*Peer, error) {
	most := Least + PerPlace*int(d.members.Load())
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.peers[who]
	switch {
	case p == nil:
		p = &Peer{Unread: transport.NewBudget(d.budget), Waiting: transport.NewBudget(d.budget), door: d, name: who}
		if d.peers == nil {
			d.peers = map[string]*Peer{}
		}
		d.peers[who] = p
	case p.connections >= most:
		return nil, fmt.Errorf("%s already has %d connections to this process, the limit for one peer; "+
			"close some of them", who, most)
	}
	p.connections++
	return p, nil
}

// budget returns how many bytes one peer may have queued or pending.
func (d *Door) budget() int64 { return (d.members.Load() + Spare) * cmp.Or(d.Bytes, PlaceBytes) }

// Leave records that one connection of the peer is closed.
func (p *Peer) Leave() {
	p.door.mu.Lock()
	defer p.door.mu.Unlock()
	if p.connections--; p.connections == 0 {
		delete(p.door.peers, p.name)
	}
}

// peerName returns the name of the peer that the connection belongs to.
func peerName(c transport.Conn) string {
	at := c.Peer()
	if host, _, err := net.SplitHostPort(at); err == nil {
		at = host
	}
	if ip, err := netip.ParseAddr(at); err == nil && ip.Is6() && !ip.Is4In6() {
		if p, err := ip.WithZone("").Prefix(machinePrefix); err == nil {
			at = p.String()
		}
	}
	if who := c.Who(); who.Role != "" {
		return who.String() + " at " + at
	}
	return at
}

// Package admission authenticates incoming connections and limits how many one peer may open. It performs the handshake
// ([Controller]) and bounds each peer's connections and the bytes queued on all of them together. Which role may send
// which kind of message is in package wire.
//
//	hello, peer, err := c.Admit(conn)
//	if err != nil {
//		return // already logged and reported to the peer
//	}
//	defer peer.Release()
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
	MinConns = 256
	PerPlace = 4
	// MemberBytes is the limit of one connection. A peer may leave that many bytes unread, and have that many pending,
	// for each slot and server of the job, because one machine may run all of them. Spare adds room for connections
	// that broke but were not noticed yet, and for observers, which have no slot.
	MemberBytes  = transport.DefaultMaxQueued
	SpareMembers = 4
	// machinePrefix is the number of leading bits of an IPv6 address that identify a machine.
	machinePrefix = 64
)

// Controller admits connections to this process. It is safe for concurrent use.
type Controller struct {
	Keys wire.Keys // the keys that a peer must present
	Log  *slog.Logger
	// Probed reports whether connections that close without a handshake are normal, because other processes probe
	// whether this one is reachable. They are then logged at debug level.
	Probed      bool
	MemberBytes int64 // per slot or server; 0: MemberBytes

	members atomic.Int64
	refused atomic.Int64

	connectionsOnce sync.Once // sets connections
	connections     *slog.Logger

	mu    sync.Mutex       // guards peers
	peers map[string]*Peer // connected peers, by name
}

// Peer is a remote party with open connections to this process.
type Peer struct {
	// Queued counts the bytes queued on the peer's connections; Admit maintains it. Pending counts the bytes of the
	// peer's pending requests; the request handlers maintain it.
	Queued, Pending *transport.Budget

	controller  *Controller
	name        string
	connections int // guarded by Controller.mu
}

// SetMembers sets the size of the job, from which the limits follow: its slots plus its servers or shards.
func (d *Controller) SetMembers(places int) { d.members.Store(int64(places)) }

// Refused returns the number of connections rejected because their peer had reached its limit.
func (d *Controller) Refused() int64 { return d.refused.Load() }

// Connections returns the logger for messages about single connections. Peers can trigger these as often as they like,
// so the logger samples them and counts the rest if its handler supports that (see httpdebug.NewLog).
func (d *Controller) Connections() *slog.Logger {
	d.connectionsOnce.Do(func() {
		d.connections = d.Log
		if h, ok := d.Log.Handler().(interface{ RateLimited() slog.Handler }); ok {
			d.connections = slog.New(h.RateLimited())
		}
	})
	return d.connections
}

// Admit performs the handshake of an accepted connection. On success, the caller must call peer.Release when the
// connection is closed. On failure, the peer has been sent the reason.
func (d *Controller) Admit(c transport.Conn) (hello wire.Hello, peer *Peer, err error) {
	if hello, err = transport.ReceiveHello(c, handshakeTimeout, d.Keys); err != nil {
		say := d.Connections().Warn
		if d.Probed && errors.Is(err, io.EOF) {
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
	c.Charge(peer.Queued)
	return hello, peer, nil
}

func (d *Controller) enter(who string) (*Peer, error) {
	most := MinConns + PerPlace*int(d.members.Load())
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.peers[who]
	switch {
	case p == nil:
		p = &Peer{
			Queued: transport.NewBudget(d.budget), Pending: transport.NewBudget(d.budget), controller: d,
			name: who,
		}
		if d.peers == nil {
			d.peers = map[string]*Peer{}
		}
		d.peers[who] = p
	case p.connections >= most:
		return nil, fmt.Errorf("%s already has %d connections to this process, which is the limit per peer; close "+
			"some of them", who, most)
	}
	p.connections++
	return p, nil
}

// budget returns how many bytes one peer may have queued or pending.
func (d *Controller) budget() int64 {
	return (d.members.Load() + SpareMembers) * cmp.Or(d.MemberBytes, MemberBytes)
}

// Release records that one connection of the peer is closed.
func (p *Peer) Release() {
	p.controller.mu.Lock()
	defer p.controller.mu.Unlock()
	if p.connections--; p.connections == 0 {
		delete(p.controller.peers, p.name)
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
	if who := c.PeerIdentity(); who.Role != "" {
		return who.String() + " at " + at
	}
	return at
}

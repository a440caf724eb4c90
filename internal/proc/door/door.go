// Package door lets in who connects to a process and says who it is, and bounds how many connections one peer has:
// whoever has keys of the job is let in, and is not to take all there is of files and memory.
//
//	hello, leave, err := d.Enter(conn)
//	if err != nil {
//		return // the peer and the log know why
//	}
//	defer leave()
//
// A peer is who shows one certificate from one machine: all workers of a job may have the same certificate, so who has
// stolen it takes nothing from those on other machines. Where nobody shows one it is a machine, and over a Unix socket
// a process.
package door

import (
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
	// aMachine is how much of an address is a machine's where that has many.
	aMachine = 64
)

// Door is where others come in. It is safe for concurrent use.
type Door struct {
	Keys wire.Keys // what who comes must show
	Log  *slog.Logger
	// Visited says that it is usual to come and go without a word: so others look whether the process can be reached.
	Visited bool

	places  atomic.Int64
	refused atomic.Int64

	mu     sync.Mutex     // guards what follows
	inside map[string]int // connections, by peer
}

// Expect says how many places the job has.
func (d *Door) Expect(places int) { d.places.Store(int64(places)) }

// Refused is how many connections were refused because their peer had as many as one may have.
func (d *Door) Refused() int64 { return d.refused.Load() }

// Enter waits for the greeting of a connection that was accepted. Who is let in calls leave when the connection has
// ended. Who is not has been told why.
func (d *Door) Enter(c transport.Conn) (hello wire.Hello, leave func(), err error) {
	if hello, err = transport.Greet(c, patience, d.Keys); err != nil {
		say := d.Log.Warn
		if d.Visited && errors.Is(err, io.EOF) {
			say = d.Log.Debug
		}
		say("closed a connection that did not say who it is", "peer", c.Peer(), "err", err)
		return hello, nil, err
	}
	who := peerOf(c)
	if err = d.enter(who); err != nil {
		d.refused.Add(1)
		d.Log.Warn("refused a connection", "peer", c.Peer(), "peer_role", hello.Role, "reason", err)
		_ = transport.Refuse(c, wire.Refusal{Again: true, Reason: err.Error()}) // it is being closed anyway
		return hello, nil, err
	}
	return hello, func() { d.leave(who) }, nil
}

func (d *Door) enter(who string) error {
	most := Least + PerPlace*int(d.places.Load())
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.inside[who] >= most {
		return fmt.Errorf("%s has %d connections to this process already, and one peer may have no more; end some of "+
			"them", who, most)
	}
	if d.inside == nil {
		d.inside = map[string]int{}
	}
	d.inside[who]++
	return nil
}

func (d *Door) leave(who string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.inside[who]--; d.inside[who] == 0 {
		delete(d.inside, who)
	}
}

// peerOf is whom a connection counts for.
func peerOf(c transport.Conn) string {
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

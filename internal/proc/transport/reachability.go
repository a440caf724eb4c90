package transport

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// [Reachability] finds servers that a process cannot reach although the coordinator can reach both. Neither of them is
// silent for the coordinator, so the process reports such servers in its status.
//
// The process notes each server from which it receives frames. It dials a server that has been silent for a while. A
// connection shows that both directions work, however busy the server is. A server that cannot be dialled is
// unreachable until the process receives a frame from it or a dial succeeds.
const (
	// reachabilityInterval is the interval at which Reachability checks its servers.
	reachabilityInterval = time.Second
	// silentChecks is the number of consecutive checks without a received frame after which a server is dialled.
	silentChecks = 2
	// maxReachabilityDials is the maximum number of concurrent dials, so that processes of a large, waiting job do not
	// dial each other all the time.
	maxReachabilityDials = 4
	// callTimeout is the time limit of a dial.
	callTimeout = 2 * time.Second
	// keptChecks is the number of checks for which an unreachable server without users is still dialled. The
	// coordinator does not use it in the meantime.
	keptChecks = int(10 * time.Minute / reachabilityInterval)
)

// Reachability monitors servers by their addresses.
type Reachability struct {
	dial func(ctx context.Context, addr string) error // connects and closes the connection

	under     sync.WaitGroup // dials in progress
	mu        sync.Mutex     // guards the fields below
	peers     map[string]*PeerMonitor
	checkedAt time.Time // time of the last check
	checks    int
	dialing   int // number of dials in progress
}

// NewReachability returns a Reachability for servers in a network.
func NewReachability(network Network) *Reachability {
	return &Reachability{dial: func(ctx context.Context, addr string) error {
		c, err := network.Dial(ctx, addr)
		if err == nil {
			err = c.Close()
		}
		return err
	}}
}

// Run monitors the servers until ctx ends.
func (w *Reachability) Run(ctx context.Context) {
	tick := time.NewTicker(reachabilityInterval)
	defer tick.Stop()
	defer w.under.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			w.check(ctx, now)
		}
	}
}

// PeerMonitor monitors one server.
type PeerMonitor struct {
	received atomic.Bool // a frame was received since the last check

	// Reachability.mu guards the fields below.
	addr          string
	users         int  // number of users of the server
	silent        int  // checks since the last frame
	dialedAtCheck int  // the check at which it was last dialled
	unreachable   bool // the last dial failed
	dialing       bool
	unusedChecks  int // checks since the last user left
}

// Received records that a frame was received from the server.
func (e *PeerMonitor) Received() {
	if !e.received.Load() { // usually set already: reading avoids contention for the cache line
		e.received.Store(true)
	}
}

// Watch starts monitoring a server. Each Watch must be followed by an Unwatch.
func (w *Reachability) Watch(addr string) *PeerMonitor {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.peers[addr]
	if e == nil {
		if w.peers == nil {
			w.peers = map[string]*PeerMonitor{}
		}
		e = &PeerMonitor{addr: addr}
		w.peers[addr] = e
	}
	e.users, e.unusedChecks = e.users+1, 0
	return e
}

// Unwatch ends one use of a server. An unreachable server is monitored for up to ten more minutes: the coordinator may
// have stopped using it for that reason and must be notified when it is reachable again.
func (w *Reachability) Unwatch(e *PeerMonitor) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.users--; e.users == 0 && !e.unreachable {
		delete(w.peers, e.addr)
	}
}

// check examines every server once: it resets those that have sent a frame, and dials those that have been silent for
// silentChecks checks. At most maxReachabilityDials dials are in progress, and the server that was dialled least
// recently comes first. If the check itself is late, silence does not count, because this process was not running.
func (w *Reachability) check(ctx context.Context, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	late := !w.checkedAt.IsZero() && now.Sub(w.checkedAt) > 2*reachabilityInterval
	w.checkedAt = now
	w.checks++
	var due []*PeerMonitor
	for addr, e := range w.peers {
		if e.users == 0 {
			e.unusedChecks++
		}
		switch {
		case e.received.Swap(false):
			e.silent, e.unreachable = 0, false
		case !late:
			e.silent++
		}
		if e.users == 0 && (!e.unreachable || e.unusedChecks > keptChecks) {
			delete(w.peers, addr)
		} else if e.silent >= silentChecks && !e.dialing {
			due = append(due, e)
		}
	}
	slices.SortFunc(due, func(a, b *PeerMonitor) int {
		return cmp.Or(a.dialedAtCheck-b.dialedAtCheck, cmp.Compare(a.addr, b.addr)) // least recently dialled first
	})
	for _, e := range due[:min(len(due), maxReachabilityDials-w.dialing)] {
		e.dialing, e.dialedAtCheck = true, w.checks
		w.dialing++
		w.under.Go(func() { w.dialPeer(ctx, e) })
	}
}

// dialPeer dials a server.
func (w *Reachability) dialPeer(ctx context.Context, e *PeerMonitor) {
	inTime, cancel := context.WithTimeout(ctx, callTimeout)
	err := w.dial(inTime, e.addr)
	cancel()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dialing--
	e.dialing = false
	if ctx.Err() != nil {
		return
	}
	if e.unreachable = err != nil; !e.unreachable {
		e.silent = 0
	}
}

// Unreachable returns the sorted addresses of the unreachable servers.
func (w *Reachability) Unreachable() (addrs []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for addr, e := range w.peers {
		if e.unreachable {
			addrs = append(addrs, addr)
		}
	}
	slices.Sort(addrs)
	return addrs
}

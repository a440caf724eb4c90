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
	// every is the interval at which Reachability checks its servers.
	every = time.Second
	// silentLooks is the number of silent checks after which a server is dialled.
	silentLooks = 2
	// maxCalls is the maximum number of concurrent dials, so that processes of a large, waiting job do not dial each
	// other all the time.
	maxCalls = 4
	// callTimeout is the time limit of a dial.
	callTimeout = 2 * time.Second
	// keptLooks is the number of checks for which an unreachable server without users is still dialled. The coordinator
	// does not use it in the meantime.
	keptLooks = int(10 * time.Minute / every)
)

// Reachability monitors servers by their addresses.
type Reachability struct {
	dial func(ctx context.Context, addr string) error // connects and closes the connection

	under  sync.WaitGroup // dials in progress
	mu     sync.Mutex     // guards the fields below
	peers  map[string]*PeerReach
	looked time.Time // time of the last check
	looks  int
	calls  int // number of dials in progress
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
	tick := time.NewTicker(every)
	defer tick.Stop()
	defer w.under.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			w.look(ctx, now)
		}
	}
}

// PeerReach monitors one server.
type PeerReach struct {
	heard atomic.Bool // a frame was received since the last check

	// Reachability.mu guards the fields below.
	addr    string
	users   int  // number of users of the server
	silent  int  // checks since the last frame
	turn    int  // the check at which it was last dialled
	out     bool // the last dial failed
	calling bool
	kept    int // checks since the last user left
}

// Note records that a frame was received from the server.
func (e *PeerReach) Note() {
	if !e.heard.Load() { // usually set already: reading avoids contention for the cache line
		e.heard.Store(true)
	}
}

// Want starts monitoring a server. Each Want must be followed by a Leave.
func (w *Reachability) Want(addr string) *PeerReach {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.peers[addr]
	if e == nil {
		if w.peers == nil {
			w.peers = map[string]*PeerReach{}
		}
		e = &PeerReach{addr: addr}
		w.peers[addr] = e
	}
	e.users, e.kept = e.users+1, 0
	return e
}

// Leave ends one use of a server. An unreachable server is monitored for up to ten more minutes: the coordinator may
// have stopped using it for that reason and must be notified when it is reachable again.
func (w *Reachability) Leave(e *PeerReach) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.users--; e.users == 0 && !e.out {
		delete(w.peers, e.addr)
	}
}

// look performs a check and dials silent servers. A late check does not count silence, because this process was not
// running.
func (w *Reachability) look(ctx context.Context, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	late := !w.looked.IsZero() && now.Sub(w.looked) > 2*every
	w.looked = now
	w.looks++
	var due []*PeerReach
	for addr, e := range w.peers {
		if e.users == 0 {
			e.kept++
		}
		switch {
		case e.heard.Swap(false):
			e.silent, e.out = 0, false
		case !late:
			e.silent++
		}
		if e.users == 0 && (!e.out || e.kept > keptLooks) {
			delete(w.peers, addr)
		} else if e.silent >= silentLooks && !e.calling {
			due = append(due, e)
		}
	}
	slices.SortFunc(due, func(a, b *PeerReach) int {
		return cmp.Or(a.turn-b.turn, cmp.Compare(a.addr, b.addr)) // least recently dialled first
	})
	for _, e := range due[:min(len(due), maxCalls-w.calls)] {
		e.calling, e.turn = true, w.looks
		w.calls++
		w.under.Go(func() { w.call(ctx, e) })
	}
}

// call dials a server.
func (w *Reachability) call(ctx context.Context, e *PeerReach) {
	inTime, cancel := context.WithTimeout(ctx, callTimeout)
	err := w.dial(inTime, e.addr)
	cancel()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls--
	e.calling = false
	if ctx.Err() != nil {
		return
	}
	if e.out = err != nil; !e.out {
		e.silent = 0
	}
}

// Out returns the sorted addresses of the unreachable servers.
func (w *Reachability) Out() (addrs []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for addr, e := range w.peers {
		if e.out {
			addrs = append(addrs, addr)
		}
	}
	slices.Sort(addrs)
	return addrs
}

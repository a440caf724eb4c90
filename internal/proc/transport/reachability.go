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
// silent then, so the process reports the servers in its status.
//
// The process notes each server that it hears from. It dials a server that has been silent for a while: a connection
// shows that both directions work, however busy the server is. A server that cannot be dialled is out of reach until
// the process hears from it, or until it answers a call.
const (
	// every is how often Reachability looks who was heard.
	every = time.Second
	// silentLooks is after how many looks at which a server was not heard it is called.
	silentLooks = 2
	// mostCalls is how many servers are called at once, so that large jobs that wait do not call each other all the
	// time.
	mostCalls = 4
	// callTimeout is how long a server may take to answer a call.
	callTimeout = 2 * time.Second
	// keptLooks is for how many looks a server out of reach is called of which nothing is wanted any more. The
	// coordinator does without it meanwhile.
	keptLooks = int(10 * time.Minute / every)
)

// Reachability looks after servers, by their addresses.
type Reachability struct {
	dial func(ctx context.Context, addr string) error // connects, and ends the connection

	under  sync.WaitGroup // calls
	mu     sync.Mutex     // guards what follows
	ears   map[string]*PeerReach
	looked time.Time // at the last look
	looks  int
	calls  int // under way
}

// NewReachability returns a watch over servers of a network.
func NewReachability(network Network) *Reachability {
	return &Reachability{dial: func(ctx context.Context, addr string) error {
		c, err := network.Dial(ctx, addr)
		if err == nil {
			err = c.Close()
		}
		return err
	}}
}

// Run looks after the servers until ctx ends.
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

// PeerReach hears one server.
type PeerReach struct {
	heard atomic.Bool // since the last look

	// The Watch guards these.
	addr    string
	users   int  // who want something of the server
	silent  int  // looks since it was heard
	turn    int  // the look at which it was called last
	out     bool // the last call was in vain
	calling bool
	kept    int // looks since nobody wants anything of it
}

// Note notes that the server was heard.
func (e *PeerReach) Note() {
	if !e.heard.Load() { // it is so nearly always: the line of memory is not taken from others
		e.heard.Store(true)
	}
}

// Want begins to look after a server. Each Want is followed by a Leave.
func (w *Reachability) Want(addr string) *PeerReach {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.ears[addr]
	if e == nil {
		if w.ears == nil {
			w.ears = map[string]*PeerReach{}
		}
		e = &PeerReach{addr: addr}
		w.ears[addr] = e
	}
	e.users, e.kept = e.users+1, 0
	return e
}

// Leave says that nothing is wanted of a server any more. One that is out of reach is still looked after, for ten
// minutes at most: the coordinator may do without it for just that reason, and is to hear when that is over.
func (w *Reachability) Leave(e *PeerReach) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.users--; e.users == 0 && !e.out {
		delete(w.ears, e.addr)
	}
}

// look counts a look, and calls who has been silent. A look that comes late says nothing: this process did not run.
func (w *Reachability) look(ctx context.Context, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	late := !w.looked.IsZero() && now.Sub(w.looked) > 2*every
	w.looked = now
	w.looks++
	var due []*PeerReach
	for addr, e := range w.ears {
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
			delete(w.ears, addr)
		} else if e.silent >= silentLooks && !e.calling {
			due = append(due, e)
		}
	}
	slices.SortFunc(due, func(a, b *PeerReach) int {
		return cmp.Or(a.turn-b.turn, cmp.Compare(a.addr, b.addr)) // all come to their turn
	})
	for _, e := range due[:min(len(due), mostCalls-w.calls)] {
		e.calling, e.turn = true, w.looks
		w.calls++
		w.under.Go(func() { w.call(ctx, e) })
	}
}

// call calls a server.
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

// Out returns the addresses of the servers that are out of reach, in order.
func (w *Reachability) Out() (addrs []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for addr, e := range w.ears {
		if e.out {
			addrs = append(addrs, addr)
		}
	}
	slices.Sort(addrs)
	return addrs
}

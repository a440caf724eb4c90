package dashboard

import (
	"encoding/json"
	"sync"
	"time"
)

// maxClients limits how many clients receive the stream.
const maxClients = 64

// maxConnections limits how many connections are open. The server closes the oldest one for a new one, so there must be
// more than maxClients: a page can then load and act while that many watch.
const maxConnections = 2 * maxClients

// hub wakes the clients, and computes the job's state once for all of them: at most once per interval, and only if
// there are clients.
type hub struct {
	job      Job // nil: the run has ended
	interval time.Duration
	dirty    chan struct{}
	closed   chan struct{}

	mu      sync.Mutex // guards the fields below
	clients map[*client]struct{}
	state   []byte // as JSON; nil: none yet
	version int    // number of states so far
}

// client is a browser that receives the stream.
type client struct {
	woken chan struct{} // has one element if there may be news
}

func (h *hub) init(every time.Duration, job Job) {
	h.job, h.interval, h.clients = job, every, map[*client]struct{}{}
	h.dirty, h.closed = make(chan struct{}, 1), make(chan struct{})
}

// wake requests the next round.
func (h *hub) wake() { signal(h.dirty) }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (h *hub) close() { close(h.closed) }

// run wakes the clients until close.
func (h *hub) run() {
	for {
		select {
		case <-h.dirty:
			h.round()
		case <-h.closed:
			return
		}
		select {
		case <-time.After(h.interval):
		case <-h.closed:
			return
		}
	}
}

// round computes the state and wakes all clients.
func (h *hub) round() {
	if h.count() == 0 {
		return
	}
	var state []byte
	if h.job != nil {
		state, _ = json.Marshal(h.job.State()) // a summary without NaN can always be encoded
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if state != nil {
		h.state = state
		h.version++
	}
	for c := range h.clients {
		signal(c.woken)
	}
}

// join adds a client; it returns nil if there are too many.
func (h *hub) join() *client {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.clients) >= maxClients {
		return nil
	}
	c := &client{woken: make(chan struct{}, 1)}
	h.clients[c] = struct{}{}
	return c
}

func (h *hub) leave(c *client) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.clients, c)
}

// latest returns the newest state and its version.
func (h *hub) latest() (state []byte, version int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state, h.version
}

// count returns the number of clients.
func (h *hub) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.clients)
}

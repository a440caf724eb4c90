package transport

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	defaultMinLatency = 50 * time.Microsecond
	defaultMaxLatency = 500 * time.Microsecond
	// maxBacklog is how many connections wait for Accept before more are refused.
	maxBacklog = 4096
	// firstPort is below the ports that Listen picks and above those that are
	// named.
	firstPort = 1023
)

// errKilled is why a killed host's own connections and listeners are broken.
var errKilled = errors.New("this host was killed")

// errReset is why a connection broke that was lost to the network or whose peer
// was killed.
var errReset = errors.New("connection reset")

// MemoryOptions are what a Memory network is like. The zero value means the
// defaults.
type MemoryOptions struct {
	// MinLatency and MaxLatency bound the time a frame travels, drawn for each
	// frame; both 0: 50 µs to 500 µs. A frame never overtakes another of its
	// connection, and no two frames arrive at one instant (among the 2048
	// connections made last), so that which one comes first is the seed's.
	MinLatency, MaxLatency time.Duration
	// Breaks is the probability with which a frame breaks its connection instead
	// of arriving: this is how a reliable stream loses a frame.
	Breaks float64
	// MaxQueued bounds the bytes of a connection that were sent and not yet
	// received; 0: DefaultMaxQueued.
	MaxQueued int
}

// Memory is a network of named hosts in this process, for tests and simulation.
// It waits only on channels, timers and sync.Cond: made inside a testing/synctest
// bubble, it runs in virtual time. What is drawn is a function of the seed, the
// two addresses, how often the one has dialled the other, and how many frames
// went before: not of how goroutines are scheduled. Safe for concurrent use.
type Memory struct {
	options MemoryOptions
	seed    uint64

	mu        sync.Mutex // guards all below, and all hosts, listeners, links and pipes
	hosts     map[string]*memHost
	listeners map[string]*memListener
	links     []*link              // in order of establishment
	cuts      map[direction]bool   // directions in which nothing gets through
	dials     map[direction]uint64 // from a host to an address: how often
	ports     map[string]int       // the last port picked, by host: never picked again
	pipes     int64                // how many there were
	changed   chan struct{}        // closed and replaced when a hanging Dial has to look again
}

type direction struct{ from, to string }

// NewMemory makes a network without hosts.
func NewMemory(seed uint64, options MemoryOptions) *Memory {
	if options.MinLatency == 0 && options.MaxLatency == 0 {
		options.MinLatency, options.MaxLatency = defaultMinLatency, defaultMaxLatency
	}
	options.MaxLatency = max(options.MaxLatency, options.MinLatency)
	return &Memory{
		options:   options,
		seed:      seed,
		hosts:     map[string]*memHost{},
		listeners: map[string]*memListener{},
		cuts:      map[direction]bool{},
		dials:     map[direction]uint64{},
		ports:     map[string]int{},
		changed:   make(chan struct{}),
	}
}

// Host returns the network as the named host sees it, from now until the host
// is killed. Its addresses are the name, a slash and a port: "server:0/1". Port
// 0, or none, picks one.
func (m *Memory) Host(name string) Network {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.hosts[name]
	if h == nil {
		h = &memHost{mem: m, name: name}
		m.hosts[name] = h
	}
	return h
}

// Kill ends the present life of a host: all its connections and listeners break
// at once, and Networks that Host returned for it before are dead for good.
// Frames in flight may arrive or not; a peer notices a latency later.
func (m *Memory) Kill(host string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.hosts[host]
	if h == nil {
		return
	}
	h.dead = true
	delete(m.hosts, host)
	for _, l := range m.listeners {
		if l.host == h {
			m.closeListener(l, broken(l.addr, errKilled))
		}
	}
	for _, l := range slices.Clone(m.links) {
		for _, end := range l.ends {
			if end.host == h {
				end.breakOwn(broken(end.peer, errKilled))
				l.lose()
			}
		}
	}
	m.lookAgain()
}

// Cut lets nothing through from host a to host b, and, unless oneWay, from b to
// a. What is sent meanwhile, and what is in flight, is held back. Dials hang.
func (m *Memory) Cut(a, b string, oneWay bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cut(direction{a, b})
	if !oneWay {
		m.cut(direction{b, a})
	}
}

func (m *Memory) cut(d direction) {
	if m.cuts[d] {
		return
	}
	m.cuts[d] = true
	for _, l := range m.links {
		for _, p := range l.pipes {
			if p.way == d {
				p.cut, p.cutAt = true, time.Now()
			}
		}
	}
}

// Heal ends the cuts between two hosts, in both directions. A connection on
// which something was held back either delivers it now or breaks, as the seed
// has it.
func (m *Memory) Heal(a, b string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.cuts, direction{a, b})
	delete(m.cuts, direction{b, a})
	for _, l := range slices.Clone(m.links) {
		if w := l.pipes[0].way; w == (direction{a, b}) || w == (direction{b, a}) {
			l.heal()
		}
	}
	m.lookAgain()
}

// lookAgain wakes the hanging Dials; m.mu is held.
func (m *Memory) lookAgain() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// latency draws how long something travels.
func (m *Memory) latency(rng *rand.Rand) time.Duration {
	o := m.options
	return o.MinLatency + time.Duration(rng.Int64N(int64(o.MaxLatency-o.MinLatency)+1))
}

// closeListener ends a listener and the connections it has not accepted; m.mu
// is held.
func (m *Memory) closeListener(l *memListener, err error) {
	if l.err != nil {
		return
	}
	l.err = err
	if m.listeners[l.addr] == l {
		delete(m.listeners, l.addr)
	}
	for _, c := range l.backlog {
		c.breakOwn(err)
		c.link.lose()
	}
	l.backlog = nil
	l.change.Broadcast()
}

// memHost is one life of a host.
type memHost struct {
	mem  *Memory
	name string
	dead bool // guarded by mem.mu
}

// Listen implements Network.
func (h *memHost) Listen(addr string) (Listener, error) {
	m := h.mem
	m.mu.Lock()
	defer m.mu.Unlock()
	if h.dead {
		return nil, fmt.Errorf("transport: listen on %s: %w", addr, errKilled)
	}
	name, port, _ := strings.Cut(addr, "/")
	if name != h.name {
		return nil, fmt.Errorf("transport: listen on %s: host %s has only addresses %s/PORT", addr, h.name, h.name)
	}
	if port == "" || port == "0" {
		m.ports[name]++
		addr = name + "/" + strconv.Itoa(firstPort+m.ports[name])
	}
	if m.listeners[addr] != nil {
		return nil, fmt.Errorf("transport: listen on %s: %w", addr, syscall.EADDRINUSE)
	}
	l := &memListener{host: h, addr: addr, change: sync.Cond{L: &m.mu}}
	m.listeners[addr] = l
	return l, nil
}

// Dial implements Network.
func (h *memHost) Dial(ctx context.Context, addr string) (Conn, error) {
	m := h.mem
	m.mu.Lock()
	key := direction{h.name, addr}
	m.dials[key]++
	hash := fnv.New64a()
	fmt.Fprintf(hash, "%s\x00%s\x00%d", h.name, addr, m.dials[key]) // a hash cannot fail
	m.mu.Unlock()
	rng := rand.New(rand.NewPCG(m.seed, hash.Sum64()))

	to, _, _ := strings.Cut(addr, "/")
	for {
		timer := time.NewTimer(m.latency(rng))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("transport: dial %s: %w", addr, context.Cause(ctx))
		}
		m.mu.Lock()
		if h.dead || !m.cuts[direction{h.name, to}] && !m.cuts[direction{to, h.name}] {
			c, err := h.connect(addr, rng)
			m.mu.Unlock()
			if err != nil {
				return nil, fmt.Errorf("transport: dial %s: %w", addr, err)
			}
			return c, nil
		}
		changed := m.changed
		m.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("transport: dial %s: %w", addr, context.Cause(ctx))
		}
	}
}

// connect makes a connection to the listener at addr; h.mem.mu is held.
func (h *memHost) connect(addr string, rng *rand.Rand) (*memConn, error) {
	l := h.mem.listeners[addr]
	switch {
	case h.dead:
		return nil, errKilled
	case l == nil || len(l.backlog) == maxBacklog:
		return nil, syscall.ECONNREFUSED
	}
	near, far := newLink(h, l, rng)
	l.backlog = append(l.backlog, far)
	l.change.Signal()
	return near, nil
}

// memListener is a listener of a memHost. All but host and addr is guarded by
// the network's lock.
type memListener struct {
	host    *memHost
	addr    string
	change  sync.Cond // there is a connection to accept, or err is set
	backlog []*memConn
	err     error
}

// Accept implements Listener.
func (l *memListener) Accept() (Conn, error) {
	l.host.mem.mu.Lock()
	defer l.host.mem.mu.Unlock()
	for len(l.backlog) == 0 && l.err == nil {
		l.change.Wait()
	}
	if l.err != nil {
		return nil, l.err
	}
	c := l.backlog[0]
	l.backlog = slices.Delete(l.backlog, 0, 1)
	return c, nil
}

// Addr implements Listener.
func (l *memListener) Addr() string { return l.addr }

// Close implements Listener.
func (l *memListener) Close() error {
	l.host.mem.mu.Lock()
	defer l.host.mem.mu.Unlock()
	l.host.mem.closeListener(l, ErrClosed)
	return nil
}

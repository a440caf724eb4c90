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
	// maxBacklog is how many connections wait for Accept before more are rejected.
	maxBacklog = 4096
	// firstPort is below the ports that Listen picks and above those that users name.
	firstPort = 1023
)

// errKilled is the reason on the side of a killed host.
var errKilled = errors.New("this host was killed")

// errReset is the reason when the network lost a connection or the peer was killed.
var errReset = errors.New("connection reset")

// MemoryOptions configure a Memory network. The zero value selects the defaults.
type MemoryOptions struct {
	// MinLatency and MaxLatency bound the latency, which is drawn for each frame; if both are 0: 50 µs to 500 µs.
	// Frames of a connection stay in order, and no two frames arrive at the same instant (among the 2048 newest
	// connections), so the order of arrivals depends only on the seed.
	MinLatency, MaxLatency time.Duration
	// Breaks is the probability that a frame breaks its connection instead of arriving, which is how a reliable stream
	// loses a frame.
	Breaks float64
	// MaxQueued limits the bytes of a connection sent and not yet received; 0: DefaultMaxQueued.
	MaxQueued int
}

// Memory is a network of named hosts in this process, for tests and simulation. It waits only on channels, timers and
// sync.Cond, so inside a testing/synctest bubble it runs in virtual time. Its draws depend on the seed, the two
// addresses, the number of earlier dials between them and the number of earlier frames, but not on goroutine
// scheduling. It is safe for concurrent use.
type Memory struct {
	options MemoryOptions
	seed    uint64

	mu        sync.Mutex // guards the fields below and all hosts, listeners, links and pipes
	hosts     map[string]*memHost
	listeners map[string]*memListener
	links     []*memLink           // in order of establishment
	cuts      map[direction]bool   // blocked directions
	dials     map[direction]uint64 // number of dials from a host to an address
	ports     map[string]int       // the last port picked, by host; ports are not reused
	pipes     int64                // number of pipes made
	changed   chan struct{}        // closed and replaced when blocked Dials must check again
}

type direction struct{ from, to string }

// NewMemory returns a network without hosts.
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

// Host returns the network as seen by a host until that host is killed. Addresses have the form HOST/PORT, for example
// "server:0/1". Port 0 or no port selects a free one.
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

// Kill ends a host's current instance. All its connections and listeners break immediately, and Networks that Host has
// returned for it stop working permanently. Frames in flight may or may not arrive, and a peer notices after the
// latency.
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
			m.closeListenerLocked(l, brokenError(l.addr, errKilled))
		}
	}
	for _, l := range slices.Clone(m.links) {
		for _, end := range l.ends {
			if end.host == h {
				end.failLocked(brokenError(end.peer, errKilled))
				l.fail()
			}
		}
	}
	m.wakeDialsLocked()
}

// Cut blocks frames from host a to host b and, unless oneWay, from b to a. Frames sent meanwhile or in flight are held
// back, and dials block.
func (m *Memory) Cut(a, b string, oneWay bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cutLocked(direction{a, b})
	if !oneWay {
		m.cutLocked(direction{b, a})
	}
}

func (m *Memory) cutLocked(d direction) {
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

// Heal ends the cuts between two hosts, in both directions. A connection with held frames either delivers them now or
// breaks, depending on the seed.
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
	m.wakeDialsLocked()
}

// wakeDialsLocked wakes blocked Dials. The caller must hold m.mu.
func (m *Memory) wakeDialsLocked() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// latency draws the latency of a frame.
func (m *Memory) latency(rng *rand.Rand) time.Duration {
	o := m.options
	return o.MinLatency + time.Duration(rng.Int64N(int64(o.MaxLatency-o.MinLatency)+1))
}

// closeListenerLocked ends a listener and its pending connections. The caller must hold m.mu.
func (m *Memory) closeListenerLocked(l *memListener, err error) {
	if l.err != nil {
		return
	}
	l.err = err
	if m.listeners[l.addr] == l {
		delete(m.listeners, l.addr)
	}
	for _, c := range l.backlog {
		c.failLocked(err)
		c.link.fail()
	}
	l.backlog = nil
	l.change.Broadcast()
}

// memHost is one instance of a host.
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
	fmt.Fprintf(hash, "%s\x00%s\x00%d", h.name, addr, m.dials[key]) // writing to a hash cannot fail
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
			c, err := h.connectLocked(addr, rng)
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

// connectLocked connects to the listener at addr. The caller must hold h.mem.mu.
func (h *memHost) connectLocked(addr string, rng *rand.Rand) (*memConn, error) {
	l := h.mem.listeners[addr]
	switch {
	case h.dead:
		return nil, errKilled
	case l == nil || len(l.backlog) == maxBacklog:
		return nil, syscall.ECONNREFUSED
	}
	near, far := newMemLinkLocked(h, l, rng)
	l.backlog = append(l.backlog, far)
	l.change.Signal()
	return near, nil
}

// memListener is a listener of a memHost. The network's lock guards all fields except host and addr.
type memListener struct {
	host    *memHost
	addr    string
	change  sync.Cond // signals a pending connection, or that err is set
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
	l.host.mem.closeListenerLocked(l, ErrClosed)
	return nil
}

package testcluster

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// MaxLANHosts is the max number of hosts.
const MaxLANHosts = 200

// mtu is the largest packet; maxFrameBytes is the largest frame including the header.
const (
	mtu             = 1500
	maxFrameBytes   = mtu + 18
	maxQueuedFrames = 4096 // frames in one direction; a full queue drops frames, as a switch does
)

// LANLink describes how frames from one host to another are treated.
type LANLink struct {
	Delay       time.Duration // of each frame
	Jitter      time.Duration // max additional delay, uniformly distributed
	LossRate    float64       // fraction of frames lost
	ReorderRate float64       // fraction of frames that overtake earlier ones
	Cut         bool          // all frames are lost
}

// LAN simulates several hosts on one machine. Each host is a network namespace with one card, and a switch in this
// process forwards the frames. The switch can delay, lose, reorder or block frames in each direction separately, so
// that any partition is possible. A host whose cable is pulled disappears silently.
//
// It requires root, network namespaces and /dev/net/tun, but no bridge, netem or iptables.
//
//	l, err := testcluster.NewLAN(5, seed)      // hosts 0 to 4, at 10.77.0.1 to 10.77.0.5; see also NewLANAt
//	err = l.Host(0).Start(cmd)         // a process there; it reaches other hosts only through the switch
//	l.Cut(0, 1)                        // host 1 no longer receives frames from host 0; the reverse works
//	err = l.Close()
//
// A LAN is safe for concurrent use.
type LAN struct {
	hosts []*LANHost
	pumps sync.WaitGroup
	done  chan struct{}
	once  sync.Once

	mu    sync.Mutex  // guards the fields below
	links [][]LANLink // indexed by sender, then receiver
	rng   *rand.Rand
}

// LANHost is a host of a LAN.
type LANHost struct {
	index int
	addr  netip.Addr
	calls chan func()
	card  *os.File
	in    []chan lanPacket // frames from each other host
}

// lanPacket is a frame and its delivery time.
type lanPacket struct {
	at    time.Time
	bytes []byte
}

// NewLAN creates n connected hosts. The error wraps ErrNoLAN if this machine or user cannot create them.
func NewLAN(n int, seed uint64) (*LAN, error) { return NewLANAt(LANAddr(0), n, seed) }

// NewLANAt is like NewLAN, with a given address for the first host. The others have the following addresses in the same
// /24 network.
func NewLANAt(first netip.Addr, n int, seed uint64) (*LAN, error) {
	if n < 1 || n > MaxLANHosts {
		return nil, fmt.Errorf("lan: invalid number of hosts %d: want 1 to %d", n, MaxLANHosts)
	}
	if !first.Is4() || int(first.As4()[3])+n > 255 {
		return nil, fmt.Errorf("lan: no network has %v and %d addresses after it", first, n-1)
	}
	l := &LAN{done: make(chan struct{}), rng: rand.New(rand.NewPCG(seed, 0)), links: make([][]LANLink, n)}
	for i, addr := 0, first; i < n; i, addr = i+1, addr.Next() {
		l.links[i] = make([]LANLink, n)
		h, err := newLANHost(i, n, addr)
		if err != nil {
			return nil, errors.Join(err, l.Close())
		}
		l.hosts = append(l.hosts, h)
	}
	for _, h := range l.hosts {
		l.pumps.Go(func() { l.forward(h) })
		for from := range h.in {
			l.pumps.Go(func() { l.deliver(h, h.in[from]) })
		}
	}
	return l, nil
}

// ErrNoLAN reports that this machine or user cannot create network namespaces.
var ErrNoLAN = errors.New("lan: cannot create network namespaces: root and /dev/net/tun are required")

// Host returns the i-th host.
func (l *LAN) Host(i int) *LANHost { return l.hosts[i] }

// Close removes the hosts. Processes that still run there lose their network.
func (l *LAN) Close() (err error) {
	l.once.Do(func() {
		close(l.done)
		for _, h := range l.hosts {
			err = errors.Join(err, h.card.Close())
			close(h.calls)
		}
		l.pumps.Wait()
	})
	return err
}

// Set sets the treatment of all later frames from one host to another.
func (l *LAN) Set(from, to int, w LANLink) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.links[from][to] = w
}

// SetAll calls Set for both directions between all hosts.
func (l *LAN) SetAll(w LANLink) {
	for from := range l.hosts {
		for to := range l.hosts {
			l.Set(from, to, w)
		}
	}
}

// change modifies the link of one direction.
func (l *LAN) change(from, to int, f func(*LANLink)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(&l.links[from][to])
}

// Cut blocks frames from one host to another. The other direction stays open.
func (l *LAN) Cut(from, to int) { l.change(from, to, func(w *LANLink) { w.Cut = true }) }

// Disconnect disconnects a host.
func (l *LAN) Disconnect(host int) { l.setConnected(host, true) }

// Reconnect reconnects a host and restores all its links.
func (l *LAN) Reconnect(host int) { l.setConnected(host, false) }

func (l *LAN) setConnected(host int, cut bool) {
	for other := range l.hosts {
		l.change(host, other, func(w *LANLink) { w.Cut = cut })
		l.change(other, host, func(w *LANLink) { w.Cut = cut })
	}
}

// Partition blocks all frames between hosts of different groups. A host without a group is cut off from all.
func (l *LAN) Partition(groups ...[]int) {
	group := make(map[int]int)
	for g, members := range groups {
		for _, m := range members {
			group[m] = g + 1
		}
	}
	for from := range l.hosts {
		for to := range l.hosts {
			apart := group[from] == 0 || group[from] != group[to]
			l.change(from, to, func(w *LANLink) { w.Cut = apart && from != to })
		}
	}
}

// Heal restores all links.
func (l *LAN) Heal() {
	for i := range l.hosts {
		l.Reconnect(i)
	}
}

// forward forwards the frames that a host's card sends.
func (l *LAN) forward(h *LANHost) {
	b := make([]byte, maxFrameBytes)
	for {
		n, err := h.card.Read(b)
		if err != nil {
			return // the card is closed
		}
		if n < 14 {
			continue
		}
		for to, other := range l.hosts {
			all := b[0]&1 == 1 // a broadcast, such as an ARP request
			if other == h || !all && [6]byte(b[:6]) != cardOf(to) {
				continue
			}
			at, hurry, lost := l.schedule(h.index, to)
			if lost {
				continue
			}
			p := lanPacket{at, append([]byte(nil), b[:n]...)}
			if hurry {
				_, _ = other.card.Write(p.bytes) // a closed card drops frames
				continue
			}
			select {
			case other.in[h.index] <- p:
			default: // the queue is full
			}
		}
	}
}

// schedule draws when a frame arrives, whether it overtakes earlier ones, and whether it is lost.
func (l *LAN) schedule(from, to int) (at time.Time, hurry, lost bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := &l.links[from][to]
	if w.Cut || w.LossRate > 0 && l.rng.Float64() < w.LossRate {
		return at, false, true
	}
	d := w.Delay
	if w.Jitter > 0 {
		d += time.Duration(l.rng.Int64N(int64(w.Jitter)))
	}
	return time.Now().Add(d), w.ReorderRate > 0 && l.rng.Float64() < w.ReorderRate, false
}

// deliver delivers the frames of one direction to a host, each at its delivery time.
func (l *LAN) deliver(h *LANHost, in chan lanPacket) {
	for {
		select {
		case <-l.done:
			return
		case p := <-in:
			if wait := time.Until(p.at); wait > 0 {
				select {
				case <-l.done:
					return
				case <-time.After(wait):
				}
			}
			_, _ = h.card.Write(p.bytes) // a closed card drops frames
		}
	}
}

// cardOf returns the MAC address of a host's card.
func cardOf(i int) [6]byte { return [6]byte{0x02, 0x70, 0x64, 0x72, 0x00, byte(i + 1)} }

// LANAddr returns the address of the i-th host of NewLAN.
func LANAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 77, 0, byte(i + 1)}) }

// Addr returns the host's address.
func (h *LANHost) Addr() netip.Addr { return h.addr }

// newLANHost creates a namespace with its card. A thread inside it executes the functions passed to Do.
func newLANHost(i, n int, addr netip.Addr) (*LANHost, error) {
	h := &LANHost{index: i, addr: addr, calls: make(chan func())}
	for range n {
		h.in = append(h.in, make(chan lanPacket, maxQueuedFrames))
	}
	ready := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err != nil {
			err = fmt.Errorf("%w (%w)", ErrNoLAN, err)
		} else {
			h.card, err = openCard(i, addr)
		}
		ready <- err
		if err != nil {
			return
		}
		for f := range h.calls {
			f()
		}
	}()
	if err := <-ready; err != nil {
		return nil, err
	}
	return h, nil
}

// openCard creates a host's card in the namespace of this thread and enables it.
func openCard(i int, addr netip.Addr) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%w (%w)", ErrNoLAN, err)
	}
	card, err := unix.NewIfreq("eth0")
	if err == nil {
		card.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, card)
	}
	if err == nil {
		err = configure(i, addr)
	}
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("lan: a card: %w", err)
	}
	return os.NewFile(uintptr(fd), "card"), nil
}

// configure sets the card's addresses and enables it and the loopback.
func configure(i int, at netip.Addr) error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	set := func(name string, request uint, value func(*unix.Ifreq) error) error {
		r, err := unix.NewIfreq(name)
		if err == nil {
			err = value(r)
		}
		if err == nil {
			err = unix.IoctlIfreq(s, request, r)
		}
		return err
	}
	up := func(r *unix.Ifreq) error { r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING); return nil }
	addr, mask := at.As4(), [4]byte{255, 255, 255, 0}
	return errors.Join(
		setCard(s, i),
		set("eth0", unix.SIOCSIFADDR, func(r *unix.Ifreq) error { return r.SetInet4Addr(addr[:]) }),
		set("eth0", unix.SIOCSIFNETMASK, func(r *unix.Ifreq) error { return r.SetInet4Addr(mask[:]) }),
		set("eth0", unix.SIOCSIFFLAGS, up),
		set("lo", unix.SIOCSIFFLAGS, up),
	)
}

// Do runs f on a thread of the host, so that sockets that f creates belong to the host. Calls of Do are serialized.
func (h *LANHost) Do(f func() error) error {
	done := make(chan error, 1)
	h.calls <- func() { done <- f() }
	return <-done
}

// Start starts a process on the host.
func (h *LANHost) Start(c *exec.Cmd) error { return h.Do(c.Start) }

// Listen listens on a port of the host.
func (h *LANHost) Listen(port int) (l net.Listener, err error) {
	err = h.Do(func() (err error) {
		l, err = net.Listen("tcp4", netip.AddrPortFrom(h.Addr(), uint16(port)).String())
		return err
	})
	return l, err
}

// Dial connects from the host.
func (h *LANHost) Dial(addr string, patience time.Duration) (c net.Conn, err error) {
	err = h.Do(func() (err error) {
		c, err = net.DialTimeout("tcp4", addr, patience)
		return err
	})
	return c, err
}

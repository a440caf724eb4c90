package rig

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

// MaxLANHosts is how many hosts there can be.
const MaxLANHosts = 200

// mtu is the largest packet, and mostFrame what a card sends of it at once.
const (
	mtu       = 1500
	mostFrame = mtu + 18
	mostQueue = 4096 // frames on a way; what comes beyond is lost, as in a switch
)

// LANLink is what becomes of what one host sends to another.
type LANLink struct {
	Delay  time.Duration // of each frame
	Spread time.Duration // more of it, drawn evenly
	Lose   float64       // the part of all frames that is lost
	Hurry  float64       // the part that overtakes those before it
	Cut    bool          // all are lost
}

// LAN is several hosts of one machine: each is a network namespace with one card, and a switch in this process carries
// what the cards send. The switch can delay, lose, reorder and cut, in each direction by itself, so that partitions of
// every shape can be had; a host whose cable is pulled is gone without a word.
//
// It needs root, network namespaces and /dev/net/tun, and nothing else: no bridge, no netem, no iptables.
//
//	l, err := rig.NewLAN(5, seed)      // hosts 0 to 4, at 10.77.0.1 to 10.77.0.5; NewLANAt says where else
//	err = l.Host(0).Start(cmd)         // a process there; it cannot see the other hosts but through the switch
//	l.Cut(0, 1)                        // what 0 sends no longer comes to 1; the other way it does
//	err = l.Close()
//
// A LAN is safe for concurrent use.
type LAN struct {
	hosts []*LANHost
	pumps sync.WaitGroup
	done  chan struct{}
	once  sync.Once

	mu   sync.Mutex  // guards what follows
	ways [][]LANLink // from, to
	rng  *rand.Rand
}

// LANHost is one of the hosts.
type LANHost struct {
	index int
	addr  netip.Addr
	do    chan func()
	card  *os.File
	in    []chan lanPacket // what comes from each other host
}

// lanPacket is a frame, and when it is to come.
type lanPacket struct {
	at    time.Time
	bytes []byte
}

// NewLAN makes hosts, and connects all with all. An error that is ErrUnable says that this machine or user cannot.
func NewLAN(n int, seed uint64) (*LAN, error) { return NewLANAt(LANAddr(0), n, seed) }

// NewLANAt is New with another address of the first host; each other one has the address after that of the one before.
// They are of one network, in which the last of four numbers differs.
func NewLANAt(first netip.Addr, n int, seed uint64) (*LAN, error) {
	if n < 1 || n > MaxLANHosts {
		return nil, fmt.Errorf("lan: %d hosts; 1 to %d can be had", n, MaxLANHosts)
	}
	if !first.Is4() || int(first.As4()[3])+n > 255 {
		return nil, fmt.Errorf("lan: no network has %v and %d addresses after it", first, n-1)
	}
	l := &LAN{done: make(chan struct{}), rng: rand.New(rand.NewPCG(seed, 0)), ways: make([][]LANLink, n)}
	for i, addr := 0, first; i < n; i, addr = i+1, addr.Next() {
		l.ways[i] = make([]LANLink, n)
		h, err := newLANHost(i, n, addr)
		if err != nil {
			return nil, errors.Join(err, l.Close())
		}
		l.hosts = append(l.hosts, h)
	}
	for _, h := range l.hosts {
		l.pumps.Go(func() { l.forward(h) })
		for from := range h.in {
			l.pumps.Go(func() { l.carry(h, h.in[from]) })
		}
	}
	return l, nil
}

// ErrNoLAN is the error of a machine or user that cannot have hosts.
var ErrNoLAN = errors.New("lan: no network namespaces here: it takes root, and /dev/net/tun")

// LANHost returns one of the hosts.
func (l *LAN) Host(i int) *LANHost { return l.hosts[i] }

// Close takes the hosts away. What still runs there has no network any more.
func (l *LAN) Close() (err error) {
	l.once.Do(func() {
		close(l.done)
		for _, h := range l.hosts {
			err = errors.Join(err, h.card.Close())
			close(h.do)
		}
		l.pumps.Wait()
	})
	return err
}

// Set says what becomes of what one host sends to another, from now on.
func (l *LAN) Set(from, to int, w LANLink) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ways[from][to] = w
}

// SetAll is Set for all ways between all hosts.
func (l *LAN) SetAll(w LANLink) {
	for from := range l.hosts {
		for to := range l.hosts {
			l.Set(from, to, w)
		}
	}
}

// change changes one way.
func (l *LAN) change(from, to int, f func(*LANLink)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(&l.ways[from][to])
}

// Cut cuts the way from one host to another, and leaves the other direction.
func (l *LAN) Cut(from, to int) { l.change(from, to, func(w *LANLink) { w.Cut = true }) }

// Pull pulls a host's cable.
func (l *LAN) Pull(host int) { l.plug(host, true) }

// Plug puts it back, and heals all ways of the host.
func (l *LAN) Plug(host int) { l.plug(host, false) }

func (l *LAN) plug(host int, cut bool) {
	for other := range l.hosts {
		l.change(host, other, func(w *LANLink) { w.Cut = cut })
		l.change(other, host, func(w *LANLink) { w.Cut = cut })
	}
}

// Part cuts all ways between hosts of different groups. A host in no group is cut off from all.
func (l *LAN) Part(groups ...[]int) {
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

// Heal heals all ways.
func (l *LAN) Heal() {
	for i := range l.hosts {
		l.Plug(i)
	}
}

// forward takes what a host's card sends to where it belongs.
func (l *LAN) forward(h *LANHost) {
	b := make([]byte, mostFrame)
	for {
		n, err := h.card.Read(b)
		if err != nil {
			return // the card is closed
		}
		if n < 14 {
			continue
		}
		for to, other := range l.hosts {
			all := b[0]&1 == 1 // a frame for everybody, as when an address is asked for
			if other == h || !all && [6]byte(b[:6]) != cardOf(to) {
				continue
			}
			at, hurry, lost := l.fate(h.index, to)
			if lost {
				continue
			}
			p := lanPacket{at, append([]byte(nil), b[:n]...)}
			if hurry {
				_, _ = other.card.Write(p.bytes) // a closed card takes nothing
				continue
			}
			select {
			case other.in[h.index] <- p:
			default: // the way is full
			}
		}
	}
}

// fate draws what becomes of a frame.
func (l *LAN) fate(from, to int) (at time.Time, hurry, lost bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := &l.ways[from][to]
	if w.Cut || w.Lose > 0 && l.rng.Float64() < w.Lose {
		return at, false, true
	}
	d := w.Delay
	if w.Spread > 0 {
		d += time.Duration(l.rng.Int64N(int64(w.Spread)))
	}
	return time.Now().Add(d), w.Hurry > 0 && l.rng.Float64() < w.Hurry, false
}

// carry hands a host what comes to it on one way, each in its time.
func (l *LAN) carry(h *LANHost, in chan lanPacket) {
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
			_, _ = h.card.Write(p.bytes) // a closed card takes nothing
		}
	}
}

// cardOf is the address of a host's card.
func cardOf(i int) [6]byte { return [6]byte{0x02, 0x70, 0x64, 0x72, 0x00, byte(i + 1)} }

// LANAddr is the address of a host that New makes.
func LANAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 77, 0, byte(i + 1)}) }

// Addr is the host's address.
func (h *LANHost) Addr() netip.Addr { return h.addr }

// newLANHost makes a namespace, with its card. The thread that is in it does what is to be done there.
func newLANHost(i, n int, addr netip.Addr) (*LANHost, error) {
	h := &LANHost{index: i, addr: addr, do: make(chan func())}
	for range n {
		h.in = append(h.in, make(chan lanPacket, mostQueue))
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
		for f := range h.do {
			f()
		}
	}()
	if err := <-ready; err != nil {
		return nil, err
	}
	return h, nil
}

// openCard makes the card of a host, in the namespace of this thread, and switches it on.
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

// configure gives the card its addresses, and switches it and the loopback on.
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

// Do runs f on a thread of the host: sockets that it makes are the host's. One f runs at a time.
func (h *LANHost) Do(f func() error) error {
	done := make(chan error, 1)
	h.do <- func() { done <- f() }
	return <-done
}

// Start starts a process on the host.
func (h *LANHost) Start(c *exec.Cmd) error { return h.Do(c.Start) }

// Listen listens on the host.
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

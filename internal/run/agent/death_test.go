//go:build linux

package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/coordinator"
	"github.com/perdure/perdure/internal/proc/hooks"
	"github.com/perdure/perdure/internal/proc/server"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/testcluster"
	"github.com/perdure/perdure/worker"
)

// way is how much of a packet a program handles before it dies.
type way string

const (
	halfHead  way = "with half a head sent"
	halfText  way = "with half of a call's text sent"
	sent      way = "with the call sent"
	unread    way = "with the reply not read"
	read      way = "with the reply read"
	tick          = 2 * time.Millisecond
	maxEnding     = 20 * time.Second // an agent takes milliseconds
)

// death determines at which packet a program dies, counting calls and replies.
type death struct {
	way
	at, calls, replies int
}

// died is the panic value that ends a program.
type died struct{ d *death }

func (d *death) sends(b []byte) []byte {
	if d == nil {
		return b
	}
	d.calls++
	switch {
	case d.calls != d.at:
	case d.way == halfHead:
		return b[:headBytes/2]
	case d.way == halfText:
		return b[:headBytes+(len(b)-headBytes)/2]
	}
	return b
}

func (d *death) sent() {
	if d != nil && d.calls == d.at && (d.way == sent || d.way == halfHead || d.way == halfText) {
		panic(died{d})
	}
}

func (d *death) hears(from *net.UnixConn) {
	if d == nil {
		return
	}
	if d.replies++; d.replies != d.at || d.way != unread {
		return
	}
	raw, err := from.SyscallConn()
	if err == nil {
		err = raw.Read(func(fd uintptr) bool {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
		})
	}
	if err != nil {
		panic(err)
	}
	panic(died{d})
}

func (d *death) heard() {
	if d != nil && d.replies == d.at && d.way == read {
		panic(died{d})
	}
}

// lifeClocks is how many clocks a program works before it leaves its slot to the next program.
const lifeClocks = 2

// enters joins the job. It returns false if the job was done before.
func (p *program) enters() bool {
	p.Helper()
	p.send(opHello, 0, hello("null"), -1)
	switch r := p.hear(); r.code {
	case codeOK:
		return true
	case codeDone:
		return false
	default:
		p.Fatalf("cannot join: code %d, %s", r.code, r.text)
		return false
	}
}

// works is a program that continues at its slot's clock, with all kinds of calls, and leaves the slot to the next
// program. It checks that the rows are those of a job without deaths: each clock has counted once.
func (p *program) works() {
	if !p.enters() {
		p.Fatal("the job is done")
	}
	fd := memory(p, 0, unix.F_SEAL_SHRINK)
	p.send(opLend, 0, "", fd)
	p.hear()
	at, values := p.share(64)
	list, rows := p.share(8)
	copy(unsafe.Slice((*int64)(unsafe.Pointer(unsafe.SliceData(rows))), 2), []int64{5, 6})
	dense := uint16(p.call(opTable, 0, `{"name":"w","rows":8,"dim":4,"rule":{"kind":"add"}}`).args[0])
	sparse := uint16(p.call(opTable, 0, `{"name":"s","sparse":true,"dim":4,"rule":{"kind":"add"}}`).args[0])
	other := p.channel()
	now := p.call(opNow, 0, "").args[0]
	if size := p.call(opLoadState, 0, "").args[0]; now > 0 {
		p.call(opFetch, 0, "", at)
		if size != 4 || int64(values[0]) != now {
			p.Errorf("clock %d: the state has %d bytes and value %v", now, size, values[0])
		}
	}
	fill := func(v float32) {
		for i := range 8 {
			values[i] = v * float32(now+1)
		}
	}
	for end := now + lifeClocks; ; {
		p.call(opGetRun, dense, "", at, 0, 8)
		other.call(opGetRows, sparse, "", at+4*32, list, 2)
		for i, got := range values[:40] {
			of := [...]float32{1, 1, 100, 100, 0, 10, 10, 0, 10, 10}[i/4]
			if want := of * float32(now*(now+1)/2); got != want {
				p.Fatalf("clock %d: value %d of row %d is %v, want %v", now, i%4, i/4, got, want)
			}
		}
		if now == end {
			break
		}
		fill(1)
		p.call(opIncRun, dense, "", at, 0, 2)
		fill(10)
		other.call(opIncRows, dense, "", at, list, 2)
		p.call(opIncRows, sparse, "", at, list, 2)
		p.call(opFlush, sparse, "")
		lent := p.call(opDeltas, dense, "", 0, 2, 2).args
		b, err := unix.Mmap(fd, lent[0], int(lent[1]), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		must(p, err)
		fill(100)
		copy(unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), 8), values[:8])
		must(p, unix.Munmap(b))
		values[0] = float32(now + 1)
		p.call(opSaveState, 0, "", at, 0, 4)
		p.call(opReport, 0, `{"train_loss":1.5}`, 10)
		if now++; p.call(opClock, 0, "").args[0] != now {
			p.Fatalf("not at clock %d", now)
		}
		p.call(opPrefetch, sparse, "", 0, list, 2)
		p.call(opForget, dense, "")
	}
	p.call(opAwaitSlots, 0, "")
	p.call(opSettle, 0, "")
	p.call(opStored, sparse, "", list, 0, 4)
	p.call(opUnmap, 0, "", list)
	p.call(opGoodbye, 0, "", 0)
}

// ends is a program that works through the last clock of a job unless the job is done.
func (p *program) ends() {
	if !p.enters() {
		return
	}
	p.call(opTable, 0, `{"name":"w","rows":8,"dim":4,"rule":{"kind":"add"}}`)
	at, values := p.share(32)
	now := p.call(opNow, 0, "").args[0]
	p.call(opGetRun, 0, "", at, 0, 8)
	if int64(values[31]) != now {
		p.Fatalf("clock %d: the last value is %v", now, values[31])
	}
	if now == 0 {
		values[31] = 1
		p.call(opIncRun, 0, "", at, 0, 8)
		p.call(opClock, 0, "")
	}
	p.call(opFinish, 0, "")
	p.call(opGoodbye, 0, "", 1)
}

// live runs a program and its agent in a job until one of them ends. copies means that other processes hold copies of
// its sockets, so that its death does not close them. It returns whether the program has died.
func live(t *testing.T, h *testcluster.Hosts, d *death, copies bool, program func(p *program)) (dead bool) {
	t.Helper()
	ctx, kill := context.WithCancel(context.Background())
	defer kill()
	var deathHook func() bool
	dial := func(ctx context.Context, cfg worker.Config) (*worker.Client, error) {
		deathHook = hooks.FromContext(ctx).Died
		return h.NewProcess("worker-0").Dial(ctx, cfg.Slot, func(c *testcluster.DialConfig) {
			c.Memory, c.Heartbeat = cfg.Memory, tick
		})
	}
	p := start(ctx, t, Options{Version: "v", Dial: dial})
	p.death = d
	func() {
		defer func() {
			if r := recover(); r != nil {
				if dead = r == any(died{d}); !dead {
					panic(r)
				}
			}
		}()
		program(p)
	}()
	if dead && copies {
		kill()
	} else {
		_ = p.socket.Close()
	}
	select {
	case err := <-p.ended:
		if err != nil && !(dead && d.way == halfHead && errors.Is(err, errPacket)) {
			t.Errorf("the agent ended with %v", err)
		}
	case <-time.After(maxEnding):
		t.Fatalf("the program is dead, and the agent still runs after %v", maxEnding)
	}
	if deathHook != nil && deathHook() == p.goodbye && !(dead && p.goodbye) {
		t.Errorf("the agent reports a death: %v, goodbye: %v", deathHook(), p.goodbye)
	}
	return dead
}

// silent is how long a slot is kept for a silent worker. A slot is free immediately when its worker leaves it. But if a
// program dies before its agent receives the welcome, only the coordinator knows that the slot is taken.
const silent = 3 * time.Second

// shortJob starts a job of one slot, in memory.
func shortJob(t *testing.T, clocks perdure.Clock) (h *testcluster.Hosts, end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	h = testcluster.New(ctx, testcluster.Options{Ended: func(*testcluster.Process, error) {}})
	job := testcluster.Job("bsp", "none", 1, 1, 2)
	job.Clocks = clocks
	_, err := h.StartCoordinator(job, func(cfg *coordinator.Config) {
		cfg.Patience, cfg.Tick, cfg.Linger = silent, tick, tick
	})
	must(t, err)
	h.StartServer("server-0", func(cfg *server.Config) { cfg.Heartbeat = tick })
	return h, func() { cancel(); h.Wait() }
}

// open returns the number of this process's sockets.
func open(t *testing.T) (sockets int) {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	for _, f := range all {
		if of, _ := os.Readlink("/proc/self/fd/" + f.Name()); strings.HasPrefix(of, "socket:") {
			sockets++
		}
	}
	return sockets
}

// eachWay runs a test for each way in which a program dies.
func eachWay(t *testing.T, test func(t *testing.T, w way, copies bool)) {
	sockets := open(t)
	t.Run("ways", func(t *testing.T) {
		for _, w := range []way{halfHead, halfText, sent, unread, read} {
			for _, copies := range []bool{false, true} {
				if copies && (w == halfHead || w == halfText) {
					continue // the packet has no text
				}
				t.Run(fmt.Sprintf("%s, copies %v", w, copies), func(t *testing.T) {
					t.Parallel()
					test(t, w, copies)
				})
			}
		}
	})
	if now := open(t); now != sockets {
		t.Errorf("%d sockets are open; before there were %d", now, sockets)
	}
}

// TestProgramDiesAtEachStep kills a program at each packet of its work, in each way. The agent must end, the next
// program must get the slot immediately and continue, and each clock must count once.
func TestProgramDiesAtEachStep(t *testing.T) {
	eachWay(t, func(t *testing.T, w way, copies bool) {
		h, end := shortJob(t, 1<<20)
		defer end()
		at := 1
		for live(t, h, &death{way: w, at: at}, copies, (*program).works) && !t.Failed() {
			at++
		}
		if at < 40 || t.Failed() {
			t.Errorf("the last program died %s, packet %d", w, at-1)
		}
	})
}

// TestProgramDiesAtTheEnd does the same at the end of the job. The next program does the remaining work or is notified
// that the job is done.
func TestProgramDiesAtTheEnd(t *testing.T) {
	eachWay(t, func(t *testing.T, w way, copies bool) {
		for at, dead := 1, true; dead; at++ {
			t.Logf("the program dies at packet %d", at)
			h, end := shortJob(t, 1)
			if dead = live(t, h, &death{way: w, at: at}, copies, (*program).ends); dead {
				live(t, h, nil, false, (*program).ends)
			}
			end()
			if t.Failed() {
				t.Fatalf("the program died %s, packet %d", w, at)
			}
		}
	})
}

// welcoming is a network that calls a function when a process is welcome, before it receives the welcome.
type welcoming struct {
	transport.Network
	do func()
}

type welcomed struct {
	transport.Conn
	do func()
}

func (n welcoming) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c, err := n.Network.Dial(ctx, addr)
	return &welcomed{c, n.do}, err
}

func (c *welcomed) Recv(f *wire.Frame) error {
	err := c.Conn.Recv(f)
	if err == nil && f.Kind == wire.KindWelcome {
		c.do()
	}
	return err
}

// TestProgramDiesAsItJoins checks that the slot of a program that dies while joining is free for the next one.
func TestProgramDiesAsItJoins(t *testing.T) {
	h, end := shortJob(t, 1)
	defer end()
	ctx, kill := context.WithCancel(t.Context())
	defer kill()
	p := start(ctx, t, Options{Dial: func(ctx context.Context, cfg worker.Config) (*worker.Client, error) {
		return h.NewProcess("worker-0").Dial(ctx, cfg.Slot, func(c *testcluster.DialConfig) {
			c.Network = welcoming{c.Network, kill}
		})
	}})
	p.send(opHello, 0, hello("null"), -1)
	must(t, <-p.ended)
	live(t, h, nil, false, (*program).ends)
}

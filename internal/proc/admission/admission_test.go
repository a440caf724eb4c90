package admission_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/admission"
	"github.com/perdure/perdure/internal/proc/httpdebug"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/transport"
)

// guest is a connection of a peer.
type guest struct {
	transport.Conn
	at  string
	who keys.Identity
}

func (g *guest) Peer() string       { return g.at }
func (g *guest) Who() keys.Identity { return g.who }

// house is a door, and who comes to it.
type house struct {
	*testing.T
	*admission.Door
	log     bytes.Buffer
	network *transport.Memory
	listens transport.Listener
}

const secret = perdure.Secret("the job's")

func newHouse(t *testing.T) *house {
	h := &house{T: t, network: transport.NewMemory(1, transport.MemoryOptions{})}
	h.Door = &admission.Door{Keys: wire.Keys{Job: secret}, Log: slog.New(slog.NewTextHandler(&h.log, nil))}
	var err error
	if h.listens, err = h.network.Host("house").Listen("house/1"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.listens.Close() })
	return h
}

// comes connects, greets, and returns how that one leaves, and why it was refused, if it was.
func (h *house) comes(at string, who keys.Identity, hello wire.Hello) (leave func(), refused wire.Refusal) {
	h.Helper()
	far, err := h.network.Host("guest").Dial(h.Context(), "house/1")
	if err != nil {
		h.Fatal(err)
	}
	defer far.Close()
	near, err := h.listens.Accept()
	if err != nil {
		h.Fatal(err)
	}
	defer near.Close()
	if err := far.Send(wire.Control(wire.KindHello, hello)); err != nil {
		h.Fatal(err)
	}
	_, peer, err := h.Enter(&guest{near, at, who})
	if err == nil {
		return peer.Leave, refused
	}
	var f wire.Frame
	if err := far.Recv(&f); err != nil || f.Kind != wire.KindRefuse || wire.ParseControl(&f, &refused) != nil {
		h.Fatalf("who is not let in is told %v, %v", f.Kind, err)
	}
	return nil, refused
}

var observer = wire.Hello{Role: wire.RoleObserver, Index: int(perdure.NoSlot), Process: "guest", Secret: secret}

// TestBound: a peer is let in as often as the job's size allows, and then told in one line that it has enough. Others
// are let in all the while: another machine, another certificate on the same one. Who has left makes room.
func TestBound(t *testing.T) { synctest.Test(t, bound) }

func bound(t *testing.T) {
	h := newHouse(t)
	h.Expect(10)
	const most = admission.Least + 10*admission.PerPlace
	worker, server := keys.Identity{Role: keys.Worker, Name: "w"}, keys.Identity{Role: keys.Server, Name: "s"}
	hello := observer
	var leaves []func()
	for i := range most {
		leave, refused := h.comes(fmt.Sprintf("10.0.0.4:%d", 1000+i), worker, hello)
		if leave == nil {
			t.Fatalf("connection %d of %d: %s", i, most, refused.Reason)
		}
		leaves = append(leaves, leave)
	}
	want := fmt.Sprintf("worker/w at 10.0.0.4 has %d connections to this process already, and one peer may have no "+
		"more; end some of them", most)
	for i := range 3 {
		leave, refused := h.comes("10.0.0.4:9", worker, hello)
		if leave != nil || refused.Reason != want || !refused.Again || h.Refused() != int64(i+1) {
			t.Fatalf("one more: let in %v, %+v, %d counted; want %q", leave != nil, refused, h.Refused(), want)
		}
	}
	if n := strings.Count(h.log.String(), want); n != 3 {
		t.Errorf("the log says so %d times: %s", n, &h.log)
	}
	for what, c := range map[string]struct {
		at  string
		who keys.Identity
	}{
		"another machine":                 {"10.0.0.5:9", worker},
		"another certificate there":       {"10.0.0.4:9", server},
		"another machine's other address": {"[fd00:0:0:1::4]:9", worker},
	} {
		if leave, refused := h.comes(c.at, c.who, hello); leave == nil {
			t.Errorf("%s: %s", what, refused.Reason)
		}
	}
	leaves[7]()
	if leave, refused := h.comes("10.0.0.4:9", worker, hello); leave == nil {
		t.Errorf("after one has left: %s", refused.Reason)
	}
	h.Expect(11) // somebody has joined
	for range admission.PerPlace {
		if leave, refused := h.comes("10.0.0.4:9", worker, hello); leave == nil {
			t.Errorf("after the job has grown: %s", refused.Reason)
		}
	}
	if leave, _ := h.comes("10.0.0.4:9", worker, hello); leave != nil || h.Refused() != 4 {
		t.Errorf("beyond that: let in %v, %d counted", leave != nil, h.Refused())
	}
}

// TestPeers: which connections are of one peer.
func TestPeers(t *testing.T) { synctest.Test(t, peers) }

func peers(t *testing.T) {
	for name, c := range map[string]struct {
		addrs [2]string
		same  bool
	}{
		"two ports":                          {[2]string{"10.0.0.4:1", "10.0.0.4:2"}, true},
		"two machines":                       {[2]string{"10.0.0.4:1", "10.0.0.5:1"}, false},
		"a network of version 6":             {[2]string{"[fd00::1]:1", "[fd00::ffff:1]:1"}, true},
		"two networks of version 6":          {[2]string{"[fd00:0:0:1::1]:1", "[fd00:0:0:2::1]:1"}, false},
		"with a zone":                        {[2]string{"[fe80::1%eth0]:1", "[fe80::1%eth1]:1"}, true},
		"version 4 in version 6":             {[2]string{"[::ffff:10.0.0.4]:1", "[::ffff:10.0.0.5]:1"}, false},
		"a process over a Unix socket":       {[2]string{"process 7 (Unix socket)", "process 7 (Unix socket)"}, true},
		"two processes over the Unix socket": {[2]string{"process 7 (Unix socket)", "process 8 (Unix socket)"}, false},
	} {
		h := newHouse(t)
		for range admission.Least {
			if leave, refused := h.comes(c.addrs[0], keys.Identity{}, observer); leave == nil {
				t.Fatal(refused.Reason)
			}
		}
		if leave, refused := h.comes(c.addrs[1], keys.Identity{}, observer); (leave == nil) != c.same {
			t.Errorf("%s: let in %v: %s", name, leave != nil, refused.Reason)
		}
	}
}

// TestAtOnce: who comes at once, and leaves at once, is counted right.
func TestAtOnce(t *testing.T) { synctest.Test(t, atOnce) }

func atOnce(t *testing.T) {
	h := newHouse(t)
	var all sync.WaitGroup
	turns := make(chan struct{}, 1)
	for range 8 {
		all.Go(func() {
			for range 100 {
				turns <- struct{}{} // one connection is accepted after the other
				leave, refused := h.comes("10.0.0.4:1", keys.Identity{}, observer)
				<-turns
				if leave == nil {
					t.Errorf("refused: %s", refused.Reason)
					return
				}
				leave()
			}
		})
	}
	all.Wait()
	if h.Refused() != 0 {
		t.Errorf("%d refused", h.Refused())
	}
}

// TestGreeting: who does not show the secret is not let in, and counts for nobody; who says nothing where that is usual
// makes no noise.
func TestGreeting(t *testing.T) { synctest.Test(t, greeting) }

func greeting(t *testing.T) {
	h := newHouse(t)
	stranger := observer
	stranger.Secret = "a guess"
	for range admission.Least + 1 {
		if leave, refused := h.comes("10.0.0.4:1", keys.Identity{}, stranger); leave != nil || refused.Again {
			t.Fatalf("a stranger: let in %v, %+v", leave != nil, refused)
		}
	}
	if leave, refused := h.comes("10.0.0.4:1", keys.Identity{}, observer); leave == nil || h.Refused() != 0 {
		t.Errorf("after strangers: %s, %d counted", refused.Reason, h.Refused())
	}
	for _, visited := range []bool{false, true} {
		h.Visited = visited
		h.log.Reset()
		far, err := h.network.Host("guest").Dial(t.Context(), "house/1")
		if err != nil {
			t.Fatal(err)
		}
		near, err := h.listens.Accept()
		if err != nil {
			t.Fatal(err)
		}
		far.Close()
		_, _, err = h.Enter(near)
		near.Close()
		if err == nil || strings.Contains(h.log.String(), "did not say who") == visited {
			t.Errorf("visited %v: %v, %s", visited, err, &h.log)
		}
	}
}

// TestBudgets: what is queued on all connections of a peer is counted together, and for no other peer; there is room
// for what all places of the job may leave unread, however many there are by then. Nothing is left of it on connections
// that are closed.
func TestBudgets(t *testing.T) { synctest.Test(t, budgets) }

func budgets(t *testing.T) {
	h := newHouse(t)
	enter := func(at string) (near transport.Conn, peer *admission.Peer) {
		far, err := h.network.Host("guest").Dial(t.Context(), "house/1")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { far.Close() })
		near, err = h.listens.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if err := far.Send(wire.Control(wire.KindHello, observer)); err != nil {
			t.Fatal(err)
		}
		_, peer, err = h.Enter(&guest{near, at, keys.Identity{}})
		if err != nil {
			t.Fatal(err)
		}
		return near, peer
	}
	one, peer := enter("10.0.0.4:1")
	two, same := enter("10.0.0.4:2")
	_, other := enter("10.0.0.5:1")
	if peer != same || peer == other {
		t.Fatal("the connections of a peer, and of no other, share budgets")
	}
	f := wire.Frame{Header: wire.Header{Kind: wire.KindRows}, Payload: make([]byte, 1<<20)}
	const bytes = 1<<20 + wire.HeaderBytes
	for _, c := range []transport.Conn{one, two, two} {
		if err := c.TrySend(f); err != nil {
			t.Fatal(err)
		}
	}
	if peer.Unread.Held() != 3*bytes || other.Unread.Held() != 0 {
		t.Errorf("of %d bytes that are not read %d count, and %d for somebody else", 3*bytes, peer.Unread.Held(),
			other.Unread.Held())
	}
	for places := range 3 {
		h.Expect(places)
		room := int64(admission.Spare+places) * admission.PlaceBytes
		for what, b := range map[string]*transport.Budget{"unread": peer.Unread, "waiting": peer.Waiting} {
			if left := room - b.Held(); b.Take(left+1) || !b.Take(left) {
				t.Errorf("%d places: %s has not room for %d", places, what, room)
			} else {
				b.Give(left)
			}
		}
	}
	two.Close()
	if peer.Unread.Held() != bytes {
		t.Errorf("after one was closed %d bytes count, want %d", peer.Unread.Held(), bytes)
	}
	one.Close()
	if peer.Unread.Held() != 0 {
		t.Errorf("after both were closed %d bytes count", peer.Unread.Held())
	}
	peer.Leave()
	if _, again := enter("10.0.0.4:3"); again != peer {
		t.Error("who still has a connection has another budget")
	}
	peer.Leave()
	peer.Leave()
	if _, again := enter("10.0.0.4:4"); again == peer {
		t.Error("who had no connection any more is still known")
	}
}

// TestFlood: however many connections say nothing, a process's log has a line for the first, and then one for each
// second; other kinds are written immediately.
func TestFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		h.Door.Log = httpdebug.NewLog(&h.log, httpdebug.Text)
		const many = 2000
		for range many {
			far, err := h.network.Host("stranger").Dial(t.Context(), "house/1")
			if err != nil {
				t.Fatal(err)
			}
			near, err := h.listens.Accept()
			if err != nil {
				t.Fatal(err)
			}
			far.Close()
			if _, _, err := h.Enter(near); err == nil {
				t.Fatal("a silent peer is let in")
			}
			near.Close()
		}
		wrong := observer
		wrong.Secret = "another"
		if leave, _ := h.comes("10.0.0.7:1", keys.Identity{}, wrong); leave != nil {
			t.Error("a peer with another secret is let in")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		seconds := 60
		if n := strings.Count(h.log.String(), "\n"); n < 2 || n > seconds || h.log.Len() > seconds*300 {
			t.Errorf("%d lines, of %d bytes, for %d connections", n, h.log.Len(), many)
		}
		if !strings.Contains(h.log.String(), " more=") {
			t.Errorf("the others are not counted: %s", &h.log)
		}
	})
}

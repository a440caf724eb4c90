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

// fakeConn is a connection with a chosen peer address and identity.
type fakeConn struct {
	transport.Conn
	at  string
	who keys.Identity
}

func (g *fakeConn) Peer() string                { return g.at }
func (g *fakeConn) PeerIdentity() keys.Identity { return g.who }

// fixture is a Controller with a listener that peers connect to.
type fixture struct {
	*testing.T
	*admission.Controller
	log     bytes.Buffer
	network *transport.Memory
	listens transport.Listener
}

const secret = perdure.Secret("the job's")

func newFixture(t *testing.T) *fixture {
	h := &fixture{T: t, network: transport.NewMemory(1, transport.MemoryOptions{})}
	h.Controller = &admission.Controller{Keys: wire.Keys{Job: secret}, Log: slog.New(slog.NewTextHandler(&h.log, nil))}
	var err error
	if h.listens, err = h.network.Host("house").Listen("house/1"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.listens.Close() })
	return h
}

// connect opens a connection and performs the handshake. It returns the func that closes an admitted connection, or the
// refusal.
func (h *fixture) connect(at string, who keys.Identity, hello wire.Hello) (leave func(), refused wire.Refusal) {
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
	_, peer, err := h.Admit(&fakeConn{near, at, who})
	if err == nil {
		return peer.Release, refused
	}
	var f wire.Frame
	if err := far.Recv(&f); err != nil || f.Kind != wire.KindRefuse || wire.ParseControl(&f, &refused) != nil {
		h.Fatalf("got frame %v (error %v) instead of a refusal", f.Kind, err)
	}
	return nil, refused
}

var observer = wire.Hello{Role: wire.RoleObserver, Index: int(perdure.NoSlot), Process: "guest", Secret: secret}

// TestBound checks the limit on the connections of one peer. It grows with the job, a rejected peer receives one line
// with the reason, and the limit does not affect another machine or another certificate on the same machine. Closing a
// connection makes room for another.
func TestBound(t *testing.T) { synctest.Test(t, bound) }

func bound(t *testing.T) {
	h := newFixture(t)
	h.SetMembers(10)
	const most = admission.MinConns + 10*admission.PerPlace
	worker, server := keys.Identity{Role: keys.Worker, Name: "w"}, keys.Identity{Role: keys.Server, Name: "s"}
	hello := observer
	var leaves []func()
	for i := range most {
		leave, refused := h.connect(fmt.Sprintf("10.0.0.4:%d", 1000+i), worker, hello)
		if leave == nil {
			t.Fatalf("connection %d of %d: %s", i, most, refused.Reason)
		}
		leaves = append(leaves, leave)
	}
	want := fmt.Sprintf("worker/w at 10.0.0.4 already has %d connections to this process, which is the limit "+
		"per peer; close some of them", most)
	for i := range 3 {
		leave, refused := h.connect("10.0.0.4:9", worker, hello)
		if leave != nil || refused.Reason != want || !refused.Temporary || h.Refused() != int64(i+1) {
			t.Fatalf("connection above the limit: admitted %v, refusal %+v, %d refused; want %q", leave != nil,
				refused, h.Refused(), want)
		}
	}
	if n := strings.Count(h.log.String(), want); n != 3 {
		t.Errorf("logged %d times, want 3: %s", n, &h.log)
	}
	for what, c := range map[string]struct {
		at  string
		who keys.Identity
	}{
		"another machine":                 {"10.0.0.5:9", worker},
		"another certificate there":       {"10.0.0.4:9", server},
		"another machine's other address": {"[fd00:0:0:1::4]:9", worker},
	} {
		if leave, refused := h.connect(c.at, c.who, hello); leave == nil {
			t.Errorf("%s: %s", what, refused.Reason)
		}
	}
	leaves[7]()
	if leave, refused := h.connect("10.0.0.4:9", worker, hello); leave == nil {
		t.Errorf("after a connection closed: %s", refused.Reason)
	}
	h.SetMembers(11) // another worker joined
	for range admission.PerPlace {
		if leave, refused := h.connect("10.0.0.4:9", worker, hello); leave == nil {
			t.Errorf("after the job grew: %s", refused.Reason)
		}
	}
	if leave, _ := h.connect("10.0.0.4:9", worker, hello); leave != nil || h.Refused() != 4 {
		t.Errorf("above the new limit: admitted %v, %d refused", leave != nil, h.Refused())
	}
}

// TestPeers checks which addresses count as the same peer.
func TestPeers(t *testing.T) { synctest.Test(t, peers) }

func peers(t *testing.T) {
	for name, c := range map[string]struct {
		addrs [2]string
		same  bool
	}{
		"two ports":                          {[2]string{"10.0.0.4:1", "10.0.0.4:2"}, true},
		"two machines":                       {[2]string{"10.0.0.4:1", "10.0.0.5:1"}, false},
		"one IPv6 network":                   {[2]string{"[fd00::1]:1", "[fd00::ffff:1]:1"}, true},
		"two IPv6 networks":                  {[2]string{"[fd00:0:0:1::1]:1", "[fd00:0:0:2::1]:1"}, false},
		"IPv6 zones":                         {[2]string{"[fe80::1%eth0]:1", "[fe80::1%eth1]:1"}, true},
		"IPv4-mapped IPv6":                   {[2]string{"[::ffff:10.0.0.4]:1", "[::ffff:10.0.0.5]:1"}, false},
		"a process over a Unix socket":       {[2]string{"process 7 (Unix socket)", "process 7 (Unix socket)"}, true},
		"two processes over the Unix socket": {[2]string{"process 7 (Unix socket)", "process 8 (Unix socket)"}, false},
	} {
		h := newFixture(t)
		for range admission.MinConns {
			if leave, refused := h.connect(c.addrs[0], keys.Identity{}, observer); leave == nil {
				t.Fatal(refused.Reason)
			}
		}
		if leave, refused := h.connect(c.addrs[1], keys.Identity{}, observer); (leave == nil) != c.same {
			t.Errorf("%s: admitted %v: %s", name, leave != nil, refused.Reason)
		}
	}
}

// TestConcurrent checks the connection count while peers connect and disconnect concurrently.
func TestConcurrent(t *testing.T) { synctest.Test(t, concurrent) }

func concurrent(t *testing.T) {
	h := newFixture(t)
	var all sync.WaitGroup
	turns := make(chan struct{}, 1)
	for range 8 {
		all.Go(func() {
			for range 100 {
				turns <- struct{}{} // accept connections one at a time
				leave, refused := h.connect("10.0.0.4:1", keys.Identity{}, observer)
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

// TestHandshake checks that a peer without the secret is rejected and uses up no limit, and that Visited silences the
// warning about connections without a handshake.
func TestHandshake(t *testing.T) { synctest.Test(t, handshake) }

func handshake(t *testing.T) {
	h := newFixture(t)
	stranger := observer
	stranger.Secret = "a guess"
	for range admission.MinConns + 1 {
		if leave, refused := h.connect("10.0.0.4:1", keys.Identity{}, stranger); leave != nil || refused.Temporary {
			t.Fatalf("wrong secret: admitted %v, %+v", leave != nil, refused)
		}
	}
	if leave, refused := h.connect("10.0.0.4:1", keys.Identity{}, observer); leave == nil || h.Refused() != 0 {
		t.Errorf("after rejected handshakes: %s, %d refused", refused.Reason, h.Refused())
	}
	for _, visited := range []bool{false, true} {
		h.Probed = visited
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
		_, _, err = h.Admit(near)
		near.Close()
		if err == nil || strings.Contains(h.log.String(), "handshake failed") == visited {
			t.Errorf("visited %v: %v, %s", visited, err, &h.log)
		}
	}
}

// TestBudgets checks that one budget covers all connections of a peer, that peers do not share budgets, and that the
// budget follows the size of the job. Closing a connection frees its share.
func TestBudgets(t *testing.T) { synctest.Test(t, budgets) }

func budgets(t *testing.T) {
	h := newFixture(t)
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
		_, peer, err = h.Admit(&fakeConn{near, at, keys.Identity{}})
		if err != nil {
			t.Fatal(err)
		}
		return near, peer
	}
	one, peer := enter("10.0.0.4:1")
	two, same := enter("10.0.0.4:2")
	_, other := enter("10.0.0.5:1")
	if peer != same || peer == other {
		t.Fatal("budgets are not per peer")
	}
	f := wire.Frame{Header: wire.Header{Kind: wire.KindRows}, Payload: make([]byte, 1<<20)}
	const bytes = 1<<20 + wire.HeaderBytes
	for _, c := range []transport.Conn{one, two, two} {
		if err := c.TrySend(f); err != nil {
			t.Fatal(err)
		}
	}
	if peer.Queued.Held() != 3*bytes || other.Queued.Held() != 0 {
		t.Errorf("%d unread bytes: counted %d, and %d for the other peer", 3*bytes, peer.Queued.Held(),
			other.Queued.Held())
	}
	for places := range 3 {
		h.SetMembers(places)
		room := int64(admission.SpareMembers+places) * admission.MemberBytes
		for what, b := range map[string]*transport.Budget{"unread": peer.Queued, "waiting": peer.Pending} {
			if left := room - b.Held(); b.TryAdd(left+1) || !b.TryAdd(left) {
				t.Errorf("with %d members, the %s budget is not %d bytes", places, what, room)
			} else {
				b.Remove(left)
			}
		}
	}
	two.Close()
	if peer.Queued.Held() != bytes {
		t.Errorf("after closing one connection: %d bytes, want %d", peer.Queued.Held(), bytes)
	}
	one.Close()
	if peer.Queued.Held() != 0 {
		t.Errorf("after closing both connections: %d bytes, want 0", peer.Queued.Held())
	}
	peer.Release()
	if _, again := enter("10.0.0.4:3"); again != peer {
		t.Error("a peer with an open connection got a new budget")
	}
	peer.Release()
	peer.Release()
	if _, again := enter("10.0.0.4:4"); again == peer {
		t.Error("a peer without connections was not forgotten")
	}
}

// TestFlood checks that many failed handshakes are logged once immediately and then at most once a second, and that
// messages of other kinds are still logged immediately.
func TestFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newFixture(t)
		h.Controller.Log = httpdebug.NewLog(&h.log, httpdebug.Text)
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
			if _, _, err := h.Admit(near); err == nil {
				t.Fatal("a silent peer was admitted")
			}
			near.Close()
		}
		wrong := observer
		wrong.Secret = "another"
		if leave, _ := h.connect("10.0.0.7:1", keys.Identity{}, wrong); leave != nil {
			t.Error("a peer with another secret was admitted")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		seconds := 60
		if n := strings.Count(h.log.String(), "\n"); n < 2 || n > seconds || h.log.Len() > seconds*300 {
			t.Errorf("logged %d lines (%d bytes) for %d connections", n, h.log.Len(), many)
		}
		if !strings.Contains(h.log.String(), " more=") {
			t.Errorf("skipped lines are not counted: %s", &h.log)
		}
	})
}

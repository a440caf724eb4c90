package transport

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
)

// linked is a Link under test, with its events and the peer that it dials.
type linked struct {
	*testing.T
	mem    *Memory
	link   Link
	events []string // in order
	cancel context.CancelFunc
	ended  chan error
}

const peerAddr = "peer/1"

// runLink runs a link in virtual time with a peer that serves connections with serve. If serve is nil, the peer does
// not listen.
func runLink(t *testing.T, serve func(c Conn), change func(*linked), test func(l *linked)) {
	synctest.Test(t, func(t *testing.T) {
		l := &linked{T: t, mem: NewMemory(1, MemoryOptions{}), ended: make(chan error, 1)}
		if serve != nil {
			l.listen(serve)
		}
		l.link = Link{
			Network: l.mem.Host("self"), Addr: peerAddr,
			Hello: func() wire.Hello { return wire.Hello{Role: wire.RoleWorker, Job: "job"} },
			Up:    func(Conn, *wire.Frame) { l.events = append(l.events, "up") },
			Frame: func(_ Conn, f *wire.Frame) error {
				l.events = append(l.events, string(f.Payload))
				if string(f.Payload) == "bad" {
					return errors.New("refused by its user")
				}
				return nil
			},
			Down: func(Conn, error) { l.events = append(l.events, "down") },
		}
		if change != nil {
			change(l)
		}
		ctx, cancel := context.WithCancel(context.Background())
		l.cancel = cancel
		go func() { l.ended <- l.link.Run(ctx) }()
		t.Cleanup(func() {
			cancel()
			l.mem.Kill("peer")
		})
		test(l)
	})
}

// listen lets the peer serve every connection.
func (l *linked) listen(serve func(c Conn)) {
	listener, err := l.mem.Host("peer").Listen(peerAddr)
	if err != nil {
		l.Fatal(err)
	}
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(c)
			}()
		}
	}()
}

// end stops the link and returns Run's error.
func (l *linked) end() error {
	l.cancel()
	return l.wait()
}

// wait waits until Run has returned and the peer has noticed.
func (l *linked) wait() error {
	err := <-l.ended
	<-time.After(time.Second)
	synctest.Wait()
	return err
}

func say(c Conn, payloads ...string) {
	for _, p := range payloads {
		_ = c.Send(wire.Frame{Header: wire.Header{Kind: wire.KindAck}, Payload: []byte(p)}) // checked by the test
	}
}

// welcome answers a link's Hello and sends frames.
func welcome(c Conn, payloads ...string) {
	if _, err := ReceiveHello(c, time.Second, wire.Keys{}); err != nil {
		return
	}
	_ = c.Send(wire.Control(wire.KindWelcome, wire.Welcome{})) // checked by the test
	say(c, payloads...)
}

// hang waits until the link ends the connection.
func hang(c Conn) {
	var f wire.Frame
	for c.Recv(&f) == nil {
	}
}

// TestLinkOrder checks that every connection calls Up, then Frame in order, then Down.
func TestLinkOrder(t *testing.T) {
	lives := 0
	serve := func(c Conn) {
		lives++
		switch lives {
		case 1:
			welcome(c, "a", "b") // then the connection is closed
		case 2:
			welcome(c, "c", "bad", "never handed over")
			hang(c)
		default:
			welcome(c, "d")
			hang(c)
		}
	}
	runLink(t, serve, nil, func(l *linked) {
		<-time.After(time.Second)
		if err := l.end(); !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
		want := []string{"up", "a", "b", "down", "up", "c", "bad", "down", "up", "d", "down"}
		if !slices.Equal(l.events, want) {
			t.Errorf("events %q, want %q", l.events, want)
		}
	})
}

// TestLinkPlace checks that Place provides the memory for frames after the Welcome.
func TestLinkPlace(t *testing.T) {
	serve := func(c Conn) {
		welcome(c, "abc", "de")
		hang(c)
	}
	var room [8]byte
	change := func(l *linked) {
		l.link.PayloadBuffer = func(f *wire.Frame, n int) []byte {
			if f.Kind == wire.KindWelcome {
				t.Error("Place was called for the answer to the Hello")
			}
			return room[:n-1]
		}
		l.link.Frame = func(_ Conn, f *wire.Frame) error {
			if len(f.Body) == 0 || &f.Body[0] != &room[0] {
				t.Error("a payload is not in the memory from Place")
			}
			l.events = append(l.events, string(f.Payload)+"|"+string(f.Body))
			return nil
		}
	}
	runLink(t, serve, change, func(l *linked) {
		<-time.After(time.Second)
		if err := l.end(); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if want := []string{"up", "a|bc", "d|e", "down"}; !slices.Equal(l.events, want) {
			t.Errorf("events %q, want %q", l.events, want)
		}
	})
}

// TestLinkSaysHello checks that each connection starts with a new Hello.
func TestLinkSaysHello(t *testing.T) {
	var said []wire.Hello
	serve := func(c Conn) {
		h, err := ReceiveHello(c, time.Second, wire.Keys{})
		if err != nil {
			t.Error(err)
		}
		said = append(said, h)
	}
	change := func(l *linked) {
		n := 0
		l.link.Hello = func() wire.Hello { n++; return wire.Hello{Role: wire.RoleServer, Index: n} }
		l.link.ShouldRetry = func(attempts int, _ error) bool { return attempts < 3 }
	}
	runLink(t, serve, change, func(l *linked) {
		_ = l.wait() // Patient has ended the link
		if len(said) != 3 || said[0].Index != 1 || said[2].Index != 3 || said[0].Role != wire.RoleServer {
			t.Errorf("the peer received %+v", said)
		}
	})
}

// TestLinkPauses checks that pauses between attempts grow up to a limit, are short again after a welcomed connection,
// and end when Patient returns false.
func TestLinkPauses(t *testing.T) {
	var tried []time.Time
	change := func(l *linked) {
		l.link.ShouldRetry = func(attempts int, err error) bool {
			tried = append(tried, time.Now())
			if attempts != len(tried) || err == nil {
				t.Errorf("attempt %d is called number %d, with %v", len(tried), attempts, err)
			}
			return attempts < 12
		}
	}
	runLink(t, nil, change, func(l *linked) {
		if err := l.wait(); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("Run returned %v after Patient had returned false", err)
		}
		if len(tried) != 12 {
			t.Fatalf("%d attempts, want 12", len(tried))
		}
		want := linkPauseMin
		for i := range tried[1:] {
			if pause := tried[i+1].Sub(tried[i]); pause < want || pause > want+2*time.Millisecond { // includes the dial
				t.Errorf("pause %d was %v, want %v", i, pause, want)
			}
			want = min(2*want, linkPauseMax)
		}
	})

	var ups []time.Time
	serve := func(c Conn) { // the first connections fail
		if len(ups) < 8 {
			ups = append(ups, time.Now())
			return
		}
		welcome(c)
		ups = append(ups, time.Now())
	}
	runLink(t, serve, nil, func(l *linked) {
		<-time.After(3 * time.Second)
		if err := l.end(); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if grown := ups[7].Sub(ups[6]); grown < linkPauseMax {
			t.Errorf("after 7 failures the pause was %v", grown)
		}
		if short := ups[10].Sub(ups[9]); short > 4*linkPauseMin {
			t.Errorf("after a connection that was up the pause was %v", short)
		}
	})
}

// TestLinkRefused checks that a permanent refusal ends the link immediately, in answer to the Hello or later. Other
// refusals are retried.
func TestLinkRefused(t *testing.T) {
	for _, c := range []struct {
		refusal wire.Refusal
		want    error
	}{
		{wire.Refusal{Reason: "wrong job"}, perdure.ErrRefused},
		{wire.Refusal{Reason: "slot 1 was taken", Fenced: true}, perdure.ErrFenced},
		{wire.Refusal{Reason: "the job is done", JobEnded: true}, perdure.ErrStopped},
		{wire.Refusal{Reason: "both", JobEnded: true, Fenced: true}, perdure.ErrStopped},
	} {
		for _, late := range []bool{false, true} {
			lives := 0
			serve := func(conn Conn) {
				lives++
				if late {
					welcome(conn, "a")
				} else if _, err := ReceiveHello(conn, time.Second, wire.Keys{}); err != nil {
					t.Error(err)
				}
				if err := Refuse(conn, c.refusal); err != nil {
					t.Error(err)
				}
			}
			runLink(t, serve, nil, func(l *linked) {
				err := l.wait()
				if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.refusal.Reason) ||
					strings.Contains(err.Error(), "\n") {
					t.Errorf("%+v, late %v: Run returned %v", c.refusal, late, err)
				}
				want := []string{"up", "a", "down"}
				if !late {
					want = nil
				}
				if lives != 1 || !slices.Equal(l.events, want) {
					t.Errorf("%+v, late %v: %d connections, events %q", c.refusal, late, lives, l.events)
				}
			})
		}
	}
}

// TestLinkGarbage checks that a peer whose answer is not a Welcome is retried, without a call of Up.
func TestLinkGarbage(t *testing.T) {
	garbage := map[string]func(c Conn){
		"another kind": func(c Conn) { say(c, "a") },
		"an invalid refusal": func(c Conn) {
			_ = c.Send(wire.Frame{Header: wire.Header{Kind: wire.KindRefuse}, Payload: []byte("{")})
		},
		"a refusal of nothing": func(c Conn) { _ = c.Send(wire.Frame{Header: wire.Header{Kind: wire.KindRefuse}}) },
		"nothing but the end":  func(Conn) {},
	}
	for what, answer := range garbage {
		lives := 0
		serve := func(c Conn) {
			lives++
			if lives > 2 {
				welcome(c)
				hang(c)
				return
			}
			answer(c)
		}
		runLink(t, serve, nil, func(l *linked) {
			<-time.After(time.Second)
			if err := l.end(); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", what, err)
			}
			if !slices.Equal(l.events, []string{"up", "down"}) || lives != 3 {
				t.Errorf("%s: events %q on %d connections", what, l.events, lives)
			}
		})
	}
}

// TestLinkSilentPeer checks that a peer which accepts a connection and sends nothing is given up after a while.
func TestLinkSilentPeer(t *testing.T) {
	start := time.Time{}
	change := func(l *linked) {
		start = time.Now()
		l.link.ShouldRetry = func(int, error) bool { return false }
	}
	runLink(t, hang, change, func(l *linked) {
		err := <-l.ended
		took := time.Since(start)
		if err == nil || !strings.Contains(err.Error(), peerAddr+" has sent nothing for 5s") || took < linkHandshake ||
			took > linkHandshake+time.Second {
			t.Errorf("a silent peer was given up after %v with %v", took, err)
		}
	})
}

// TestLinkEnds checks that the end of ctx ends Run in every state.
func TestLinkEnds(t *testing.T) {
	for what, serve := range map[string]func(Conn){
		"while it pauses":              nil,
		"while it waits for a welcome": hang,
		"while it is up":               func(c Conn) { welcome(c); hang(c) },
	} {
		runLink(t, serve, nil, func(l *linked) {
			<-time.After(100 * time.Millisecond)
			start := time.Now()
			l.cancel()
			if err := <-l.ended; !errors.Is(err, context.Canceled) || time.Since(start) > time.Millisecond {
				t.Errorf("%s: Run returned %v after %v", what, err, time.Since(start))
			}
		})
	}
	cut := func(l *linked) { l.mem.Cut("self", "peer", false) }
	runLink(t, hang, cut, func(l *linked) {
		<-time.After(100 * time.Millisecond)
		if err := l.end(); !errors.Is(err, context.Canceled) {
			t.Errorf("while it dials: %v", err)
		}
	})
}

// TestGreet checks that Greet accepts only a Hello and does not wait forever.
func TestGreet(t *testing.T) {
	for what, c := range map[string]struct {
		send *wire.Frame
		want string // expected error; "" for a valid Hello
	}{
		"a hello": {&wire.Frame{
			Header:  wire.Header{Kind: wire.KindHello},
			Payload: []byte(`{"role":"worker","index":-1}`),
		}, ""},
		"another kind": {&wire.Frame{Header: wire.Header{Kind: wire.KindTick}}, "instead of a hello"},
		"no JSON": {
			&wire.Frame{Header: wire.Header{Kind: wire.KindHello}, Payload: []byte("{")},
			"malformed payload",
		},
		"the wrong types": {
			&wire.Frame{Header: wire.Header{Kind: wire.KindHello}, Payload: []byte(`{"index":"one"}`)},
			"malformed payload",
		},
		"nothing": {nil, "has sent nothing for 3s"},
	} {
		synctest.Test(t, func(t *testing.T) {
			mem := NewMemory(1, MemoryOptions{})
			l, err := mem.Host("peer").Listen(peerAddr)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			near, err := mem.Host("self").Dial(t.Context(), peerAddr)
			if err != nil {
				t.Fatal(err)
			}
			defer near.Close()
			far, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer far.Close()
			if c.send != nil {
				if err := near.Send(*c.send); err != nil {
					t.Fatal(err)
				}
			}
			start := time.Now()
			hello, err := ReceiveHello(far, 3*time.Second, wire.Keys{})
			if c.want == "" && (err != nil || hello.Role != wire.RoleWorker || hello.Index != -1) {
				t.Errorf("%s: %+v, %v", what, hello, err)
			}
			if c.want != "" && (err == nil || !strings.Contains(fmt.Sprint(err), c.want) ||
				strings.Contains(err.Error(), "\n")) {
				t.Errorf("%s: %v; want %q", what, err, c.want)
			}
			if took := time.Since(start); c.send == nil && took != 3*time.Second {
				t.Errorf("%s: given up after %v", what, took)
			}
		})
	}
}

// TestLinkIsHeard checks that a process whose Hello is confirmed waits for the answer, however long that takes, and
// that it dials again without a confirmation.
func TestLinkIsHeard(t *testing.T) {
	const waits = 20 * linkHandshake
	for sent, want := range map[bool]int{true: 1, false: 20} {
		lives, received := 0, 0
		serve := func(c Conn) {
			lives++
			if _, err := ReceiveHello(c, time.Second, wire.Keys{}); err != nil {
				return
			}
			ctx, cancel := context.WithTimeout(context.Background(), waits)
			defer cancel()
			if sent {
				ConfirmHello(ctx, c)
				_ = c.Send(wire.Control(wire.KindWelcome, wire.Welcome{})) // the test checks whether it arrives
			}
			hang(c)
		}
		change := func(l *linked) { l.link.OnHelloReceived = func() { received++ } }
		runLink(t, serve, change, func(l *linked) {
			<-time.After(waits + time.Second)
			if err := l.end(); !errors.Is(err, context.Canceled) {
				t.Errorf("Run returned %v", err)
			}
			if up := slices.Contains(l.events, "up"); up != sent || lives < want || sent && lives > want ||
				(received > 0) != sent {
				t.Errorf("confirmed: %v; received %d confirmations, welcomed: %v, after %d connections",
					sent, received, up, lives)
			}
		})
	}
}

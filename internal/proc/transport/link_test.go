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

// linked is a Link under test: what happened on it, and the peer that it dials.
type linked struct {
	*testing.T
	mem    *Memory
	link   Link
	events []string // in order
	cancel context.CancelFunc
	ended  chan error
}

const peerAddr = "peer/1"

// runLink runs a link in virtual time against a peer that accepts with serve;
// nil: nobody listens.
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

// end ends the link and returns what Run returned.
func (l *linked) end() error {
	l.cancel()
	return l.wait()
}

// wait waits for Run's end, and for the peer to notice.
func (l *linked) wait() error {
	err := <-l.ended
	<-time.After(time.Second)
	synctest.Wait()
	return err
}

func say(c Conn, payloads ...string) {
	for _, p := range payloads {
		_ = c.Send(wire.Frame{Header: wire.Header{Kind: wire.KindAck}, Payload: []byte(p)}) // the test sees what came
	}
}

// welcome greets a link and says something.
func welcome(c Conn, payloads ...string) {
	if _, err := Greet(c, time.Second, wire.Keys{}); err != nil {
		return
	}
	_ = c.Send(wire.Control(wire.KindWelcome, wire.Welcome{})) // likewise
	say(c, payloads...)
}

// hang waits until the link ends the connection.
func hang(c Conn) {
	var f wire.Frame
	for c.Recv(&f) == nil {
	}
}

// Up comes first, then frames in order, then Down, on every connection.
func TestLinkOrder(t *testing.T) {
	lives := 0
	serve := func(c Conn) {
		lives++
		switch lives {
		case 1:
			welcome(c, "a", "b") // and the connection is closed
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

// Place chooses memory for what comes after the Welcome.
func TestLinkPlace(t *testing.T) {
	serve := func(c Conn) {
		welcome(c, "abc", "de")
		hang(c)
	}
	var room [8]byte
	change := func(l *linked) {
		l.link.Place = func(f *wire.Frame, n int) []byte {
			if f.Kind == wire.KindWelcome {
				t.Error("asked for the place of the answer to Hello")
			}
			return room[:n-1]
		}
		l.link.Frame = func(_ Conn, f *wire.Frame) error {
			if len(f.Body) == 0 || &f.Body[0] != &room[0] {
				t.Error("a payload is not in its place")
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

// What the link says first is its Hello, asked for anew on each connection.
func TestLinkSaysHello(t *testing.T) {
	var said []wire.Hello
	serve := func(c Conn) {
		h, err := Greet(c, time.Second, wire.Keys{})
		if err != nil {
			t.Error(err)
		}
		said = append(said, h)
	}
	change := func(l *linked) {
		n := 0
		l.link.Hello = func() wire.Hello { n++; return wire.Hello{Role: wire.RoleServer, Index: n} }
		l.link.Patient = func(attempts int, _ error) bool { return attempts < 3 }
	}
	runLink(t, serve, change, func(l *linked) {
		_ = l.wait() // its patience is over
		if len(said) != 3 || said[0].Index != 1 || said[2].Index != 3 || said[0].Role != wire.RoleServer {
			t.Errorf("the peer was told %+v", said)
		}
	})
}

// The pauses between attempts grow to a bound, are short again after a
// connection that was up, and end when patience does.
func TestLinkPauses(t *testing.T) {
	var tried []time.Time
	change := func(l *linked) {
		l.link.Patient = func(attempts int, err error) bool {
			tried = append(tried, time.Now())
			if attempts != len(tried) || err == nil {
				t.Errorf("attempt %d is called number %d, with %v", len(tried), attempts, err)
			}
			return attempts < 12
		}
	}
	runLink(t, nil, change, func(l *linked) {
		if err := l.wait(); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("at the end of patience Run returned %v", err)
		}
		if len(tried) != 12 {
			t.Fatalf("%d attempts, want 12", len(tried))
		}
		want := linkPauseLeast
		for i := range tried[1:] {
			if pause := tried[i+1].Sub(tried[i]); pause < want || pause > want+2*time.Millisecond { // and the dial
				t.Errorf("pause %d was %v, want %v", i, pause, want)
			}
			want = min(2*want, linkPauseMost)
		}
	})

	var ups []time.Time
	serve := func(c Conn) { // the first connections come to nothing
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
		if grown := ups[7].Sub(ups[6]); grown < linkPauseMost {
			t.Errorf("after 7 failures the pause was %v", grown)
		}
		if short := ups[10].Sub(ups[9]); short > 4*linkPauseLeast {
			t.Errorf("after a connection that was up the pause was %v", short)
		}
	})
}

// What a peer says for good ends the link at once, in answer to the Hello or
// later; anything else is tried again.
func TestLinkRefused(t *testing.T) {
	for _, c := range []struct {
		refusal wire.Refusal
		want    error
	}{
		{wire.Refusal{Reason: "wrong job"}, perdure.ErrRefused},
		{wire.Refusal{Reason: "slot 1 was taken", Fenced: true}, perdure.ErrFenced},
		{wire.Refusal{Reason: "the job is done", Over: true}, perdure.ErrStopped},
		{wire.Refusal{Reason: "both", Over: true, Fenced: true}, perdure.ErrStopped},
	} {
		for _, late := range []bool{false, true} {
			lives := 0
			serve := func(conn Conn) {
				lives++
				if late {
					welcome(conn, "a")
				} else if _, err := Greet(conn, time.Second, wire.Keys{}); err != nil {
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

// A peer that answers with anything but a Welcome is tried again, and Up is not
// called.
func TestLinkGarbage(t *testing.T) {
	garbage := map[string]func(c Conn){
		"another kind": func(c Conn) { say(c, "a") },
		"a refusal that lies": func(c Conn) {
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

// A peer that accepts and says nothing is given up after a while.
func TestLinkSilentPeer(t *testing.T) {
	start := time.Time{}
	change := func(l *linked) {
		start = time.Now()
		l.link.Patient = func(int, error) bool { return false }
	}
	runLink(t, hang, change, func(l *linked) {
		err := <-l.ended
		took := time.Since(start)
		if err == nil || !strings.Contains(err.Error(), peerAddr+" has said nothing for 5s") || took < linkHandshake ||
			took > linkHandshake+time.Second {
			t.Errorf("a silent peer was given up after %v with %v", took, err)
		}
	})
}

// The end of ctx ends Run in whatever it is at.
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

// Greet takes a Hello, and nothing else, and not for ever.
func TestGreet(t *testing.T) {
	for what, c := range map[string]struct {
		send *wire.Frame
		want string // "": it is a hello
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
		"nothing": {nil, "has said nothing for 3s"},
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
			hello, err := Greet(far, 3*time.Second, wire.Keys{})
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

// A process that is told that its Hello was heard waits for the answer, however long; one
// that is told nothing dials again.
func TestLinkIsHeard(t *testing.T) {
	const waits = 20 * linkHandshake
	for told, want := range map[bool]int{true: 1, false: 20} {
		lives, heard := 0, 0
		serve := func(c Conn) {
			lives++
			if _, err := Greet(c, time.Second, wire.Keys{}); err != nil {
				return
			}
			ctx, cancel := context.WithTimeout(context.Background(), waits)
			defer cancel()
			if told {
				Reassure(ctx, c)
				_ = c.Send(wire.Control(wire.KindWelcome, wire.Welcome{})) // the test sees whether it came
			}
			hang(c)
		}
		change := func(l *linked) { l.link.Heard = func() { heard++ } }
		runLink(t, serve, change, func(l *linked) {
			<-time.After(waits + time.Second)
			if err := l.end(); !errors.Is(err, context.Canceled) {
				t.Errorf("Run returned %v", err)
			}
			if up := slices.Contains(l.events, "up"); up != told || lives < want || told && lives > want ||
				(heard > 0) != told {
				t.Errorf("told that it was heard: %v; it heard so %d times, was welcomed: %v, after %d connections",
					told, heard, up, lives)
			}
		})
	}
}

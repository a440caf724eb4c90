package transport

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/keys"
)

// What a Link's peer has not said, or not yet.
var (
	ErrSilent = errors.New("has said nothing") // it listens, and does not answer
	ErrNotNow = errors.New("not now")          // it turns this process away, which may ask again
)

// Link keeps a connection to one peer: it dials, says Hello, hands every frame
// to its user, and when the connection breaks it begins again, with a growing
// pause. Of several addresses (Addresses) it takes the next one after each try that fails. Its functions are
// called from Run's goroutine, one at a time.
type Link struct {
	Network Network
	Addr    string // or several, with commas between them, of which one is the peer's
	// Wants is whom the peer's certificate must be of, where connections are private.
	Wants   keys.Role
	Hello   func() wire.Hello                  // what to say on each connection
	Up      func(c Conn, welcome *wire.Frame)  // the peer has answered with Welcome
	Frame   func(c Conn, f *wire.Frame) error  // a frame came; an error ends the connection
	Down    func(c Conn, err error)            // a connection that was up has broken
	Patient func(attempts int, err error) bool // whether to try again; nil: always
	// Heard, unless nil, is called when the peer says (Echo) that it has heard Hello and has no
	// answer yet.
	Heard func()
	// Place, unless nil, chooses memory for payloads, as in Conn.RecvInto; not for
	// the answer to Hello.
	Place func(f *wire.Frame, n int) []byte
	// Wait, unless nil, is called whenever the next frame has not come yet, as in
	// Conn.OnWait; not before the peer has answered with Welcome.
	Wait func()
	// Stranger, unless nil, is told when Hello is refused, and the link tries again later. It is for
	// links to who may die: another process may listen at his address by then, of another job even,
	// and what that one says of this process is not for good.
	Stranger func(err error)
}

const (
	linkPauseLeast  = 5 * time.Millisecond
	linkPauseMost   = 250 * time.Millisecond
	linkHandshake   = 5 * time.Second
	linkDialTimeout = 2 * time.Second
	linkStranger    = time.Second // until who refused Hello is asked again
)

// Run keeps the link until ctx ends or the peer refuses this process for good
// (perdure.ErrRefused, but see Stranger; perdure.ErrFenced) or says that the job is
// over (perdure.ErrStopped).
func (l *Link) Run(ctx context.Context) error {
	pause, addrs := linkPauseLeast, Addresses(l.Addr)
	for at, attempts := 0, 1; ; attempts, addrs = attempts+1, Addresses(l.Addr) { // in a file they may have changed
		up, err := l.once(ctx, addrs[at%len(addrs)])
		if ctx.Err() != nil {
			return ctx.Err()
		}
		stranger := !up && l.Stranger != nil && errors.Is(err, perdure.ErrRefused)
		switch {
		case stranger:
			l.Stranger(err)
		case errors.Is(err, perdure.ErrRefused), errors.Is(err, perdure.ErrFenced), errors.Is(err, perdure.ErrStopped):
			return err
		}
		if up {
			pause, attempts = linkPauseLeast, 0
		} else {
			at = (at + 1) % len(addrs)
		}
		if l.Patient != nil && !l.Patient(attempts, err) {
			return err
		}
		if stranger {
			pause = linkStranger
		} else if attempts%len(addrs) != 0 {
			continue // to one that was not tried since: nobody waits for it
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
		pause = min(2*pause, linkPauseMost)
	}
}

// once dials and serves one connection until it breaks.
func (l *Link) once(ctx context.Context, addr string) (up bool, err error) {
	dialCtx, cancel := context.WithTimeout(ctx, linkDialTimeout)
	c, err := l.Network.Dial(dialCtx, addr)
	cancel()
	if err != nil {
		return false, err
	}
	defer c.Close()
	if err := isOf(c, l.Wants); err != nil {
		return false, err
	}
	defer context.AfterFunc(ctx, func() { c.Close() })()

	var f wire.Frame
	if err := handshake(c, l.Hello(), &f, l.Heard); err != nil {
		return false, err
	}
	l.Up(c, &f)
	if l.Wait != nil {
		c.OnWait(l.Wait)
	}
	for err == nil {
		if err = c.RecvInto(&f, l.Place); err == nil && f.Kind == wire.KindRefuse {
			err = refusal(&f)
		} else if err == nil {
			err = l.Frame(c, &f)
		}
	}
	l.Down(c, err)
	return true, err
}

// isOf refuses a peer whose certificate is not of the role that is called.
func isOf(c Conn, wants keys.Role) error {
	if who := c.Who(); who.Role != "" && who.Role != wants {
		return fmt.Errorf("%w: %s has the certificate of a %s, and a %s was called", perdure.ErrRefused, c.Peer(),
			who.Role, wants)
	}
	return nil
}

// Call connects to a server once, says hello, and returns the connection when the server
// has answered with Welcome.
func Call(ctx context.Context, network Network, addr string, hello wire.Hello) (Conn, error) {
	dialCtx, cancel := context.WithTimeout(ctx, linkDialTimeout)
	defer cancel()
	c, err := network.Dial(dialCtx, addr)
	if err != nil {
		return nil, err
	}
	var f wire.Frame
	if err = isOf(c, keys.Server); err == nil {
		err = handshake(c, hello, &f, nil)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// handshake says hello and waits for the answer, for as long as the peer says that it has
// heard it.
func handshake(c Conn, hello wire.Hello, f *wire.Frame, heard func()) error {
	err := talkWithin(c, linkHandshake, func(goOn func()) error {
		err := c.Send(wire.Control(wire.KindHello, hello))
		for err == nil {
			if err = c.Recv(f); err != nil || f.Kind != wire.KindEcho {
				break
			}
			if goOn(); heard != nil {
				heard()
			}
		}
		return err
	})
	switch {
	case errors.Is(err, wire.ErrVersion):
		return fmt.Errorf("%w: %w", perdure.ErrRefused, err)
	case err != nil || f.Kind == wire.KindWelcome:
		return err
	case f.Kind == wire.KindRefuse:
		return refusal(f)
	}
	return fmt.Errorf("transport: %s answered a hello with a frame of kind %d", c.Peer(), f.Kind)
}

// talkWithin closes a connection on which talk takes longer than the given time, since it
// began or said that it goes on.
func talkWithin(c Conn, patience time.Duration, talk func(goOn func()) error) error {
	timer := time.AfterFunc(patience, func() { c.Close() })
	err := talk(func() { timer.Reset(patience) })
	if !timer.Stop() && errors.Is(err, ErrClosed) {
		return fmt.Errorf("transport: %s %w for %v", c.Peer(), ErrSilent, patience)
	}
	return err
}

// refusal turns the peer's reason into an error.
func refusal(f *wire.Frame) error {
	var r wire.Refusal
	if err := wire.ParseControl(f, &r); err != nil {
		return err
	}
	if r.Again {
		return fmt.Errorf("transport: %w: %s", ErrNotNow, r.Reason)
	}
	if r.Done {
		return perdure.ErrDone
	}
	if r.Failed {
		return fmt.Errorf("%w: %s", perdure.ErrFailed, r.Reason)
	}
	if r.Over {
		return fmt.Errorf("%w: %s", perdure.ErrStopped, r.Reason)
	}
	if r.Fenced {
		return fmt.Errorf("%w: %s", perdure.ErrFenced, r.Reason)
	}
	return fmt.Errorf("%w: %s", perdure.ErrRefused, r.Reason)
}

// Greet waits for the Hello of a connection that was accepted, for at most the
// given time: a peer that says nothing is not kept. One that does not show the run's
// secret is told so and turned away, before anything else of its Hello is looked at.
func Greet(c Conn, patience time.Duration, secrets wire.Keys) (hello wire.Hello, err error) {
	var f wire.Frame
	short := func(_ *wire.Frame, n int) []byte {
		if n > wire.MaxHello {
			return tooLong[:n+1] // more than there is: refused before memory is taken for it
		}
		return nil
	}
	if err := talkWithin(c, patience, func(func()) error { return c.RecvInto(&f, short) }); err != nil {
		return hello, err
	}
	if f.Kind != wire.KindHello {
		return hello, fmt.Errorf("transport: %s began with a frame of kind %d instead of a hello", c.Peer(), f.Kind)
	}
	if err := wire.ParseControl(&f, &hello); err != nil {
		return hello, err
	}
	if err = mayBe(c.Who(), hello.Role); err == nil {
		err = secrets.Check(&hello)
	}
	if err == nil {
		err = hello.Validate()
	}
	if err != nil {
		_ = Refuse(c, wire.Refusal{Reason: err.Error()}) // it is being closed anyway
	}
	return hello, err
}

// allowed is whom the holder of a certificate may say to be.
var allowed = map[keys.Role][]wire.Role{
	keys.Coordinator: {wire.RoleSupervisor, wire.RoleObserver}, // one that looks after its job itself
	keys.Server:      {wire.RoleServer, wire.RoleObserver},     // it asks what the job is, before it joins
	keys.Worker:      {wire.RoleWorker, wire.RoleObserver},
	keys.Operator:    {wire.RoleSupervisor, wire.RoleObserver},
}

// mayBe turns away who says to be what the certificate does not allow.
func mayBe(who keys.Identity, role wire.Role) error {
	if who.Role == "" || slices.Contains(allowed[who.Role], role) {
		return nil
	}
	return fmt.Errorf("the certificate of %s does not let its holder be a %s", who, role.Known())
}

// tooLong is never read or written, so that it takes no memory.
var tooLong [wire.MaxPayload + 1]byte

// HeardEvery is how often a process that has no answer to a Hello yet says that it has heard it.
const HeardEvery = linkHandshake / 5

// Reassure says, until ctx ends, that a Hello was heard that is still to be answered: it was
// greeted, so its sender has shown the run's secret.
func Reassure(ctx context.Context, c Conn) {
	tick := time.NewTicker(HeardEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if c.TrySend(wire.Frame{Header: wire.Header{Kind: wire.KindEcho, Slot: perdure.NoSlot, Shard: -1}}) != nil {
				return // a broken connection says it itself
			}
		}
	}
}

// Refuse tells a peer why it is turned away, if it listens. The caller closes
// the connection.
func Refuse(c Conn, r wire.Refusal) error {
	return c.TrySend(wire.Control(wire.KindRefuse, r))
}

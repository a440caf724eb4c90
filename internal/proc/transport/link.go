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

// Errors of a peer that does not answer, or not yet.
var (
	ErrSilent = errors.New("has sent nothing") // the peer accepts connections but does not answer
	ErrNotNow = errors.New("not now")          // the peer rejects this process, which may retry
)

// Link keeps a connection to one peer. It dials, sends a Hello, and passes every frame to its user. When the connection
// breaks, it starts again after a growing pause. If there are several addresses (see Addresses), it tries the next one
// after each failure. Its callbacks are called from Run's goroutine, one at a time.
type Link struct {
	Network Network
	Addr    string // one or several addresses, separated by commas; one is the peer's
	// PeerRole is the required role of the peer's certificate, if connections use keys.
	PeerRole    keys.Role
	Hello       func() wire.Hello                  // returns the Hello for each connection
	Up          func(c Conn, welcome *wire.Frame)  // the peer has answered with a Welcome
	Frame       func(c Conn, f *wire.Frame) error  // a frame was received; an error ends the connection
	Down        func(c Conn, err error)            // a welcomed connection has broken
	ShouldRetry func(attempts int, err error) bool // reports whether to retry; nil: always
	// OnHelloReceived, unless nil, is called when the peer confirms with an Echo that it has received the Hello but
	// cannot answer yet.
	OnHelloReceived func()
	// PayloadBuffer, unless nil, returns the memory for payloads, as in Conn.RecvInto. It is not called for the answer
	// to the Hello.
	PayloadBuffer func(f *wire.Frame, n int) []byte
	// OnWait, unless nil, is called before waiting for a frame, as in Conn.OnWait. It is not called before the Welcome.
	OnWait func()
	// OnRefused, unless nil, is called when the Hello is refused, and the link retries later. It is meant for links to
	// processes that may die: another process, even of another job, may then listen at the same address, and its
	// refusal is not permanent.
	OnRefused func(err error)
}

const (
	linkPauseMin     = 5 * time.Millisecond
	linkPauseMax     = 250 * time.Millisecond
	linkHandshake    = 5 * time.Second
	linkDialTimeout  = 2 * time.Second
	linkRefusedPause = time.Second // pause after a refused Hello
)

// Run keeps the link until ctx ends, the peer refuses this process permanently (perdure.ErrRefused, but see OnRefused;
// perdure.ErrFenced), or the job is over (perdure.ErrStopped).
func (l *Link) Run(ctx context.Context) error {
	pause, addrs := linkPauseMin, ParseAddresses(l.Addr)
	for at, attempts := 0, 1; ; attempts, addrs = attempts+1, ParseAddresses(l.Addr) { // a file may have changed
		up, err := l.serveOnce(ctx, addrs[at%len(addrs)])
		if ctx.Err() != nil {
			return ctx.Err()
		}
		stranger := !up && l.OnRefused != nil && errors.Is(err, perdure.ErrRefused)
		switch {
		case stranger:
			l.OnRefused(err)
		case errors.Is(err, perdure.ErrRefused), errors.Is(err, perdure.ErrFenced), errors.Is(err, perdure.ErrStopped):
			return err
		}
		if up {
			pause, attempts = linkPauseMin, 0
		} else {
			at = (at + 1) % len(addrs)
		}
		if l.ShouldRetry != nil && !l.ShouldRetry(attempts, err) {
			return err
		}
		if stranger {
			pause = linkRefusedPause
		} else if attempts%len(addrs) != 0 {
			continue // try the next address without a pause
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
		pause = min(2*pause, linkPauseMax)
	}
}

// serveOnce dials and serves one connection until it breaks.
func (l *Link) serveOnce(ctx context.Context, addr string) (up bool, err error) {
	dialCtx, cancel := context.WithTimeout(ctx, linkDialTimeout)
	c, err := l.Network.Dial(dialCtx, addr)
	cancel()
	if err != nil {
		return false, err
	}
	defer c.Close()
	if err := checkRole(c, l.PeerRole); err != nil {
		return false, err
	}
	defer context.AfterFunc(ctx, func() { c.Close() })()

	var f wire.Frame
	if err := handshake(c, l.Hello(), &f, l.OnHelloReceived); err != nil {
		return false, err
	}
	l.Up(c, &f)
	if l.OnWait != nil {
		c.OnWait(l.OnWait)
	}
	for err == nil {
		if err = c.RecvInto(&f, l.PayloadBuffer); err == nil && f.Kind == wire.KindRefuse {
			err = refusalError(&f)
		} else if err == nil {
			err = l.Frame(c, &f)
		}
	}
	l.Down(c, err)
	return true, err
}

// checkRole returns an error if the peer's certificate has another role than the expected one.
func checkRole(c Conn, wants keys.Role) error {
	if who := c.PeerIdentity(); who.Role != "" && who.Role != wants {
		return fmt.Errorf("%w: %s has the certificate of a %s, but a %s is expected", perdure.ErrRefused, c.Peer(),
			who.Role, wants)
	}
	return nil
}

// DialServer connects to a server once and returns the connection after the server's Welcome.
func DialServer(ctx context.Context, network Network, addr string, hello wire.Hello) (Conn, error) {
	dialCtx, cancel := context.WithTimeout(ctx, linkDialTimeout)
	defer cancel()
	c, err := network.Dial(dialCtx, addr)
	if err != nil {
		return nil, err
	}
	var f wire.Frame
	if err = checkRole(c, keys.Server); err == nil {
		err = handshake(c, hello, &f, nil)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// handshake sends a Hello and waits for the answer, as long as the peer confirms that it has received the Hello.
func handshake(c Conn, hello wire.Hello, f *wire.Frame, received func()) error {
	err := withTimeout(c, linkHandshake, func(resume func()) error {
		err := c.Send(wire.Control(wire.KindHello, hello))
		for err == nil {
			if err = c.Recv(f); err != nil || f.Kind != wire.KindEcho {
				break
			}
			if resume(); received != nil {
				received()
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
		return refusalError(f)
	}
	return fmt.Errorf("transport: %s answered a hello with a frame of kind %d", c.Peer(), f.Kind)
}

// withTimeout runs talk and closes the connection if talk takes longer than patience. talk may restart that time.
func withTimeout(c Conn, patience time.Duration, talk func(resume func()) error) error {
	timer := time.AfterFunc(patience, func() { c.Close() })
	err := talk(func() { timer.Reset(patience) })
	if !timer.Stop() && errors.Is(err, ErrClosed) {
		return fmt.Errorf("transport: %s %w for %v", c.Peer(), ErrSilent, patience)
	}
	return err
}

// refusalError converts a Refuse frame to an error.
func refusalError(f *wire.Frame) error {
	var r wire.Refusal
	if err := wire.ParseControl(f, &r); err != nil {
		return err
	}
	if r.Temporary {
		return fmt.Errorf("transport: %w: %s", ErrNotNow, r.Reason)
	}
	if r.JobDone {
		return perdure.ErrDone
	}
	if r.JobFailed {
		return fmt.Errorf("%w: %s", perdure.ErrFailed, r.Reason)
	}
	if r.JobEnded {
		return fmt.Errorf("%w: %s", perdure.ErrStopped, r.Reason)
	}
	if r.Fenced {
		return fmt.Errorf("%w: %s", perdure.ErrFenced, r.Reason)
	}
	return fmt.Errorf("%w: %s", perdure.ErrRefused, r.Reason)
}

// ReceiveHello waits at most the given time for the Hello of an accepted connection. A peer that does not present the
// run's secret is refused before the rest of its Hello is checked.
func ReceiveHello(c Conn, patience time.Duration, secrets wire.Keys) (hello wire.Hello, err error) {
	var f wire.Frame
	short := func(_ *wire.Frame, n int) []byte {
		if n > wire.MaxHelloBytes {
			return tooLong[:n+1] // longer than allowed: rejected before memory is allocated
		}
		return nil
	}
	if err := withTimeout(c, patience, func(func()) error { return c.RecvInto(&f, short) }); err != nil {
		return hello, err
	}
	if f.Kind != wire.KindHello {
		return hello, fmt.Errorf("transport: %s started with a frame of kind %d instead of a hello", c.Peer(), f.Kind)
	}
	if err := wire.ParseControl(&f, &hello); err != nil {
		return hello, err
	}
	if err = checkClaim(c.PeerIdentity(), hello.Role); err == nil {
		err = secrets.Check(&hello)
	}
	if err == nil {
		err = hello.Validate()
	}
	if err != nil {
		_ = Refuse(c, wire.Refusal{Reason: err.Error()}) // the connection is closed anyway
	}
	return hello, err
}

// claimableRoles lists the roles that the holder of a certificate may claim.
var claimableRoles = map[keys.Role][]wire.Role{
	keys.Coordinator: {wire.RoleSupervisor, wire.RoleObserver}, // a supervisor that is its job's coordinator
	keys.Server:      {wire.RoleServer, wire.RoleObserver},     // a server first asks for the job as an observer
	keys.Worker:      {wire.RoleWorker, wire.RoleObserver},
	keys.Operator:    {wire.RoleSupervisor, wire.RoleObserver},
}

// checkClaim returns an error if the certificate does not permit the claimed role.
func checkClaim(who keys.Identity, role wire.Role) error {
	if who.Role == "" || slices.Contains(claimableRoles[who.Role], role) {
		return nil
	}
	return fmt.Errorf("the certificate of %s does not allow the role %s", who, role.Printable())
}

// tooLong is never read or written, so it takes no memory.
var tooLong [wire.MaxPayload + 1]byte

// HelloConfirmInterval is how often a process confirms a Hello that it cannot answer yet.
const HelloConfirmInterval = linkHandshake / 5

// ConfirmHello confirms at intervals that a Hello was received, until ctx ends. The sender has already presented the
// run's secret in ReceiveHello.
func ConfirmHello(ctx context.Context, c Conn) {
	tick := time.NewTicker(HelloConfirmInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if c.TrySend(wire.Frame{Header: wire.Header{Kind: wire.KindEcho, Slot: perdure.NoSlot, Shard: -1}}) != nil {
				return // the broken connection reports it
			}
		}
	}
}

// Refuse sends a peer the reason why it is refused. The caller closes the connection.
func Refuse(c Conn, r wire.Refusal) error {
	return c.TrySend(wire.Control(wire.KindRefuse, r))
}

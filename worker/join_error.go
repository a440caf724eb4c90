package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// If a coordinator does not answer, the user needs to know what to check. joinError adds that advice to the error of a
// process that cannot join. joinWatch logs it for a process that has joined and continues without the coordinator.
// Errors of the operating system, such as "connection refused", say what happened but seldom what to do.

// joinHints lists what to check, by the first cause that an error has.
var joinHints = []struct {
	is     func(err error) bool
	advice string
}{
	{
		oneOf(wire.ErrMagic),
		"the port belongs to another program or to another process of the job: check the port; perdure up prints " +
			"the coordinator's address, and perdure coordinator listens on --listen",
	},
	{
		oneOf(transport.ErrSilent),
		"a process listens there but does not answer: check that the coordinator is running and not suspended, and " +
			"that the port is correct",
	},
	{
		oneOf(syscall.ECONNREFUSED),
		"no process listens there: check that the coordinator is running, and that this is its address and port",
	},
	{
		as[*net.DNSError],
		"this machine cannot resolve the host name: check the address",
	},
	{
		timedOut,
		"no reply: check the address, that the machine is up, and that no firewall blocks the connection",
	},
	{
		oneOf(syscall.EHOSTUNREACH, syscall.ENETUNREACH),
		"no route to the address: check the address, and the network of both machines",
	},
	{
		oneOf(io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE, transport.ErrClosed),
		"the process there closed the connection: check that the job is still running, and that the port is its " +
			"coordinator's",
	},
}

// answers matches errors that the coordinator itself sent. They already explain themselves.
var answers = oneOf(perdure.ErrRefused, perdure.ErrFenced, perdure.ErrStopped, perdure.ErrUsage, transport.ErrNotNow)

// joinError adds advice to the error with which a connection to the coordinator was given up. It does not change errors
// that the coordinator itself sent, nor errors after the end of ctx. addr is the coordinator's address, or @ and a file
// that contains it.
func joinError(ctx context.Context, addr string, err error) error {
	if err == nil || ctx.Err() != nil || answers(err) {
		return err
	}
	if strings.HasPrefix(addr, "@") {
		if bad := transport.CheckAddress("the coordinator's address", addr); bad != nil {
			return bad
		}
	}
	for _, a := range joinHints {
		if a.is(err) {
			return fmt.Errorf("%w; %s", err, a.advice)
		}
	}
	return err
}

// oneOf returns a function that reports whether an error is one of the given errors.
func oneOf(of ...error) func(error) bool {
	return func(err error) bool {
		for _, e := range of {
			if errors.Is(err, e) {
				return true
			}
		}
		return false
	}
}

func as[E error](err error) bool {
	var e E
	return errors.As(err, &e)
}

func timedOut(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

const (
	// first is the time without the coordinator after which an error is logged. If a standby coordinator exists, it
	// leads within seconds.
	first = 10 * time.Second
	// again is the interval between further log lines.
	again = time.Minute
)

// joinWatch logs that the coordinator remains unreachable. It logs errors, because the operator must act and nothing
// else in the job may show the problem. It is not safe for concurrent use.
type joinWatch struct {
	Log    *slog.Logger
	Addr   string
	since  time.Time // when the connection was lost; zero: it is up
	next   time.Time // when to log
	logged bool
}

// Down records that the connection has broken.
func (w *joinWatch) Down() {
	w.since, w.logged = time.Now(), false
	w.next = w.since.Add(first)
}

// AttemptFailed records a failed attempt to reconnect, and why it failed.
func (w *joinWatch) AttemptFailed(err error) {
	now := time.Now()
	if w.since.IsZero() || now.Before(w.next) {
		return
	}
	w.logged, w.next = true, now.Add(again)
	why := joinError(context.Background(), w.Addr, err)
	w.Log.Error("the coordinator does not answer; work continues until a process dies, joins or ends: restart the "+
		"coordinator, or end this program if the job is over", "coordinator", w.Addr, "for", w.outage(now), "err", why)
}

// Up records that the connection is up.
func (w *joinWatch) Up() {
	if w.logged {
		w.Log.Error("the coordinator answers again", "coordinator", w.Addr, "after", w.outage(time.Now()))
	}
	w.since, w.logged = time.Time{}, false
}

func (w *joinWatch) outage(now time.Time) time.Duration { return now.Sub(w.since).Round(time.Second) }

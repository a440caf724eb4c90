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

// If a coordinator does not answer, people need to know what to check. joinError adds that to the error of a process
// that cannot join; joinWatch logs it for a process that had joined and continues without the coordinator. The
// operating system's own words, such as "connection refused", say what happened, and seldom what to do.

// advices are what to look at, by the first cause that an error has.
var advices = []struct {
	is     func(err error) bool
	advice string
}{
	{
		oneOf(wire.ErrMagic),
		"what listens there is another program, or another port of the job: check the port; perdure up prints the " +
			"coordinator's, and of perdure coordinator it is that of --listen",
	},
	{
		oneOf(transport.ErrSilent),
		"somebody listens there, and does not answer: check that the coordinator runs, and is not stopped, and that " +
			"the port is its own",
	},
	{
		oneOf(syscall.ECONNREFUSED),
		"nobody listens there: check that the coordinator runs, and that this is its address and port",
	},
	{
		as[*net.DNSError],
		"this machine cannot find that name: check the address",
	},
	{
		timedOut,
		"nothing comes back: check the address, that its machine runs, and that no firewall is between",
	},
	{
		oneOf(syscall.EHOSTUNREACH, syscall.ENETUNREACH),
		"no way leads there: check the address, and the network of both machines",
	},
	{
		oneOf(io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE, transport.ErrClosed),
		"who listens there hangs up: check that the job goes on, and that the port is its coordinator's",
	},
}

// answers are what a coordinator says itself, in words of its own.
var answers = oneOf(perdure.ErrRefused, perdure.ErrFenced, perdure.ErrStopped, perdure.ErrUsage, transport.ErrNotNow)

// joinError adds to an error with which a link to a coordinator was given up what to look at. What the coordinator
// itself has said stays as it is, and so does the end of ctx, in which it was looked for. Addr is where, which may be a
// file.
func joinError(ctx context.Context, addr string, err error) error {
	if err == nil || ctx.Err() != nil || answers(err) {
		return err
	}
	if strings.HasPrefix(addr, "@") {
		if bad := transport.CheckAddress("the coordinator's address", addr); bad != nil {
			return bad
		}
	}
	for _, a := range advices {
		if a.is(err) {
			return fmt.Errorf("%w; %s", err, a.advice)
		}
	}
	return err
}

// oneOf returns whether an error is one of some.
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
	// first is after how long without the coordinator people are told. The next one leads within seconds, where there
	// is one.
	first = 10 * time.Second
	// again is after how long they are told again.
	again = time.Minute
)

// joinWatch tells a log of a coordinator that stays away: at the level of errors, since somebody must look after it.
// Nothing of the job may show it meanwhile. It is for one goroutine.
type joinWatch struct {
	Log   *slog.Logger
	Addr  string
	since time.Time // when it was lost; zero: it is there
	next  time.Time // when people are told
	told  bool
}

// Lost notes that the connection has broken.
func (w *joinWatch) Lost() {
	w.since, w.told = time.Now(), false
	w.next = w.since.Add(first)
}

// Tried notes that there is still none, and why.
func (w *joinWatch) Tried(err error) {
	now := time.Now()
	if w.since.IsZero() || now.Before(w.next) {
		return
	}
	w.told, w.next = true, now.Add(again)
	why := joinError(context.Background(), w.Addr, err)
	w.Log.Error("the coordinator does not answer; work goes on while nobody dies, joins or ends: start it again, or "+
		"end this program if the job is over", "coordinator", w.Addr, "for", w.away(now), "err", why)
}

// Found notes that there is a connection.
func (w *joinWatch) Found() {
	if w.told {
		w.Log.Error("the coordinator answers again", "coordinator", w.Addr, "after", w.away(time.Now()))
	}
	w.since, w.told = time.Time{}, false
}

func (w *joinWatch) away(now time.Time) time.Duration { return now.Sub(w.since).Round(time.Second) }

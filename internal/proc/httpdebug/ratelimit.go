package httpdebug

import (
	"context"
	"log"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

// rateWindow is the minimum interval between two lines of the same kind.
const rateWindow = time.Second

// maxKinds limits how many kinds of lines are distinguished within a window.
const maxKinds = 256

// kindAttrs are the attributes that, in addition to the message, distinguish kinds of lines. Their values have been
// validated, so a peer that has not presented keys cannot choose them.
var kindAttrs = []string{"who", "call", "peer_role", "index", "slot"}

// RateLimited returns a logger for lines that a peer can trigger as often as it likes. It writes the first line of each
// kind immediately, and then at most one per second: the latest, with the attribute "more" counting the lines skipped
// before it. A kind is a message plus the values of kindAttrs. Loggers that NewLog did not create, such as those of
// tests, are returned unchanged.
func RateLimited(to *slog.Logger) *slog.Logger {
	if to != nil {
		if n, ok := to.Handler().(identityHandler); ok {
			return slog.New(n.RateLimited())
		}
	}
	return to
}

// RateLimited returns the handler that the function RateLimited uses.
func (n identityHandler) RateLimited() slog.Handler {
	return rateLimitHandler{n, "", &kinds{open: map[string]*kind{}}}
}

// ErrorLog returns a rate-limited logger for the connection errors of an HTTP server.
func ErrorLog(to *slog.Logger) *log.Logger { return log.New(httpErrors{RateLimited(to)}, "", 0) }

type httpErrors struct{ to *slog.Logger }

func (e httpErrors) Write(line []byte) (int, error) {
	e.to.Warn("an HTTP connection failed", "err", strings.TrimSpace(string(line)))
	return len(line), nil
}

// rateLimitHandler is a handler that limits the rate of each kind of line.
type rateLimitHandler struct {
	slog.Handler
	prefix string // the part of the kind that comes from the logger's own attributes
	kinds  *kinds
}

// kinds holds the kinds of lines written within the last window.
type kinds struct {
	mu   sync.Mutex // guards open and its entries
	open map[string]*kind
}

// kind is the state of one kind within its window.
type kind struct {
	skipped int
	last    slog.Record // the latest skipped line
	to      slog.Handler
}

// Handle implements slog.Handler.
func (s rateLimitHandler) Handle(ctx context.Context, r slog.Record) error {
	name := r.Level.String() + " " + r.Message + s.prefix
	r.Attrs(func(a slog.Attr) bool {
		name += kindOf(a)
		return true
	})
	k := s.kinds
	k.mu.Lock()
	defer k.mu.Unlock()
	one := k.open[name]
	if one == nil && len(k.open) >= maxKinds {
		name = "" // all further kinds share one entry
		one = k.open[name]
	}
	if one != nil {
		one.skipped++
		one.last, one.to = r.Clone(), s.Handler
		return nil
	}
	k.open[name] = &kind{}
	time.AfterFunc(rateWindow, func() { k.end(name) })
	return s.Handler.Handle(ctx, r)
}

// end closes the window of a kind. If lines were skipped, it writes the latest and opens another window.
func (k *kinds) end(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	one := k.open[name]
	if one.skipped == 0 {
		delete(k.open, name)
		return
	}
	r, to := one.last, one.to
	if one.skipped > 1 {
		r.AddAttrs(slog.Int("more", one.skipped-1))
	}
	*one = kind{}
	time.AfterFunc(rateWindow, func() { k.end(name) })
	_ = to.Handle(context.Background(), r) // a logger cannot report its own failure
}

func kindOf(a slog.Attr) string {
	if slices.Contains(kindAttrs, a.Key) {
		return " " + a.Key + "=" + a.Value.String()
	}
	return ""
}

// WithAttrs implements slog.Handler.
func (s rateLimitHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	for _, a := range attrs {
		s.prefix += kindOf(a)
	}
	s.Handler = s.Handler.WithAttrs(attrs)
	return s
}

// WithGroup implements slog.Handler.
func (s rateLimitHandler) WithGroup(name string) slog.Handler {
	s.prefix += " " + name
	s.Handler = s.Handler.WithGroup(name)
	return s
}

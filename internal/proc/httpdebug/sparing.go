package httpdebug

import (
	"context"
	"log"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// sparingWindow is how often one kind of line is written at most.
const sparingWindow = time.Second

// mostKinds bounds how many kinds of lines are distinguished within a window.
const mostKinds = 256

// kindAttrs are the attributes that distinguish kinds of lines, in addition to the message. All of them have been
// checked: a peer that has shown no keys cannot choose their values.
var kindAttrs = []string{"who", "call", "peer_role", "index", "slot"}

// Sparing returns a logger for lines that a peer can cause as often as it likes. Of each kind of line it writes the
// first immediately, and then at most one in each second: the latest, with the attribute more, which counts those that
// were left out before it. A kind is a message, and the values of kindAttrs. A logger that NewLog has not made, such as
// a test's, is returned as it is.
func Sparing(to *slog.Logger) *slog.Logger {
	if to != nil {
		if n, ok := to.Handler().(named); ok {
			return slog.New(n.Sparing())
		}
	}
	return to
}

// Sparing returns the handler of Sparing.
func (n named) Sparing() slog.Handler { return sparing{n, "", &kinds{open: map[string]*kind{}}} }

// ErrorLog is Sparing for what an HTTP server reports of its connections.
func ErrorLog(to *slog.Logger) *log.Logger { return log.New(httpErrors{Sparing(to)}, "", 0) }

type httpErrors struct{ to *slog.Logger }

func (e httpErrors) Write(line []byte) (int, error) {
	e.to.Warn("a connection over HTTP failed", "err", strings.TrimSpace(string(line)))
	return len(line), nil
}

// sparing is the handler of Sparing.
type sparing struct {
	slog.Handler
	prefix string // what attributes of the logger itself add to each kind
	kinds  *kinds
}

// kinds are the kinds of lines that were written lately.
type kinds struct {
	mu   sync.Mutex // guards open and its entries
	open map[string]*kind
}

// kind is one that was written within the last window.
type kind struct {
	skipped int
	last    slog.Record // the latest of those that were left out
	to      slog.Handler
}

// Handle implements slog.Handler.
func (s sparing) Handle(ctx context.Context, r slog.Record) error {
	name := r.Level.String() + " " + r.Message + s.prefix
	r.Attrs(func(a slog.Attr) bool {
		name += kindOf(a)
		return true
	})
	k := s.kinds
	k.mu.Lock()
	defer k.mu.Unlock()
	one := k.open[name]
	if one == nil && len(k.open) >= mostKinds {
		name = "" // all others together
		one = k.open[name]
	}
	if one != nil {
		one.skipped++
		one.last, one.to = r.Clone(), s.Handler
		return nil
	}
	k.open[name] = &kind{}
	time.AfterFunc(sparingWindow, func() { k.end(name) })
	return s.Handler.Handle(ctx, r)
}

// end ends the window of a kind. If lines were left out in it another one begins.
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
	time.AfterFunc(sparingWindow, func() { k.end(name) })
	_ = to.Handle(context.Background(), r) // a logger has no one to report it to
}

func kindOf(a slog.Attr) string {
	for _, key := range kindAttrs {
		if a.Key == key {
			return " " + key + "=" + a.Value.String()
		}
	}
	return ""
}

// WithAttrs implements slog.Handler.
func (s sparing) WithAttrs(attrs []slog.Attr) slog.Handler {
	for _, a := range attrs {
		s.prefix += kindOf(a)
	}
	s.Handler = s.Handler.WithAttrs(attrs)
	return s
}

// WithGroup implements slog.Handler.
func (s sparing) WithGroup(name string) slog.Handler {
	s.prefix += " " + name
	s.Handler = s.Handler.WithGroup(name)
	return s
}

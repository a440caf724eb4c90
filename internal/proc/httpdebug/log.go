package httpdebug

import (
	"context"
	"io"
	"log/slog"
	"sync/atomic"
)

// Format selects how log lines are encoded.
type Format string

// The formats. "" is Text.
const (
	Text Format = "text"
	JSON Format = "json"
)

// NewLog returns a logger whose lines end with the identity of the process that Name has set.
func NewLog(out io.Writer, f Format) *slog.Logger {
	options := &slog.HandlerOptions{Level: slog.LevelInfo}
	var h slog.Handler = slog.NewTextHandler(out, options)
	if f == JSON {
		h = slog.NewJSONHandler(out, options)
	}
	return slog.New(named{h, new(atomic.Pointer[[]slog.Attr])})
}

// Name sets the identity that a logger created by NewLog adds to its lines. It does nothing for other loggers and for
// nil. An empty job or a negative id means that it is not known yet.
func Name(log *slog.Logger, job, role string, id int) {
	if log == nil {
		return
	}
	n, ok := log.Handler().(named)
	if !ok {
		return
	}
	var who []slog.Attr
	if job != "" {
		who = append(who, slog.String("job", job))
	}
	who = append(who, slog.String("role", role))
	if id >= 0 {
		who = append(who, slog.Int("id", id))
	}
	n.who.Store(&who)
}

// named is a handler that adds the identity of the process to each line.
type named struct {
	slog.Handler
	who *atomic.Pointer[[]slog.Attr]
}

func (n named) Handle(ctx context.Context, r slog.Record) error {
	if who := n.who.Load(); who != nil {
		r = r.Clone()
		r.AddAttrs(*who...)
	}
	return n.Handler.Handle(ctx, r)
}

func (n named) WithAttrs(attrs []slog.Attr) slog.Handler {
	return named{n.Handler.WithAttrs(attrs), n.who}
}

func (n named) WithGroup(name string) slog.Handler { return named{n.Handler.WithGroup(name), n.who} }

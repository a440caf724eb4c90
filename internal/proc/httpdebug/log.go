package httpdebug

import (
	"context"
	"io"
	"log/slog"
	"sync/atomic"
)

// Format is how lines of a log are written.
type Format string

// The formats. "" is Text.
const (
	Text Format = "text"
	JSON Format = "json"
)

// NewLog makes a log whose lines end with who has written them, as far as Name has said by then.
func NewLog(out io.Writer, f Format) *slog.Logger {
	options := &slog.HandlerOptions{Level: slog.LevelInfo}
	var h slog.Handler = slog.NewTextHandler(out, options)
	if f == JSON {
		h = slog.NewJSONHandler(out, options)
	}
	return slog.New(named{h, new(atomic.Pointer[[]slog.Attr])})
}

// Name says who writes to a log that NewLog has made; of any other, or none, it does nothing. An empty job and a
// negative id are not known yet.
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

// named adds who writes to each line.
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

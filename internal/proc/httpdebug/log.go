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
	return slog.New(identityHandler{h, new(atomic.Pointer[[]slog.Attr])})
}

// SetIdentity sets the identity that a logger created by NewLog adds to its lines. It does nothing for other loggers
// and for nil. An empty job or a negative id means that it is not known yet.
func SetIdentity(log *slog.Logger, job, role string, id int) {
	if log == nil {
		return
	}
	n, ok := log.Handler().(identityHandler)
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
	n.identity.Store(&who)
}

// identityHandler is a handler that adds the identity of the process to each line.
type identityHandler struct {
	slog.Handler
	identity *atomic.Pointer[[]slog.Attr]
}

func (n identityHandler) Handle(ctx context.Context, r slog.Record) error {
	if who := n.identity.Load(); who != nil {
		r = r.Clone()
		r.AddAttrs(*who...)
	}
	return n.Handler.Handle(ctx, r)
}

func (n identityHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return identityHandler{n.Handler.WithAttrs(attrs), n.identity}
}

func (n identityHandler) WithGroup(name string) slog.Handler {
	return identityHandler{n.Handler.WithGroup(name), n.identity}
}

package humanize

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
)

// NewErrorLog returns a log for a process that shares its standard error with a user's program. It logs only errors,
// each as one line with the prefix "perdure: ".
func NewErrorLog(out io.Writer) *slog.Logger { return slog.New(errorHandler{out, ""}) }

// errorHandler is the handler of such a log.
type errorHandler struct {
	out   io.Writer
	attrs string // attributes of all lines
}

func (s errorHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= slog.LevelError
}

func (s errorHandler) Handle(_ context.Context, r slog.Record) error {
	record := s.attrs
	r.Attrs(func(a slog.Attr) bool {
		record += attrText(a)
		return true
	})
	line := r.Message
	if record != "" {
		line += " (" + strings.TrimPrefix(record, ", ") + ")"
	}
	_, err := fmt.Fprintln(s.out, "perdure: "+strings.ReplaceAll(line, "\n", " "))
	return err
}

func (s errorHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	for _, a := range attrs {
		s.attrs += attrText(a)
	}
	return s
}

func (s errorHandler) WithGroup(string) slog.Handler { return s }

func attrText(a slog.Attr) string {
	if err, is := a.Value.Any().(error); is {
		return ", " + ErrorText(err)
	}
	return fmt.Sprintf(", %s %v", a.Key, a.Value)
}

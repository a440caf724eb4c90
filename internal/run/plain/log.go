package plain

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
)

// Errors makes a log for a process whose standard error is that of somebody's program: of errors only, each in one line
// that says whose it is.
func Errors(out io.Writer) *slog.Logger { return slog.New(spoken{out, ""}) }

// spoken is the handler of such a log.
type spoken struct {
	out   io.Writer
	facts string // that are in all of its lines
}

func (s spoken) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelError }

func (s spoken) Handle(_ context.Context, r slog.Record) error {
	facts := s.facts
	r.Attrs(func(a slog.Attr) bool {
		facts += fact(a)
		return true
	})
	line := r.Message
	if facts != "" {
		line += " (" + strings.TrimPrefix(facts, ", ") + ")"
	}
	_, err := fmt.Fprintln(s.out, "perdure: "+strings.ReplaceAll(line, "\n", " "))
	return err
}

func (s spoken) WithAttrs(attrs []slog.Attr) slog.Handler {
	for _, a := range attrs {
		s.facts += fact(a)
	}
	return s
}

func (s spoken) WithGroup(string) slog.Handler { return s }

func fact(a slog.Attr) string {
	if err, is := a.Value.Any().(error); is {
		return ", " + Text(err)
	}
	return fmt.Sprintf(", %s %v", a.Key, a.Value)
}

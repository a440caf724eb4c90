package plain

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
)

// Errors returns a log for a process that shares its standard error with a user's program. It logs only errors, each as
// one line with the prefix "perdure: ".
func Errors(out io.Writer) *slog.Logger { return slog.New(spoken{out, ""}) }

// spoken is the handler of such a log.
type spoken struct {
	out   io.Writer
	facts string // attributes of all lines
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

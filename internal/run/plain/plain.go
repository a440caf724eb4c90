// Package plain formats errors and numbers for people (an error is one line, without the words by which programs
// tell errors apart), and results for programs: JSON and CSV. It is safe for concurrent use.
package plain

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"syscall"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/proc/supervisor"
)

// Text takes the sentinel's own words out of a message, which say to people
// only what the exit code says already.
func Text(err error) string {
	text := err.Error()
	for _, s := range []error{
		perdure.ErrUsage, perdure.ErrRefused, supervisor.ErrFailed, updatelog.ErrRefused,
		updatelog.ErrDamaged,
	} {
		text = strings.ReplaceAll(text, s.Error()+": ", "")
	}
	return strings.ReplaceAll(strings.TrimPrefix(text, "perdure: "), "updatelog: ", "")
}

// Cause returns what the system said, without the words around it.
func Cause(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	if at := (*fs.PathError)(nil); errors.As(err, &at) {
		return at.Err
	}
	return err
}

// JSON writes a document for programs.
func JSON(out io.Writer, v any) error {
	e := json.NewEncoder(out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// Teller tells what a command does: people a line at a time, programs in one document, in the end. It is for one
// goroutine.
type Teller struct {
	out    io.Writer
	asJSON bool
	notes  []string
}

// Tell makes a teller.
func Tell(out io.Writer, asJSON bool) *Teller { return &Teller{out: out, asJSON: asJSON} }

// Line tells people a line, and programs nothing: their document has it in other words.
func (t *Teller) Line(format string, args ...any) {
	if !t.asJSON {
		fmt.Fprintf(t.out, format+"\n", args...)
	}
}

// Note tells people a line, which is kept for the document of programs.
func (t *Teller) Note(format string, args ...any) {
	t.Line(format, args...)
	t.notes = append(t.notes, fmt.Sprintf(format, args...))
}

// Notes returns what was noted, in its order; it is never nil.
func (t *Teller) Notes() []string { return append([]string{}, t.notes...) }

// End gives programs their document, and people nothing.
func (t *Teller) End(document any) error {
	if !t.asJSON {
		return nil
	}
	return JSON(t.out, document)
}

// Listed joins with commas and an "and".
func Listed(all []string) string {
	if n := len(all); n > 1 {
		return strings.Join(all[:n-1], ", ") + " and " + all[n-1]
	}
	return strings.Join(all, "")
}

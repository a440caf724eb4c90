// Package humanize formats errors and numbers for people, and results for programs as JSON and CSV. An error is
// formatted as one line without the text of sentinel errors. The package is safe for concurrent use.
package humanize

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

// ErrorText returns an error's message without the text of sentinel errors, which repeats the meaning of the exit code.
func ErrorText(err error) string {
	text := err.Error()
	for _, s := range []error{
		perdure.ErrUsage, perdure.ErrRefused, supervisor.ErrFailed, updatelog.ErrRefused,
		updatelog.ErrDamaged,
	} {
		text = strings.ReplaceAll(text, s.Error()+": ", "")
	}
	return strings.ReplaceAll(strings.TrimPrefix(text, "perdure: "), "updatelog: ", "")
}

// Cause returns the innermost error of a failed system call, without the operation and the path. It returns any other
// error unchanged.
func Cause(err error) error {
	if errno, is := errors.AsType[syscall.Errno](err); is {
		return errno
	}
	if at, is := errors.AsType[*fs.PathError](err); is {
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

// Printer prints the output of a command: line by line for people, or as one document at the end for programs. It must
// be used by one goroutine.
type Printer struct {
	out    io.Writer
	asJSON bool
	notes  []string
}

// NewPrinter returns a Printer that writes to out: one document for programs if asJSON is true, otherwise lines for
// people.
func NewPrinter(out io.Writer, asJSON bool) *Printer { return &Printer{out: out, asJSON: asJSON} }

// Line prints a line for people. Programs get the same information in their document.
func (t *Printer) Line(format string, args ...any) {
	if !t.asJSON {
		fmt.Fprintf(t.out, format+"\n", args...)
	}
}

// Note prints a line for people. It also keeps the line, so that the caller can add it to the document for programs:
// see Notes.
func (t *Printer) Note(format string, args ...any) {
	t.Line(format, args...)
	t.notes = append(t.notes, fmt.Sprintf(format, args...))
}

// Notes returns the lines of all calls of Note, in order, without line breaks; it is never nil.
func (t *Printer) Notes() []string { return append([]string{}, t.notes...) }

// End prints the document for programs, and nothing for people.
func (t *Printer) End(document any) error {
	if !t.asJSON {
		return nil
	}
	return JSON(t.out, document)
}

// Join joins strings with commas and "and".
func Join(all []string) string {
	if n := len(all); n > 1 {
		return strings.Join(all[:n-1], ", ") + " and " + all[n-1]
	}
	return strings.Join(all, "")
}

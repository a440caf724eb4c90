// Package plain makes of errors what people read: one line, without the words that programs
// tell errors apart by; and of results what programs read. It is safe for concurrent use.
package plain

import (
	"encoding/json"
	"errors"
	"io"
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
	return strings.ReplaceAll(text, "updatelog: ", "")
}

// Cause returns what the system said, without the words around it.
func Cause(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
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

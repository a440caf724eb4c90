package runs

import (
	"encoding/json"
	"io"
)

// writeJSON writes a document for programs.
func writeJSON(out io.Writer, v any) error {
	e := json.NewEncoder(out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

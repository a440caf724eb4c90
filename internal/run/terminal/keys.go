package terminal

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/keys/authority"
	"github.com/perdure/perdure/internal/run/humanize"
)

// PrintHolders prints the holders of keys, as a table for people or as JSON for programs.
func PrintHolders(out io.Writer, list []authority.Holder, asJSON bool) error {
	type row struct {
		Folder  string    `json:"folder"`
		Role    keys.Role `json:"role"`
		Name    string    `json:"name"`
		Job     string    `json:"job"`
		Serial  string    `json:"serial"`
		Until   time.Time `json:"until"`
		Revoked bool      `json:"revoked"`
		Token   bool      `json:"token"`
	}
	rows := make([]row, len(list))
	for i, h := range list {
		rows[i] = row{h.Dir, h.Role, h.Name, h.Domain, keys.Serial(h.Serial), h.Until.UTC(), h.Revoked, h.Token}
	}
	if asJSON {
		return humanize.JSON(out, rows)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "folder\trole\tname\tvalid until\tserial number\t")
	for i, r := range rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", cmp.Or(r.Folder, "–"), r.Role, r.Name,
			r.Until.Format(time.DateOnly), r.Serial, notes(&list[i]))
	}
	return w.Flush()
}

// notes reports whether a certificate or a token is revoked, expired or replaced, or is a token.
func notes(h *authority.Holder) string {
	var all []string
	switch {
	case h.Revoked:
		all = append(all, "revoked")
	case time.Now().After(h.Until):
		all = append(all, "expired")
	}
	switch {
	case h.Token:
		all = append(all, "token")
	case h.Dir == "":
		all = append(all, "replaced, or its directory was removed")
	}
	return strings.Join(all, ", ")
}

// PrintRevoked prints the holders of the revoked certificates and tokens, one line for each.
func PrintRevoked(out io.Writer, list []authority.Holder) {
	for i := range list {
		kind, h := "certificate", &list[i]
		if h.Token {
			kind = "token"
		}
		if h.Role == "" { // the authority has no record of it
			fmt.Fprintf(out, "Revoked the serial number %s\n", keys.Serial(h.Serial))
			continue
		}
		fmt.Fprintf(out, "Revoked the %s of %s, serial number %s\n", kind, h.Identity, keys.Serial(h.Serial))
	}
}

// PrintIncomplete prints a warning if the authority's record was lost or is an older copy, and therefore lacks
// certificates.
func PrintIncomplete(out io.Writer, c authority.Completeness) {
	if !c.Since.IsZero() {
		fmt.Fprintf(out, "Certificates replaced before %s, and tokens from before then, are not recorded: the "+
			"record was lost or replaced by an older copy. They are valid until they expire, unless you revoke "+
			"their serial numbers; perdure keys new creates an authority that does not trust them.\n",
			c.Since.Format(time.RFC3339))
	}
}

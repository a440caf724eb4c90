package perdure

import (
	"crypto/subtle"
	"fmt"
	"io"
)

// Secret is what a process shows to be let in, "" where nothing is asked for. Whatever
// prints one prints that it is a secret: only Reveal, and what is sent to whom it is for,
// has it.
type Secret string

// Reveal returns the secret itself.
func (s Secret) Reveal() string { return string(s) }

// String implements fmt.Stringer.
func (s Secret) String() string { return "(secret)" }

// Format implements fmt.Formatter, for every verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// Admits reports whether what somebody has shown is the secret. How long that takes tells
// nothing of it.
func (s Secret) Admits(shown Secret) bool {
	return s == "" || subtle.ConstantTimeCompare([]byte(s), []byte(shown)) == 1
}

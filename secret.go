package perdure

import (
	"crypto/subtle"
	"fmt"
	"io"
)

// Secret authenticates a process; "" means that no authentication is required. Printing a Secret never reveals it: only
// Reveal and the messages to its intended recipient contain it.
type Secret string

// Reveal returns the secret itself.
func (s Secret) Reveal() string { return string(s) }

// String implements fmt.Stringer.
func (s Secret) String() string { return "(secret)" }

// Format implements fmt.Formatter, for every verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// Matches reports whether shown equals the secret. It runs in constant time.
func (s Secret) Matches(shown Secret) bool {
	return s == "" || subtle.ConstantTimeCompare([]byte(s), []byte(shown)) == 1
}

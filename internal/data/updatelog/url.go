package updatelog

import "strings"

// WithoutSecrets returns an address of a log, or several separated by commas, without user names, passwords and tokens.
// It accepts any text, also invalid addresses, and rather removes too much. An unescaped password may contain a comma,
// so only a comma before a scheme ends an address.
func WithoutSecrets(addresses string) string {
	var shown []string
	for rest := addresses; ; {
		one, more, some := rest, "", false
		for at := range rest {
			if rest[at] == ',' && hasScheme(rest[at+1:]) {
				one, more, some = rest[:at], rest[at+1:], true
				break
			}
		}
		shown = append(shown, withoutSecret(one))
		if !some {
			return strings.Join(shown, ",")
		}
		rest = more
	}
}

// hasScheme reports whether text starts with a scheme.
func hasScheme(text string) bool {
	scheme, _, found := strings.Cut(text, "://")
	return found && !strings.ContainsAny(scheme, ",@:/")
}

// withoutSecret is WithoutSecrets for a single address.
func withoutSecret(address string) string {
	at := strings.LastIndex(address, "@")
	if at < 0 {
		return address
	}
	scheme, _, found := strings.Cut(address[:at], "//")
	if !found {
		return address[at+1:]
	}
	return scheme + "//" + address[at+1:]
}

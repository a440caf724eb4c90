package updatelog

import "strings"

// WithoutSecrets returns an address of a log, or several with commas between them, without
// what may be users' names, passwords or tokens. It takes whatever people write, also what is
// no address at all, and rather shows too little of it: a password that is not escaped may
// hold a comma, so that only a comma with a scheme behind it ends an address.
func WithoutSecrets(addresses string) string {
	var shown []string
	for rest := addresses; ; {
		one, more, some := rest, "", false
		for at := range rest {
			if rest[at] == ',' && beginsAddress(rest[at+1:]) {
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

// beginsAddress reports whether a scheme is what comes first.
func beginsAddress(text string) bool {
	scheme, _, found := strings.Cut(text, "://")
	return found && !strings.ContainsAny(scheme, ",@:/")
}

// withoutSecret is WithoutSecrets of one address.
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

package jobs

import (
	"cmp"
	"fmt"
	"os"
	"os/user"
	"strings"

	"github.com/perdure/perdure/internal/data/registry"
)

// asker is who asks a registry for something, for people, USER@HOST: it is what this machine says, and proves nothing.
func asker() string {
	name := ""
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	return who(cmp.Or(name, fmt.Sprintf("user-%d", os.Getuid())), registry.Self().Host)
}

// who is a user of a host in one word, which has a bound.
func who(name, host string) string {
	word := func(text string) string {
		const most = 100
		word := strings.Map(func(r rune) rune {
			if r <= ' ' || r > '~' || r == '@' {
				return '-'
			}
			return r
		}, text)
		return word[:min(len(word), most)]
	}
	return word(name) + "@" + word(host)
}

package membership

import (
	"github.com/perdure/perdure/internal/core/words"
)

// ServerStatus sends a server's whole status, as on a new connection.
func (c *Core) ServerStatus(index int, process string, st words.ServerStatus) {
	c.say(index, process, &words.ServerSpeaker{}, &st, true)
}

// say sends the changes of a server's status on a connection.
func (c *Core) say(index int, process string, t *words.ServerSpeaker, st *words.ServerStatus, counts bool) {
	for more := true; more; {
		var d words.ServerDelta
		d, more = t.Delta(st, c.facts.View.End, counts)
		if !c.ServerSays(index, process, &d) {
			panic("a server's status delta does not apply")
		}
	}
}

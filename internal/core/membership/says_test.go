package membership

import (
	"github.com/perdure/perdure/internal/core/words"
)

// ServerStatus has a server say all of its status, as on a connection of its own.
func (c *Core) ServerStatus(index int, process string, st words.ServerStatus) {
	c.say(index, process, &words.ServerSpeaker{}, &st, true)
}

// say has a server say what is new of its status on a connection.
func (c *Core) say(index int, process string, t *words.ServerSpeaker, st *words.ServerStatus, counts bool) {
	for more := true; more; {
		var d words.ServerDelta
		d, more = t.Delta(st, c.facts.View.End, counts)
		if !c.ServerSays(index, process, &d) {
			panic("a server's word does not fit")
		}
	}
}

package supervisor

import (
	"slices"

	"github.com/perdure/perdure/internal/data/wire"
)

// memberProgress is the state of the job's places as reported on a connection: servers and slots, each sorted by index.
type memberProgress struct{ servers, slots []wire.MemberProgress }

// update merges changed places and returns all of them.
func (k *memberProgress) update(news []wire.MemberProgress) []wire.MemberProgress {
	for _, p := range news {
		list := &k.slots
		if p.Role == wire.RoleServer {
			list = &k.servers
		}
		at, there := slices.BinarySearchFunc(*list, p.Index,
			func(x wire.MemberProgress, index int) int { return x.Index - index })
		if there {
			(*list)[at] = p
		} else {
			*list = slices.Insert(*list, at, p)
		}
	}
	return slices.Concat(k.servers, k.slots)
}

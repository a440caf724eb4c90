package supervisor

import (
	"slices"

	"github.com/perdure/perdure/internal/data/wire"
)

// known is what the coordinator has told of the job's places on a connection: servers,
// then slots, by number.
type known struct{ servers, slots []wire.PlaceProgress }

// take takes what is new of some places, and returns all.
func (k *known) take(news []wire.PlaceProgress) []wire.PlaceProgress {
	for _, p := range news {
		list := &k.slots
		if p.Role == wire.RoleServer {
			list = &k.servers
		}
		at, there := slices.BinarySearchFunc(*list, p.Index,
			func(x wire.PlaceProgress, index int) int { return x.Index - index })
		if there {
			(*list)[at] = p
		} else {
			*list = slices.Insert(*list, at, p)
		}
	}
	return slices.Concat(k.servers, k.slots)
}

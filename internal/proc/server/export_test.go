package server

import "github.com/perdure/perdure"

// Seize takes a shard's lock, as work that does not end would.
func (e Eye) Seize(id perdure.ShardID) (release func()) {
	e.s.mu.Lock()
	sh := e.s.shards[id]
	e.s.mu.Unlock()
	sh.mu.Lock()
	return sh.mu.Unlock
}

package server

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/replica"
)

// Seize locks a shard, as work that never ends would.
func (e Monitor) Seize(id perdure.ShardID) (release func()) {
	e.s.mu.Lock()
	sh := e.s.shards[id]
	e.s.mu.Unlock()
	sh.mu.Lock()
	return sh.mu.Unlock
}

// Delay takes the Opens that wait for an epoch of a shard, as a goroutine does that then waits for the shard's lock. It
// returns their number and a function that passes them to the shard.
func (e Monitor) Delay(id perdure.ShardID) (bring func(), opens int) {
	e.s.mu.Lock()
	defer e.s.mu.Unlock()
	var all []*pendingOpen
	for c := range e.s.conns {
		if w := c.pendingOpens[id]; w != nil {
			w.claimed = true
			all = append(all, w)
		}
	}
	return func() {
		e.s.mu.Lock()
		sh := e.s.shards[id]
		e.s.mu.Unlock()
		for _, w := range all {
			w.deliver(sh, nil)
		}
	}, len(all)
}

// Reads reports whether a slot reads from a shard on some connection.
func (e Monitor) Reads(id perdure.ShardID, slot perdure.Slot) bool {
	e.s.mu.Lock()
	sh := e.s.shards[id]
	e.s.mu.Unlock()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	reader, _ := sh.rep.Readers.Flow(slot)
	return reader != nil
}

// Fill fills a shard with the content for a view and returns the revision of the view that the shard follows
// afterwards.
func (e Monitor) Fill(id perdure.ShardID, v protocol.View) (follows uint64) {
	e.s.mu.Lock()
	sh := e.s.shards[id]
	e.s.mu.Unlock()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.setContentLocked(
		replica.Content{States: make([][]byte, sh.job.Slots), Applied: make([]perdure.Clock, sh.job.Slots)}, &v)
	return sh.view.Revision
}

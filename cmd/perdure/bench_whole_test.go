package main

import (
	"testing"

	"github.com/perdure/perdure"
)

// TestWhole: a job is whole when every shard has as many replicas as it should, and nobody
// joins.
func TestWhole(t *testing.T) {
	chain := func(servers ...int) (s perdure.ShardView) {
		s.Server = servers[0]
		for _, n := range servers[1:] {
			s.Followers = append(s.Followers, perdure.Holder{Server: n})
		}
		return s
	}
	joined := chain(2, 0)
	joined.Joining = &perdure.Holder{Server: 3}
	for _, c := range []struct {
		shards []perdure.ShardView
		copies int
		whole  bool
	}{
		{nil, 1, false},
		{[]perdure.ShardView{chain(0), chain(1)}, 1, true},
		{[]perdure.ShardView{chain(0), chain(-1)}, 1, false},
		{[]perdure.ShardView{chain(0, 1), chain(1, 2)}, 2, true},
		{[]perdure.ShardView{chain(0, 1), chain(1)}, 2, false},
		{[]perdure.ShardView{chain(0, 1), joined}, 2, false},
	} {
		if got := whole(&perdure.View{Shards: c.shards}, c.copies); got != c.whole {
			t.Errorf("%d copies of %+v are whole: %t", c.copies, c.shards, got)
		}
	}
}

package protocol_test

import (
	"testing"

	"github.com/perdure/perdure/internal/core/protocol"
)

func TestDescribeShards(t *testing.T) {
	var v protocol.View
	for _, server := range []int{1, 0, 1, 2, 3} {
		v.Shards = append(v.Shards, protocol.ShardView{Holder: protocol.Holder{Server: server}})
	}
	for want, shards := range map[string][]int{
		"2 shards on server:1":                     {0, 2},
		"3 shards on server:1, server:0, server:2": {0, 1, 3},
		"5 shards on 4 servers":                    {0, 1, 2, 3, 4},
	} {
		if got := v.DescribeShards(shards); got != want {
			t.Errorf("%v: %q, want %q", shards, got, want)
		}
	}
}

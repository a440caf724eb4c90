package terminal

import (
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/proc/control"
)

// TestShardLines checks the compact list of the shards' servers.
func TestShardLines(t *testing.T) {
	chain := func(servers ...int) (s protocol.ShardView) {
		s.Server = servers[0]
		for _, n := range servers[1:] {
			s.Followers = append(s.Followers, protocol.Holder{Server: n})
		}
		return s
	}
	joined := chain(2, 0)
	joined.Joining = &protocol.Holder{Server: 3}
	v := protocol.View{Shards: []protocol.ShardView{
		chain(0, 1, 2), chain(0, 1, 2), joined, chain(0, 1, 2), chain(1),
		chain(-1), chain(0, 1, 2), chain(0, 1, 2),
	}}
	got, want := strings.Join(shardLines(&v), "\n"), `shards 0-1 3 6-7: head server:0, follower server:1, tail server:2
shards 2: head server:2, tail server:0; joining server:3
shards 4: head server:1
shards 5: no server yet`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestHeldAndSaved checks the status's text about each worker's kept updates and unavailable shards, and about the last
// checkpoint.
func TestHeldAndSaved(t *testing.T) {
	for want, p := range map[string]control.Process{
		"":                          {},
		", keeps 3.4 MB of updates": {KeptBytes: 3_400_000},
		", shards 0-1 5 unavailable for 2.5 s, 0.5 MB queued": {Outage: &perdure.WorkerOutage{Shards: []perdure.ShardID{
			0, 1,
			5,
		}, Seconds: 2.5, Bytes: 500_000}},
	} {
		if got := pendingUpdatesLine(&p); got != want {
			t.Errorf("%+v: %q, want %q", p, got, want)
		}
	}
	for _, c := range []struct {
		recovery string
		saving   *protocol.Saving
		want     string
	}{
		{"chain:2", nil, ""},
		{"resend:20", nil, "last checkpoint: clock 40"},
		{"resend:auto", &protocol.Saving{}, "last checkpoint: clock 40; the interval is not chosen yet"},
		{
			"checkpoint:auto", &protocol.Saving{Interval: 2.5, Why: "Young"},
			"last checkpoint: clock 40; every 2.5 s, Young",
		},
		{
			"checkpoint:auto", &protocol.Saving{Interval: 12345.6, Why: "Young"},
			"last checkpoint: clock 40; every 12346 s, Young",
		},
	} {
		r, err := perdure.ParseRecovery(c.recovery)
		must(t, err)
		if got := savedLine(&control.Status{Recovery: r, Saving: c.saving}, 40); got != c.want {
			t.Errorf("%s: %q, want %q", c.recovery, got, c.want)
		}
	}
}

// TestChanges checks the lines about workers that join and leave.
func TestChanges(t *testing.T) {
	slots := func(intervals ...protocol.Interval) (s []protocol.SlotView) {
		for _, interval := range intervals {
			s = append(s, protocol.SlotView{Interval: interval})
		}
		return s
	}
	before := slots(protocol.Interval{}, protocol.Interval{Until: 9}, protocol.Interval{From: 3})
	after := slots(protocol.Interval{}, protocol.Interval{From: 20}, protocol.Interval{From: 3, Until: 20},
		protocol.Interval{From: 20})
	var got strings.Builder
	must(t, PrintAccepted(&got, "so be it", Changes(before, after), false))
	want := `so be it
worker:1 joins; it takes part from clock 20 on
worker:2 leaves; clock 19 is its last
worker:3 joins; it takes part from clock 20 on
`
	if got.String() != want {
		t.Errorf("got\n%s\nwant\n%s", got.String(), want)
	}
	got.Reset()
	must(t, PrintAccepted(&got, "", Changes(before, after)[1:2], true))
	want = `{"changes":[{"worker":2,"joins":false,"clock":19}]}`
	if s := strings.Join(strings.Fields(got.String()), ""); s != want {
		t.Errorf("got %s, want %s", s, want)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

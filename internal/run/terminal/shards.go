package terminal

import (
	"fmt"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/control"
)

// shardLines lists the servers of a view's shards. Shards with the same chain share a line with the head, the followers
// in order, and the joining server.
func shardLines(v *protocol.View) (lines []string) {
	shards := map[string][]int{} // by the chain that holds them
	var order []string
	for i := range v.Shards {
		who := chainText(&v.Shards[i])
		if shards[who] == nil {
			order = append(order, who)
		}
		shards[who] = append(shards[who], i)
	}
	for _, who := range order {
		lines = append(lines, fmt.Sprintf("shards %s: %s", ranges(shards[who]), who))
	}
	return lines
}

// chainText describes a shard's chain.
func chainText(s *protocol.ShardView) string {
	if s.Replicas() == 0 {
		return "no server yet"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "head server:%d", s.Server)
	for i, h := range s.Followers {
		word := ", follower"
		if i == len(s.Followers)-1 {
			word = ", tail"
		}
		fmt.Fprintf(&b, "%s server:%d", word, h.Server)
	}
	if s.Joining != nil {
		fmt.Fprintf(&b, "; joining server:%d", s.Joining.Server)
	}
	return b.String()
}

// ranges formats ascending numbers compactly: 0-3 5 7-8.
func ranges(numbers []int) string {
	var parts []string
	for i := 0; i < len(numbers); {
		end := i
		for end+1 < len(numbers) && numbers[end+1] == numbers[end]+1 {
			end++
		}
		part := fmt.Sprint(numbers[i])
		if end > i {
			part += fmt.Sprintf("-%d", numbers[end])
		}
		parts = append(parts, part)
		i = end + 1
	}
	return strings.Join(parts, " ")
}

// pendingUpdatesLine describes a worker's updates that are not safe yet, and the unavailable shards that it continues
// without.
func pendingUpdatesLine(p *control.Process) (text string) {
	if p.KeptBytes > 0 {
		text = fmt.Sprintf(", keeps %.1f MB of updates", float64(p.KeptBytes)/1e6)
	}
	if o := p.Outage; o != nil {
		out := make([]int, len(o.Shards))
		for i, s := range o.Shards {
			out[i] = int(s)
		}
		text += fmt.Sprintf(", shards %s unavailable for %.1f s, %.1f MB queued", ranges(out), o.Seconds,
			float64(o.Bytes)/1e6)
	}
	return text
}

// unreadLine returns how many records of the update log a server must still read, or "" if that is unknown.
func unreadLine(records *int64) string {
	if records == nil {
		return ""
	}
	return fmt.Sprintf(", %d records of the update log to read", *records)
}

// savedLine describes the last checkpoint and how often one is made. It returns "" for a job without checkpoints.
func savedLine(s *control.Status, durable perdure.Clock) string {
	switch {
	case s.Saving != nil && s.Saving.Rows != nil:
		return fmt.Sprintf("rows saved: %.1f MB", float64(s.Saving.Rows.Bytes)/1e6)
	case !recovery.Of(s.Recovery).Traits().SavesCuts():
		return ""
	case s.Saving == nil:
		return fmt.Sprintf("last checkpoint: clock %d", durable)
	case s.Saving.Interval == 0:
		return fmt.Sprintf("last checkpoint: clock %d; the interval is not chosen yet", durable)
	}
	return fmt.Sprintf("last checkpoint: clock %d; every %s, %s", durable, recovery.FormatTime(s.Saving.Interval),
		s.Saving.Why)
}

// intervalLine describes when a slot takes part, unless it does throughout.
func intervalLine(role string, s protocol.Interval) string {
	text := ""
	if role == string(wire.RoleWorker) && s.From > 0 {
		text += fmt.Sprintf(", from clock %d", s.From)
	}
	if s.Until > 0 {
		text += fmt.Sprintf(", until clock %d", s.Until)
	}
	return text
}

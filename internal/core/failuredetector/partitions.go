package failuredetector

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Complaint reports that process From cannot reach a server at Addr. From is numbered as in [Pair].
type Complaint struct {
	From int
	Addr string
}

// Partitions tracks how long each complaint has been made and which servers are excluded. The zero value is ready to
// use. It is not safe for concurrent use.
type Partitions struct {
	since    map[Complaint]int64 // when each current complaint was first made
	excluded map[string]string   // the excluded servers: address to name
	reported map[string]struct{} // names of the processes whose unreachability was reported to users
}

// PartitionEvent is a message for users: Process cannot be reached by others, or can be reached again.
type PartitionEvent struct {
	Process  string
	Resolved bool
	Text     string
}

// IsExcluded reports whether the server at an address is excluded.
func (w *Partitions) IsExcluded(addr string) bool { return w.excluded[addr] != "" }

// IsQuiet reports whether no complaints are pending and users have received the all-clear for all earlier ones.
func (w *Partitions) IsQuiet() bool { return len(w.reported) == 0 && len(w.since) == 0 }

// Update processes the complaints that are current at time now and returns the news for users. A complaint counts only
// after it has been made for ripe, because a process that was cut off from everything briefly complains about every
// server when it reconnects. addrs lists the servers' addresses; name returns the name of a process for users.
func (w *Partitions) Update(
	job *Processes, said []Complaint, addrs []string, now, ripe int64, name func(int) string,
) []PartitionEvent {
	if w.since == nil {
		w.since, w.excluded = map[Complaint]int64{}, map[string]string{}
	}
	at, still := map[string]int{}, map[Complaint]bool{}
	for addr := range w.excluded {
		at[addr] = -1 // an excluded server that reconnects must still be rejected
	}
	for i, addr := range addrs {
		at[addr] = i
	}
	for _, c := range said {
		if _, known := at[c.Addr]; known { // bounds the memory that a faulty process can use
			still[c] = true
		}
	}
	maps.DeleteFunc(w.since, func(c Complaint, _ int64) bool { return !still[c] })
	var pairs []Pair
	about := map[string]bool{}
	for c := range still {
		if _, before := w.since[c]; !before {
			w.since[c] = now
		}
		if now-w.since[c] < ripe {
			continue
		}
		about[c.Addr] = true
		if to := at[c.Addr]; to >= 0 && job.Live[c.From] && job.Live[to] {
			pairs = append(pairs, Pair{c.From, to})
		}
	}
	slices.SortFunc(pairs, func(a, b Pair) int { return cmp.Or(a.From-b.From, a.To-b.To) })
	out := job.Exclude(pairs)
	maps.DeleteFunc(w.excluded, func(addr string, _ string) bool { return !about[addr] })
	for i, addr := range addrs {
		if slices.Contains(out, i) {
			w.excluded[addr] = name(i)
		}
	}
	return w.news(job, pairs, out, name)
}

// news returns which partitions have appeared and which have ended since the last call.
func (w *Partitions) news(job *Processes, pairs []Pair, out []int, name func(int) string) (news []PartitionEvent) {
	const silent = "is treated as failed until all of them can reach it"
	others, upshot, now := map[string][]string{}, map[string]string{}, map[string]struct{}{}
	for _, p := range pairs {
		whom, other, does := name(p.To), name(p.From), silent
		switch {
		case slices.Contains(out, p.To):
		case slices.Contains(out, p.From) && p.From < job.Servers:
			whom, other = other, whom
		case slices.Contains(out, p.From):
			whom, other, does = other, whom, "is probably cut off itself: stop it, so that another takes its slot"
		default:
			does = "cannot be excluded, because too few others are left: the job waits for it"
		}
		others[whom], upshot[whom], now[whom] = append(others[whom], other), does, struct{}{}
	}
	for _, whom := range w.excluded {
		now[whom] = struct{}{}
	}
	for _, whom := range slices.Sorted(maps.Keys(others)) {
		if _, before := w.reported[whom]; !before {
			slices.Sort(others[whom])
			news = append(news, PartitionEvent{Process: whom, Text: fmt.Sprintf(
				"%[1]s and %[2]s cannot reach each other; %[1]s %[3]s", whom, listed(slices.Compact(others[whom])),
				upshot[whom])})
		}
	}
	for _, whom := range slices.Sorted(maps.Keys(w.reported)) {
		if _, still := now[whom]; !still {
			news = append(news, PartitionEvent{whom, true, whom + " can be reached again"})
		}
	}
	w.reported = now
	return news
}

// listed joins names into an English list and shortens long ones.
func listed(names []string) string {
	const most = 4
	switch n := len(names); {
	case n > most:
		return fmt.Sprintf("%s and %d others", strings.Join(names[:most-1], ", "), n-most+1)
	case n > 1:
		return strings.Join(names[:n-1], ", ") + " and " + names[n-1]
	}
	return strings.Join(names, "")
}

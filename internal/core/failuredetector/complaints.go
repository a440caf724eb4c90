package failuredetector

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Complaint is what a process says: it cannot reach a server at an address. From is its number, as in Pair.
type Complaint struct {
	From int
	Addr string
}

// Partitions knows for how long complaints have been made, and which servers are done without. The zero value has heard
// none. It is not safe for concurrent use.
type Partitions struct {
	since map[Complaint]int64 // the time from which on it has been made
	out   map[string]string   // which servers are done without, by their addresses: their names
	told  map[string]struct{} // the names of whom people were told
}

// PartitionNews is something that people are told: that others do not reach whom it is about, or that this is over.
type PartitionNews struct {
	Whom string
	Over bool
	Text string
}

// Out reports whether a server at an address is done without.
func (w *Partitions) Out(addr string) bool { return w.out[addr] != "" }

// Quiet reports whether nothing has been said that is not over.
func (w *Partitions) Quiet() bool { return len(w.told) == 0 && len(w.since) == 0 }

// Look takes what is said at a time. A complaint counts once it has been made for ripe: who was cut off from
// everybody says for a moment, when he is back, that he reaches nobody. addrs are the servers' addresses, name is what
// people call a number. It returns what to tell them.
func (w *Partitions) Look(
	job *PartitionJob, said []Complaint, addrs []string, now, ripe int64, name func(int) string,
) []PartitionNews {
	if w.since == nil {
		w.since, w.out = map[Complaint]int64{}, map[string]string{}
	}
	at, still := map[string]int{}, map[Complaint]bool{}
	for addr := range w.out {
		at[addr] = -1 // one that comes again is still to be turned away
	}
	for i, addr := range addrs {
		at[addr] = i
	}
	for _, c := range said {
		if _, known := at[c.Addr]; known { // else who lies could have any number of addresses remembered
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
	out := job.Out(pairs)
	maps.DeleteFunc(w.out, func(addr string, _ string) bool { return !about[addr] })
	for i, addr := range addrs {
		if slices.Contains(out, i) {
			w.out[addr] = name(i)
		}
	}
	return w.news(job, pairs, out, name)
}

// news is what is new to people: who is cut off from whom, and when that is over.
func (w *Partitions) news(job *PartitionJob, pairs []Pair, out []int, name func(int) string) (news []PartitionNews) {
	const silent = "until all can reach it, it counts as silent"
	others, upshot, now := map[string][]string{}, map[string]string{}, map[string]struct{}{}
	for _, p := range pairs {
		whom, other, does := name(p.To), name(p.From), silent
		switch {
		case slices.Contains(out, p.To):
		case slices.Contains(out, p.From) && p.From < job.Servers:
			whom, other = other, whom
		case slices.Contains(out, p.From):
			whom, other, does = other, whom, "most likely it is cut off itself: end it, and another takes its slot"
		default:
			does = "too few others are left to do without it, so it is waited for"
		}
		others[whom], upshot[whom], now[whom] = append(others[whom], other), does, struct{}{}
	}
	for _, whom := range w.out {
		now[whom] = struct{}{}
	}
	for _, whom := range slices.Sorted(maps.Keys(others)) {
		if _, before := w.told[whom]; !before {
			slices.Sort(others[whom])
			news = append(news, PartitionNews{Whom: whom, Text: fmt.Sprintf("%s and %s cannot reach each other; %s",
				whom,
				listed(slices.Compact(others[whom])), upshot[whom])})
		}
	}
	for _, whom := range slices.Sorted(maps.Keys(w.told)) {
		if _, still := now[whom]; !still {
			news = append(news, PartitionNews{whom, true, whom + " is reached again"})
		}
	}
	w.told = now
	return news
}

// listed lists names as people do.
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

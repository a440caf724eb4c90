package coordinator

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure/internal/core/membership"
)

const (
	// missingAfter is how long a place may have no process before the console says so. A replacement usually takes
	// less.
	missingAfter = 8 * time.Second
	// missingWith is for how long others must have been missing to be named in the same line.
	missingWith = missingAfter - 2*time.Second
	mostMissing = 8 // are named in one line
)

// missing knows which places have no process, and since when. The loop owns it.
type missing struct {
	since map[seat]time.Time
	told  []seat    // last
	at    time.Time // when that was
}

func newMissing() missing { return missing{since: map[seat]time.Time{}} }

// note takes which places have no process now, in order. It returns those that people are to be told of; none: it was
// told, or is too early. It tells of other places than before at most once in missingAfter.
func (m *missing) note(now time.Time, places []seat) (news []seat) {
	since, due := make(map[seat]time.Time, len(places)), false
	for _, s := range places {
		at, was := m.since[s]
		if !was {
			at = now
		}
		since[s] = at
		if now.Sub(at) >= missingWith {
			news = append(news, s)
		}
		due = due || now.Sub(at) >= missingAfter
	}
	m.since = since
	switch {
	case len(news) == 0:
		m.told = nil
		return nil
	case !due || slices.Equal(news, m.told) || now.Sub(m.at) < missingAfter:
		return nil
	}
	m.told, m.at = news, now
	return news
}

// look tells people which processes the job waits for, and how it can continue without them.
func (m *missing) look(now time.Time, c *Coordinator) {
	f := c.core.Facts()
	if f.Over() || c.core.Complete() || c.bye.why != nil {
		return
	}
	news := m.note(now, without(c.core))
	if len(news) == 0 {
		return
	}
	var names []string
	servers, workers := 0, 0
	for i, s := range news {
		if s.kind == membership.Server {
			servers++
		} else {
			workers++
		}
		if i < mostMissing {
			names = append(names, nameOf(s, c))
		}
	}
	if more := len(news) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	text := fmt.Sprintf("missing for %v: %s", missingAfter, strings.Join(names, ", "))
	if servers > 0 {
		text += "; " + withoutServers(f)
	}
	if workers > 0 {
		text += "; " + withoutWorkers(f, c.cfg.Folder, news)
	}
	target := ""
	if len(news) == 1 {
		target = fmt.Sprintf("%s:%d", news[0].kind, news[0].index)
	}
	c.tell(membership.Event{Kind: "missing", Target: target, Text: text})
}

// without returns the places that have no process and that others wait for, servers first.
func without(core *membership.Core) (all []seat) {
	f := core.Facts()
	away := func(k membership.Kind, i int) bool {
		state := core.Condition(k, i).State
		return state == "waiting" || state == "dead"
	}
	if !f.Placed() || !core.Serving() {
		for i := range f.Servers {
			if !f.Servers[i].Left && away(membership.Server, i) {
				all = append(all, seat{membership.Server, i})
			}
		}
	}
	for i := range f.Slots {
		if sl := &f.View.Slots[i]; !sl.Left && sl.From <= core.MinClock()+1 && away(membership.Worker, i) {
			all = append(all, seat{membership.Worker, i})
		}
	}
	return all
}

// nameOf says what a place is called, and where its last process was.
func nameOf(s seat, c *Coordinator) string {
	process := c.troubles.came[s.index][0].process
	if s.kind == membership.Server {
		process = c.core.Facts().Servers[s.index].Process
	}
	name, host := fmt.Sprintf("%s:%d", s.kind, s.index), c.crew.hostOf(process)
	switch {
	case host != "":
		return fmt.Sprintf("%s (last on host %s)", name, host)
	case c.core.Condition(s.kind, s.index).State == "dead" || process != "":
		return name + " (its process is dead, and the next one has not joined)"
	}
	return name + " (no process has come)"
}

// withoutServers says how a job continues without servers.
func withoutServers(f *membership.Facts) string {
	switch {
	case !f.Placed():
		return "training begins once all servers are there: start them, or the job again with fewer --servers"
	case f.Job.TakeOverMs > 0:
		return fmt.Sprintf("other servers take over after %v (--take-over-after)",
			time.Duration(f.Job.TakeOverMs)*time.Millisecond)
	}
	return "start a server"
}

// withoutWorkers says how a job continues without the workers of slots. Under bsp it does not, nor without a slot that
// never began: its share of the first clock has no other slot.
func withoutWorkers(f *membership.Facts, folder string, missing []seat) string {
	leave, all := "", true
	for i := range f.Slots {
		switch at := (seat{membership.Worker, i}); {
		case !slices.Contains(missing, at):
			all = all && f.View.Slots[i].Left
		case f.Slots[i].Incarnation > 0 && !f.TwoStep():
			leave += fmt.Sprintf(" --leave %d", i)
		}
	}
	switch {
	case f.TwoStep():
		return "under bsp all workers wait for each: start one for each slot, or the job again with fewer " +
			"--workers"
	case leave == "" || all:
		return "start a worker for each slot, or the job again with fewer --workers"
	}
	command := "perdure scale"
	if folder != "" {
		command += " --run " + folder
	}
	return "the others continue without them after " + command + leave
}

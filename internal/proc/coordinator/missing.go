package coordinator

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure/internal/core/membership"
)

const (
	// missingAfter is how long a server or slot may lack a process before the user is notified. A replacement usually
	// takes less.
	missingAfter = 8 * time.Second
	// missingAlsoAfter is the minimum time that others must have been missing to be named in the same message.
	missingAlsoAfter = missingAfter - 2*time.Second
	maxMissing       = 8 // named in one message
)

// missingMembers tracks which servers and slots lack a process, and since when. The loop owns it.
type missingMembers struct {
	since      map[memberID]time.Time
	notified   []memberID // last notification
	notifiedAt time.Time  // time of the last notification
}

func newMissingMembers() missingMembers { return missingMembers{since: map[memberID]time.Time{}} }

// dueForNotice takes the servers and slots that lack a process now, in order, and returns those to notify the user
// about. It returns none if it is too early or the user knows. Notifications that differ are at least missingAfter
// apart.
func (m *missingMembers) dueForNotice(now time.Time, places []memberID) (news []memberID) {
	since, due := make(map[memberID]time.Time, len(places)), false
	for _, s := range places {
		at, was := m.since[s]
		if !was {
			at = now
		}
		since[s] = at
		if now.Sub(at) >= missingAlsoAfter {
			news = append(news, s)
		}
		due = due || now.Sub(at) >= missingAfter
	}
	m.since = since
	switch {
	case len(news) == 0:
		m.notified = nil
		return nil
	case !due || slices.Equal(news, m.notified) || now.Sub(m.notifiedAt) < missingAfter:
		return nil
	}
	m.notified, m.notifiedAt = news, now
	return news
}

// notifyMissing notifies the user which processes the job waits for and how it can continue without them.
func (m *missingMembers) notifyMissing(now time.Time, c *Coordinator) {
	f := c.core.Record()
	if f.IsOver() || c.core.Complete() || c.shutdown.refusal != nil {
		return
	}
	news := m.dueForNotice(now, membersWithoutProcess(c.core))
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
		if i < maxMissing {
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
		text += "; " + withoutWorkers(f, &c.cfg, news)
	}
	target := ""
	if len(news) == 1 {
		target = fmt.Sprintf("%s:%d", news[0].kind, news[0].index)
	}
	c.emit(membership.Event{Kind: "missing", Target: target, Text: text})
}

// membersWithoutProcess returns the servers and slots that lack a process and that others wait for, servers first.
func membersWithoutProcess(core *membership.Core) (all []memberID) {
	f := core.Record()
	away := func(k membership.Kind, i int) bool {
		state := core.MemberStatus(k, i).State
		return state == "waiting" || state == "dead"
	}
	if !f.Placed() || !core.Serving() {
		for i := range f.Servers {
			if !f.Servers[i].Left && away(membership.Server, i) {
				all = append(all, memberID{membership.Server, i})
			}
		}
	}
	for i := range f.Slots {
		if sl := &f.View.Slots[i]; !sl.Left && sl.From <= core.MinClock()+1 && away(membership.Worker, i) {
			all = append(all, memberID{membership.Worker, i})
		}
	}
	return all
}

// nameOf returns the name of a server or slot, with the state of its last process.
func nameOf(s memberID, c *Coordinator) string {
	process := c.problems.arrivals[s.index][0].process
	if s.kind == membership.Server {
		process = c.core.Record().Servers[s.index].Process
	}
	name, host := fmt.Sprintf("%s:%d", s.kind, s.index), c.members.hostOf(process)
	switch {
	case host != "":
		return fmt.Sprintf("%s (last on host %s)", name, host)
	case c.core.MemberStatus(s.kind, s.index).State == "dead" || process != "":
		return name + " (its process is dead and no replacement has joined)"
	}
	return name + " (no process has joined)"
}

// withoutServers tells the user how a job continues without servers.
func withoutServers(f *membership.JobRecord) string {
	switch {
	case !f.Placed():
		return "training starts once all servers have joined: start them, or restart the job with fewer --servers"
	case f.Job.TakeOverMs > 0:
		return fmt.Sprintf("other servers take over after %v (--take-over-after)",
			time.Duration(f.Job.TakeOverMs)*time.Millisecond)
	}
	return "start a server"
}

// withoutWorkers tells the user how a job continues without some workers. Under bsp it cannot, and it cannot continue
// without a slot that never started, since no other slot does its share of the first clock.
func withoutWorkers(f *membership.JobRecord, cfg *Config, missing []memberID) string {
	if cfg.StartsWorkers {
		return "their programs are started automatically, and may still be loading; their output is in " +
			filepath.Join(cfg.Dir, "logs")
	}
	leave, all := "", true
	for i := range f.Slots {
		switch at := (memberID{membership.Worker, i}); {
		case !slices.Contains(missing, at):
			all = all && f.View.Slots[i].Left
		case f.Slots[i].Incarnation > 0 && !f.TwoStep():
			leave += fmt.Sprintf(" --leave %d", i)
		}
	}
	switch {
	case f.TwoStep():
		return "under bsp, all workers wait for each other: start a worker for each slot, or restart the job with " +
			"fewer --workers"
	case leave == "" || all:
		return "start a worker for each slot, or restart the job with fewer --workers"
	}
	command := "perdure scale"
	if cfg.Dir != "" {
		command += " --run " + cfg.Dir
	}
	return "to continue without them, run " + command + leave
}

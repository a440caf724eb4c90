package coordinator

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/data/wire"
)

// Drained identifies a process that was ordered to hand over its work and end.
type Drained struct {
	Kind        membership.Kind
	Index       int
	Incarnation perdure.Incarnation
}

// drain orders a server, or all processes of a host, to hand over their work and end within a notice. A notice of 0
// sets no limit, or keeps the host's own. drain does not wait for the hand-over.
func (c *memberSet) drain(core *membership.Core, who string, notice time.Duration) (all []Drained, err error) {
	var to []*member
	f := core.Record()
	worker, isWorker := strings.CutPrefix(who, string(membership.Worker)+":")
	server, isServer := strings.CutPrefix(who, string(membership.Server)+":")
	switch {
	case f.IsOver():
		return nil, fmt.Errorf("%w: the job is over", perdure.ErrStopped)
	case isWorker:
		return nil, perdure.Usagef("a worker has no shards to hand over; use perdure scale --leave %.20s", worker)
	case isServer:
		all, to, err = c.serverToDrain(f, server)
	default:
		all, to, err = c.hostsToDrain(core, who)
	}
	if err != nil {
		return nil, err
	}
	if leave := serverIndexes(all); len(leave) > 0 && !hasOtherServer(core, leave) {
		return nil, fmt.Errorf("%w: no other server could take over the shards of %s; start another server "+
			"first", perdure.ErrRefused, who)
	}
	for _, m := range to {
		if m.hello.Role != wire.RoleServer || notice > 0 || isServer { // else its host does, after its workers
			m.send(wire.Control(wire.KindOrder, wire.DrainOrder(notice.Milliseconds())))
		}
	}
	return all, nil
}

func serverIndexes(all []Drained) (servers []int) {
	for _, d := range all {
		if d.Kind == membership.Server {
			servers = append(servers, d.Index)
		}
	}
	return servers
}

// hasOtherServer reports whether there is a server, besides those given, that may receive shards.
func hasOtherServer(core *membership.Core, beside []int) bool {
	for i := range core.Record().Servers {
		if core.MemberStatus(membership.Server, i).Eligible && !slices.Contains(beside, i) {
			return true
		}
	}
	return false
}

func (c *memberSet) serverToDrain(f *membership.JobRecord, number string) (all []Drained, to []*member, err error) {
	n, err := strconv.ParseUint(number, 10, 31)
	if err != nil || int(n) >= len(f.Servers) {
		return nil, nil, perdure.Usagef("there is no server:%.20s; this job's servers are 0 to %d", number,
			len(f.Servers)-1)
	}
	m, p := c.newest[memberID{membership.Server, int(n)}], &f.Servers[n]
	if m == nil || !m.welcomed || p.Left && !p.Draining {
		return nil, nil, perdure.Usagef("server:%d is not connected: see perdure status", n)
	}
	return []Drained{{membership.Server, int(n), p.Incarnation}}, []*member{m}, nil
}

func (c *memberSet) hostsToDrain(core *membership.Core, who string) (all []Drained, to []*member, err error) {
	hosts := c.hostsNamed(who)
	if len(hosts) == 0 {
		known := "no host is connected"
		if names := c.hostNames(); len(names) > 0 {
			known = "its hosts are " + strings.Join(names, ", ")
		}
		return nil, nil, perdure.Usagef("this job has no host %.40q: %s; give the name of a host, or server:N", who,
			known)
	}
	for _, h := range hosts {
		var servers []*member
		add := func(k membership.Kind, places []membership.Member) {
			for i := range places {
				if hostSecret(places[i].Process) != h.hello.Process || core.MemberStatus(k, i).State == "dead" {
					continue
				}
				all = append(all, Drained{k, i, places[i].Incarnation})
				if m := c.newest[memberID{k, i}]; m != nil && k == membership.Server {
					servers = append(servers, m)
				}
			}
		}
		add(membership.Server, core.Record().Servers)
		add(membership.Worker, core.Record().Slots)
		to = append(append(to, h), servers...)
	}
	return all, to, nil
}

// isHost reports whether a member is a host with a display name.
func (m *member) isHost() bool {
	return m.hello.Role == wire.RoleObserver && m.hello.DisplayName != "" && len(m.hello.Process) >= minHostName
}

// hostsNamed returns the hosts with a display name. Several hosts on one machine may have the same name.
func (c *memberSet) hostsNamed(called string) (all []*member) {
	for m := range c.all {
		if m.isHost() && m.hello.DisplayName == called {
			all = append(all, m)
		}
	}
	slices.SortFunc(all, func(a, b *member) int { return strings.Compare(a.hello.Process, b.hello.Process) })
	return all
}

// maxNames is the maximum number of hosts named in one message.
const maxNames = 20

// hostNames returns the display names of the connected hosts.
func (c *memberSet) hostNames() (names []string) {
	for m := range c.all {
		if m.isHost() {
			names = append(names, m.hello.DisplayName)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	return names[:min(len(names), maxNames)]
}

// hostOf returns the display name of a process's host, or "" if that host is not connected.
func (c *memberSet) hostOf(process string) string {
	host := hostSecret(process)
	if host == "" {
		return ""
	}
	for m := range c.all {
		if m.isHost() && m.hello.Process == host {
			return m.hello.DisplayName
		}
	}
	return ""
}

// hostSecret returns the secret name of the host that started a process, or "" if no host did. Process names start with
// it.
func hostSecret(process string) string {
	host, _, _ := strings.Cut(process, "-")
	if len(host) < minHostName {
		return ""
	}
	return host
}

package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/registry"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/rig"
)

// Never is the pause after which a host has no next process.
const Never time.Duration = -1

// grace is how long a host that was cut off is not counted on after that: the
// coordinator may give it up a moment before it hears of it.
const grace = time.Second

func (c *Cluster) fault(format string, args ...any) {
	c.o.Log.Info("FAULT: " + fmt.Sprintf(format, args...))
}

// Facts returns what the registry holds.
func (c *Cluster) Facts() (facts membership.Facts, err error) {
	r, err := registry.OpenFile(unlocked{c.hosts.Disk}, "registry/facts")
	if err != nil {
		return facts, err
	}
	defer r.Close()
	doc, revision, err := r.Load(context.WithoutCancel(c.ctx))
	if err != nil {
		return facts, err
	}
	if revision == 0 {
		return facts, errors.New("sim: the registry is empty")
	}
	return facts, json.Unmarshal(doc, &facts)
}

// unlocked is a disk whose files are only looked at.
type unlocked struct{ disk.FS }

// Spares reports whether every shard would keep a replica without some hosts: one on a
// server that lives, is not cut off, and is the process that the registry names. Who is one too
// many after a move may be leaving already, and is not counted on.
func (c *Cluster) Spares(hosts ...string) bool {
	facts, err := c.Facts()
	if err != nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	lives := func(h words.Holder) bool {
		place := &facts.Servers[h.Server]
		return h.Incarnation == place.Incarnation && slices.ContainsFunc(c.names, func(host string) bool {
			p := c.procs[host]
			return p != nil && p.Name == place.Process && c.away[host] == 0 && !slices.Contains(hosts, host)
		})
	}
	for i := range facts.View.Shards {
		sv := &facts.View.Shards[i]
		left := 0
		for j := range sv.Replicas() {
			if lives(sv.Replica(j)) {
				left++
			}
		}
		if left <= max(0, sv.Replicas()-recovery.Of(facts.Job.Recovery).Traits().Copies) {
			return false
		}
	}
	return true
}

// Kill kills a host ("server:0") and starts its next process after a pause, or Never. A
// worker that has ended already stays so.
func (c *Cluster) Kill(host string, pause time.Duration) {
	c.mu.Lock()
	p := c.procs[host]
	delete(c.procs, host)
	if p != nil && p.role == wire.RoleWorker {
		c.dead[perdure.Slot(p.index)] = true
	}
	if p != nil && c.next[host] { // whoever comes does the next term
		delete(c.next, host)
		c.working[host]--
		c.left--
	}
	if p != nil && p.draining {
		c.away[host]--
	}
	c.mu.Unlock()
	if p == nil {
		return
	}
	c.fault("%s dies; the next process comes after %v", p.Name, pause)
	if p.role == wire.RoleServer {
		c.died.Store(time.Now().UnixNano())
	}
	p.Kill()
	c.exited(p)
	c.later(pause, func() { c.start(host) })
}

// later does something after a pause, if the cluster is there still.
func (c *Cluster) later(pause time.Duration, f func()) {
	if pause < 0 {
		return
	}
	c.hosts.Go(func() {
		select {
		case <-time.After(pause):
			f()
		case <-c.ctx.Done():
		}
	})
}

// mostNewcomers is how many servers without a place of their own there are at most.
const mostNewcomers = 8

// Quiet returns how long ago a server died last, or was let through again: what it says
// then, it may have said before it died. It is 0 where that was when the job was done: nobody takes its place then, and
// a worker that is frozen may hold the end up for long.
func (c *Cluster) Quiet() time.Duration {
	died, done := c.died.Load(), c.done.Load()
	if done > 0 && died >= done {
		return 0
	}
	return time.Since(time.Unix(0, died))
}

// Join starts the server of a newcomer.
func (c *Cluster) Join(host string) {
	c.fault("%s comes", host)
	c.start(host)
}

// Drain tells a server to hand over what it holds and to end. Its next process comes
// a pause later, or Never.
func (c *Cluster) Drain(host string, pause time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.procs[host]
	if p == nil || p.draining {
		return
	}
	c.fault("%s is to hand over and to end; the next process comes %v later", p.Name, pause)
	p.draining, p.pause = true, pause
	c.away[host]++ // the others may be told to do without it at any moment
	p.Drain()
}

// Cut lets nothing through between two hosts for a while. What is sent meanwhile
// comes late, or the connection breaks.
func (c *Cluster) Cut(a, b string, oneWay bool, d time.Duration) {
	c.fault("%s and %s are cut off from one another for %v (one way: %t)", a, b, d, oneWay)
	c.cut(a, []string{b}, oneWay, d)
}

// Freeze lets nothing through to or from a host for a while: so does a process that is
// stopped, and woken again, look to all others.
func (c *Cluster) Freeze(host string, d time.Duration) {
	c.fault("%s freezes for %v", host, d)
	c.mu.Lock()
	others := slices.Clone(c.names)
	for n := range mostNewcomers { // who comes meanwhile is not heard either
		if h := rig.Newcomer(n); !slices.Contains(others, h) {
			others = append(others, h)
		}
	}
	c.mu.Unlock()
	c.cut(host, slices.DeleteFunc(others, func(h string) bool { return h == host }), false, d)
}

// givenUp notes hosts that the coordinator may give up, since it does not hear them for long: of
// workers that is like a death.
func (c *Cluster) givenUp(hosts ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, host := range hosts {
		if role, slot := rig.Place(host); role == wire.RoleWorker {
			c.dead[perdure.Slot(slot)] = true
		}
	}
}

// cut cuts a host off from others. A server that the coordinator cannot hear is not to
// be counted on, unless it is the coordinator that is cut off from all.
func (c *Cluster) cut(host string, others []string, oneWay bool, d time.Duration) {
	var away []string
	switch {
	case host == rig.CoordinatorHost && len(others) == 1:
		away = others
	case slices.Contains(others, rig.CoordinatorHost):
		away = []string{host}
	}
	for _, other := range others {
		c.bar(host, other, oneWay)
	}
	for _, h := range away {
		c.leave(h, 1)
	}
	if d >= grace && host == rig.CoordinatorHost {
		c.givenUp(others...)
	} else if d >= grace && slices.Contains(others, rig.CoordinatorHost) {
		c.givenUp(host)
	}
	c.hosts.Go(func() {
		select {
		case <-time.After(d):
		case <-c.ctx.Done():
		}
		for _, other := range others {
			c.unbar(host, other)
		}
		if slices.ContainsFunc(away, IsServer) {
			c.died.Store(time.Now().UnixNano())
		}
		c.later(grace, func() {
			for _, h := range away {
				c.leave(h, -1)
			}
		})
	})
}

// bar lets nothing through between two hosts until as many unbars: what one fault cuts
// off, the end of another does not let through.
func (c *Cluster) bar(a, b string, oneWay bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.barred[pairOf(a, b)]++
	c.hosts.Net.Cut(a, b, oneWay)
}

func (c *Cluster) unbar(a, b string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.barred[pairOf(a, b)]--; c.barred[pairOf(a, b)] == 0 {
		c.hosts.Net.Heal(a, b)
	}
}

// pairOf names two hosts, in whichever order they are.
func pairOf(a, b string) [2]string { return [2]string{min(a, b), max(a, b)} }

func (c *Cluster) leave(host string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.away[host] += n
}

// Fill makes the disk full for a while: nothing more can be written.
func (c *Cluster) Fill(d time.Duration) {
	c.fault("the disk is full for %v", d)
	c.hosts.Disk.Limit(1)
	c.hosts.Go(func() {
		select {
		case <-time.After(d):
		case <-c.ctx.Done():
		}
		c.hosts.Disk.Limit(0)
	})
}

// exited tells the parent that a process has ended.
func (c *Cluster) exited(p *process) {
	if !c.o.Parent || p.index < 0 || p.role == wire.RoleCoordinator {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e := wire.Exited{Role: p.role, Index: p.index, PID: p.PID, How: "killed"}
	c.exits = append(c.exits, e)
	if c.to != nil {
		_ = c.to.TrySend(wire.Control(wire.KindExited, e)) // else it is told on the next connection
	}
}

// parent keeps a link to the coordinator, as the processes' parent does: it tells of
// their ends, and kills whom the coordinator suspects.
func (c *Cluster) parent(ctx context.Context) {
	link := transport.Link{
		Network: c.hosts.Net.Host("parent"), Addr: rig.CoordinatorAddr,
		Hello: func() wire.Hello { return wire.Hello{Role: wire.RoleSupervisor, Job: c.o.Job.ID, Process: "parent"} },
		Up: func(conn transport.Conn, _ *wire.Frame) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.to = conn
			for _, e := range c.exits {
				_ = conn.TrySend(wire.Control(wire.KindExited, e)) // a broken link says it itself
			}
		},
		Frame: func(conn transport.Conn, f *wire.Frame) error {
			var o wire.Order
			if f.Kind != wire.KindOrder || wire.ParseControl(f, &o) != nil {
				return nil
			}
			switch o.Kind {
			case wire.OrderLook: // nothing is slow in virtual time: a silent process is frozen, or cut off
				o.Kind = wire.OrderIdle
				_ = conn.TrySend(wire.Control(wire.KindOrder, o))
			case wire.OrderKill:
				c.killSuspect(o.PID)
			}
			return nil
		},
		Down: func(transport.Conn, error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.to = nil
		},
	}
	_ = link.Run(ctx) // until the cluster ends
}

// killSuspect kills the process of that number, if it lives.
func (c *Cluster) killSuspect(pid int) {
	c.mu.Lock()
	host := ""
	for h, p := range c.procs {
		if p.PID == pid {
			host = h
		}
	}
	c.mu.Unlock()
	switch {
	case host == "":
	case c.o.Job.NoReplace && IsServer(host):
		c.Kill(host, Never)
	default:
		c.Kill(host, 5*time.Millisecond)
	}
}

// IsServer reports whether a host's process is a server.
func IsServer(host string) bool {
	role, _ := rig.Place(host)
	return role == wire.RoleServer
}

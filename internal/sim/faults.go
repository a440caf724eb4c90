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
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/registry"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/testcluster"
)

// Never is the pause of a host that is not restarted.
const Never time.Duration = -1

// reconnectGrace is how long a host counts as unavailable after a partition has ended. The coordinator may give it up
// shortly before a message from it arrives.
const reconnectGrace = time.Second

func (c *Cluster) fault(format string, args ...any) {
	c.o.Log.Info("FAULT: " + fmt.Sprintf(format, args...))
}

// JobRecord returns the job record from the registry.
func (c *Cluster) JobRecord() (record membership.JobRecord, err error) {
	r, err := registry.OpenFile(withoutLocks{c.hosts.Disk}, "registry/facts")
	if err != nil {
		return record, err
	}
	defer r.Close()
	doc, revision, err := r.Load(context.WithoutCancel(c.ctx))
	if err != nil {
		return record, err
	}
	if revision == 0 {
		return record, errors.New("sim: the registry is empty")
	}
	return record, json.Unmarshal(doc, &record)
}

// withoutLocks is a disk without file locks, for reading only.
type withoutLocks struct{ disk.FS }

// KeepsReplicas reports whether every shard would keep a replica without some hosts. A replica counts if its server is
// alive, not cut off, and the process that the registry names. Surplus replicas after a move do not count: they may be
// leaving.
func (c *Cluster) KeepsReplicas(hosts ...string) bool {
	record, err := c.JobRecord()
	if err != nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	lives := func(h protocol.Holder) bool {
		place := &record.Servers[h.Server]
		return h.Incarnation == place.Incarnation && slices.ContainsFunc(c.names, func(host string) bool {
			p := c.processes[host]
			return p != nil && p.Name == place.Process && c.unavailable[host] == 0 && !slices.Contains(hosts, host)
		})
	}
	for i := range record.View.Shards {
		sv := &record.View.Shards[i]
		left := 0
		for j := range sv.Replicas() {
			if lives(sv.Replica(j)) {
				left++
			}
		}
		if left <= max(0, sv.Replicas()-recovery.Of(record.Job.Recovery).Traits().Copies) {
			return false
		}
	}
	return true
}

// Kill kills a host ("server:0") and starts its replacement after a pause, or Never. A worker that has already finished
// is not restarted.
func (c *Cluster) Kill(host string, pause time.Duration) {
	c.mu.Lock()
	p := c.processes[host]
	delete(c.processes, host)
	if p != nil && p.role == wire.RoleWorker {
		c.restartedSlots[perdure.Slot(p.index)] = true
	}
	if p != nil && c.hasNextTerm[host] { // the replacement does the next term
		delete(c.hasNextTerm, host)
		c.unfinishedTerms[host]--
		c.unfinished--
	}
	if p != nil && p.draining {
		c.unavailable[host]--
	}
	c.mu.Unlock()
	if p == nil {
		return
	}
	c.fault("%s is killed; its replacement starts after %v", p.Name, pause)
	if p.role == wire.RoleServer {
		c.lastServerDeath.Store(time.Now().UnixNano())
	}
	p.Kill()
	c.reportExit(p)
	c.afterPause(pause, func() { c.start(host) })
}

// afterPause calls f after a pause unless the cluster has ended by then.
func (c *Cluster) afterPause(pause time.Duration, f func()) {
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

// maxUnnumberedServers is the max number of servers that join without a server index of their own.
const maxUnnumberedServers = 8

// SinceServerDeath returns the time since a server last died or was reconnected after a partition: messages that arrive
// then may have been sent before it died. SinceServerDeath returns 0 if that happened after the job was done. Dead
// servers are not replaced then, and a frozen worker may delay the end for long.
func (c *Cluster) SinceServerDeath() time.Duration {
	died, done := c.lastServerDeath.Load(), c.jobEndedAt.Load()
	if done > 0 && died >= done {
		return 0
	}
	return time.Since(time.Unix(0, died))
}

// Join starts the server of a newcomer.
func (c *Cluster) Join(host string) {
	c.fault("%s joins", host)
	c.start(host)
}

// Drain asks a server to hand over its shards and to end. Its replacement starts after a pause, or Never.
func (c *Cluster) Drain(host string, pause time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.processes[host]
	if p == nil || p.draining {
		return
	}
	c.fault("%s drains and ends; its replacement starts %v later", p.Name, pause)
	p.draining, p.pause = true, pause
	c.unavailable[host]++ // views without it may be published at any moment
	p.Drain()
}

// Partition partitions two hosts for a while. Messages sent meanwhile arrive late, or the connection breaks.
func (c *Cluster) Partition(a, b string, oneWay bool, d time.Duration) {
	c.fault("%s and %s are partitioned for %v (one way: %t)", a, b, d, oneWay)
	c.partition(a, []string{b}, oneWay, d)
}

// Freeze blocks all messages to and from a host for a while. To other hosts this looks like a process that was stopped
// and later continued.
func (c *Cluster) Freeze(host string, d time.Duration) {
	c.fault("%s freezes for %v", host, d)
	c.mu.Lock()
	others := slices.Clone(c.names)
	for n := range maxUnnumberedServers { // hosts that join meanwhile are cut off as well
		if h := testcluster.UnnumberedServer(n); !slices.Contains(others, h) {
			others = append(others, h)
		}
	}
	c.mu.Unlock()
	c.partition(host, slices.DeleteFunc(others, func(h string) bool { return h == host }), false, d)
}

// markSuspects marks the workers among hosts as dead. The coordinator may give up a host that it cannot reach for long.
func (c *Cluster) markSuspects(hosts ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, host := range hosts {
		if role, slot := testcluster.ParseHost(host); role == wire.RoleWorker {
			c.restartedSlots[perdure.Slot(slot)] = true
		}
	}
}

// partition partitions a host from others. A server that the coordinator cannot reach counts as unavailable, unless the
// coordinator itself is cut off from all.
func (c *Cluster) partition(host string, others []string, oneWay bool, d time.Duration) {
	var away []string
	switch {
	case host == testcluster.CoordinatorHost && len(others) == 1:
		away = others
	case slices.Contains(others, testcluster.CoordinatorHost):
		away = []string{host}
	}
	for _, other := range others {
		c.block(host, other, oneWay)
	}
	for _, h := range away {
		c.setUnavailable(h, 1)
	}
	if d >= reconnectGrace && host == testcluster.CoordinatorHost {
		c.markSuspects(others...)
	} else if d >= reconnectGrace && slices.Contains(others, testcluster.CoordinatorHost) {
		c.markSuspects(host)
	}
	c.hosts.Go(func() {
		select {
		case <-time.After(d):
		case <-c.ctx.Done():
		}
		for _, other := range others {
			c.unblock(host, other)
		}
		if slices.ContainsFunc(away, IsServer) {
			c.lastServerDeath.Store(time.Now().UnixNano())
		}
		c.afterPause(reconnectGrace, func() {
			for _, h := range away {
				c.setUnavailable(h, -1)
			}
		})
	})
}

// block blocks messages between two hosts until unbar was called equally often, so that the end of one fault does not
// undo another.
func (c *Cluster) block(a, b string, oneWay bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.blocked[pairOf(a, b)]++
	c.hosts.Net.Cut(a, b, oneWay)
}

func (c *Cluster) unblock(a, b string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.blocked[pairOf(a, b)]--; c.blocked[pairOf(a, b)] == 0 {
		c.hosts.Net.Heal(a, b)
	}
}

// pairOf returns a key for two hosts that does not depend on their order.
func pairOf(a, b string) [2]string { return [2]string{min(a, b), max(a, b)} }

func (c *Cluster) setUnavailable(host string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unavailable[host] += n
}

// FillDisk makes every disk write fail for a while, as on a full disk.
func (c *Cluster) FillDisk(d time.Duration) {
	c.fault("the disk is full for %v", d)
	c.hosts.Disk.SetLimit(1)
	c.hosts.Go(func() {
		select {
		case <-time.After(d):
		case <-c.ctx.Done():
		}
		c.hosts.Disk.SetLimit(0)
	})
}

// reportExit reports to the parent that a process has ended.
func (c *Cluster) reportExit(p *process) {
	if !c.o.Supervised || p.index < 0 || p.role == wire.RoleCoordinator {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e := wire.Exited{Role: p.role, Index: p.index, PID: p.PID, How: "killed"}
	c.exits = append(c.exits, e)
	if c.toCoordinator != nil {
		_ = c.toCoordinator.TrySend(
			wire.Control(wire.KindExited, e)) // if this fails, it is sent on the next connection
	}
}

// superviseProcesses keeps a link to the coordinator as a supervisor does. It reports exits and kills the processes
// that the coordinator suspects.
func (c *Cluster) superviseProcesses(ctx context.Context) {
	link := transport.Link{
		Network: c.hosts.Net.Host("parent"), Addr: testcluster.CoordinatorAddr,
		Hello: func() wire.Hello { return wire.Hello{Role: wire.RoleSupervisor, Job: c.o.Job.ID, Process: "parent"} },
		Up: func(conn transport.Conn, _ *wire.Frame) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.toCoordinator = conn
			for _, e := range c.exits {
				_ = conn.TrySend(wire.Control(wire.KindExited, e)) // Link reports a broken connection itself
			}
		},
		Frame: func(conn transport.Conn, f *wire.Frame) error {
			var o wire.Order
			if f.Kind != wire.KindOrder || wire.ParseControl(f, &o) != nil {
				return nil
			}
			switch o.Kind {
			case wire.OrderProbe: // nothing is slow in virtual time: a silent process is frozen, or cut off
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
			c.toCoordinator = nil
		},
	}
	_ = link.Run(ctx) // until the cluster ends
}

// killSuspect kills the process with a PID if it is alive.
func (c *Cluster) killSuspect(pid int) {
	c.mu.Lock()
	host := ""
	for h, p := range c.processes {
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
	role, _ := testcluster.ParseHost(host)
	return role == wire.RoleServer
}

package chain

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestScripts runs the scripts of testdata/scripts: one for each way in which a chain can be disturbed. Each command
// prints the messages that arrive because of it, and the entries that are applied.
//
//	new servers=4 members=3 [eager] [periodic] [window=2]
//	append server=0 ops=abc    the head appends entries
//	run                        messages arrive until none are in transit
//	pass from=0 to=1 [n=2]     the next messages on one connection arrive
//	copy from=0 to=1 [n=2]     the next pieces of a snapshot arrive
//	lose from=0 to=1 [n=2]     the next messages on one connection are lost
//	kill server=1              its process dies
//	restart server=1           its next process starts
//	drop server=1              the coordinator removes it from the chain
//	join server=3              the coordinator makes it copy the shard
//	promote                    the coordinator makes the joiner the tail, if it reports that it has joined
//	follow [server=(0,1)]      the servers learn the newest view; without server=, all of them
//	cut from=0 to=1            their connection breaks: messages in transit are lost
//	delay from=0 to=1          the same, but messages in transit may arrive later
//	late                       the next delayed message arrives
//	connect from=0 to=1        they have a new connection
//	tick [n=20]                time passes, for all servers
//	sync server=0              a periodic member brings its successor up to date
//	show                       prints the state of each server
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		var c *cluster
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var sent strings.Builder
			if d.Cmd == "new" {
				c = scriptCluster(t, d)
			} else if err := scriptCommand(t, d, c, &sent); err != nil {
				d.Fatalf(t, "%v", err)
			}
			c.trace = func(format string, args ...any) { fmt.Fprintf(&sent, format+"\n", args...) }
			var err error
			for i := range c.servers {
				if c.servers[i].r != nil {
					err = c.flush(i)
				}
			}
			if d.Cmd == "new" || d.Cmd == "run" {
				err = c.drain()
			}
			if err == nil {
				err = c.check()
			}
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			return sent.String()
		})
	})
}

func scriptCluster(t *testing.T, d *datadriven.TestData) *cluster {
	servers, members := 4, 3
	s := settings{eager: d.HasArg("eager") || d.HasArg("periodic"), periodic: d.HasArg("periodic"), window: 100}
	d.MaybeScanArgs(t, "servers", &servers)
	d.MaybeScanArgs(t, "members", &members)
	d.MaybeScanArgs(t, "window", &s.window)
	return newCluster(s, servers, members)
}

// drain delivers until nothing is in transit.
func (c *cluster) drain() error {
	for range 10000 {
		n := slices.IndexFunc(c.pipes, func(way []packet) bool { return len(way) > 0 })
		if n < 0 {
			return nil
		}
		if err := c.deliver(n); err != nil {
			return err
		}
	}
	return fmt.Errorf("messages never stop")
}

func scriptCommand(t *testing.T, d *datadriven.TestData, c *cluster, sent *strings.Builder) error {
	c.trace = func(format string, args ...any) { fmt.Fprintf(sent, format+"\n", args...) }
	server, from, to, n, ops := 0, 0, 0, 1, ""
	if arg, ok := d.Arg("server"); ok && len(arg.Vals) == 1 {
		d.ScanArgs(t, "server", &server)
	}
	if d.Cmd == "tick" {
		n = FollowTicks
	}
	d.MaybeScanArgs(t, "from", &from)
	d.MaybeScanArgs(t, "to", &to)
	d.MaybeScanArgs(t, "n", &n)
	d.MaybeScanArgs(t, "ops", &ops)
	switch d.Cmd {
	case "append":
		for _, o := range ops {
			if err := c.append(server, op(o-'a')); err != nil {
				return err
			}
		}
	case "run":
	case "kill":
		c.crash(server)
	case "restart":
		c.restart(server)
	case "drop":
		if !c.drop(server) {
			return errNoMember
		}
		sent.WriteString(c.view().String())
	case "join":
		c.join(server)
		sent.WriteString(c.view().String())
	case "promote":
		if !c.hear(c.report(c.view().joiner.server)) {
			sent.WriteString("not joined\n")
		}
		sent.WriteString(c.view().String())
	case "follow":
		c.scriptFollow(t, d)
	case "tick":
		return c.tick(n)
	case "sync":
		c.servers[server].r.Sync()
	case "show":
		sent.WriteString(c.String())
	default:
		return c.scriptNetwork(d.Cmd, from, to, n)
	}
	return nil
}

// scriptNetwork runs the commands that affect packets in transit.
func (c *cluster) scriptNetwork(cmd string, from, to, n int) error {
	switch cmd {
	case "deliver", "copy":
		way := 0
		if cmd == "copy" {
			way = len(c.cut)
		}
		for range n {
			if err := c.deliver(c.pipe(from, to) + way); err != nil {
				return err
			}
		}
	case "lose":
		way := &c.pipes[c.pipe(from, to)]
		if len(*way) < n {
			return errors.New("nothing is in transit")
		}
		*way = (*way)[n:]
	case "cut":
		c.sever(from, to, true)
	case "delay":
		c.sever(from, to, false)
	case "deliver-late":
		return c.deliverLate(0)
	case "connect":
		return c.connect(from, to)
	default:
		return fmt.Errorf("unknown command %q", cmd)
	}
	return nil
}

func (c *cluster) scriptFollow(t *testing.T, d *datadriven.TestData) {
	arg, ok := d.Arg("server")
	for i := range c.servers {
		wanted := !ok
		for j := range arg.Vals {
			var s int
			arg.Scan(t, j, &s)
			wanted = wanted || s == i
		}
		if wanted && c.servers[i].up {
			c.follow(i, len(c.views)-1)
		}
	}
}

// tick lets n ticks pass for all servers.
func (c *cluster) tick(n int) error {
	for range n {
		for i := range c.servers {
			if p := &c.servers[i]; p.r != nil {
				p.r.Tick()
				if err := c.flush(i); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (v view) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "epoch %d:", v.epoch)
	for _, h := range v.chain {
		fmt.Fprintf(&b, " %d", h.server)
	}
	if v.joiner.since > 0 {
		fmt.Fprintf(&b, ", joining %d", v.joiner.server)
	}
	return b.String() + "\n"
}

// String describes the state of each server.
func (c *cluster) String() string {
	var b strings.Builder
	for i := range c.servers {
		p := &c.servers[i]
		switch {
		case !p.up:
			fmt.Fprintf(&b, "%d dead\n", i)
		case p.r == nil:
			fmt.Fprintf(&b, "%d idle\n", i)
		default:
			fmt.Fprintf(&b, "%d epoch %d: %s\n", i, p.r.cfg.Epoch, p)
		}
	}
	return b.String()
}

func (p *process) String() string {
	r := p.r
	if !r.hasState {
		return "joining, nothing yet"
	}
	role := "middle"
	switch {
	case r.cfg.Joining && r.Joined():
		role = "joined"
	case r.cfg.Joining:
		role = "joining"
	case r.cfg.Head && r.cfg.Tail:
		role = "alone"
	case r.cfg.Head:
		role = "head"
	case r.cfg.Tail:
		role = "tail"
	}
	sent := fmt.Sprintf("%s, end %d, committed %d, applied %v", role, r.End(), r.Committed(), p.applied)
	if r.first <= r.end {
		sent += fmt.Sprintf(", keeps %d-%d", r.first, r.end)
	}
	if r.Serving() {
		sent += ", serving"
	}
	return sent
}

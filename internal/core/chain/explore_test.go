package chain

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/core/mutation"
)

// explored is a small case. Its explorer visits every state that it can reach: each packet may arrive, each view may be
// learned or skipped, each client may send, and each process may die before or after any other event.
type explored struct {
	settings
	servers, members, shards int
	clients                  int // each sends one operation to every shard, in order
	crashes, drops, breaks   int // processes that die, or are dropped while alive; connections that are replaced
	joins                    int
	met                      bool // the members have greeted each other at the start
	large                    bool // takes more than a few seconds with the race detector
}

// world is one complete state. Every server holds a replica of every shard.
type world struct {
	shards                        []*cluster
	sent                          [][]string // by client and shard: the head that its operation was last sent to
	crashes, drops, breaks, joins int
}

func (w *world) clone() *world {
	n := *w
	n.shards, n.sent = slices.Clone(w.shards), slices.Clone(w.sent)
	for i := range n.shards {
		n.shards[i] = w.shards[i].clone()
	}
	for i := range n.sent {
		n.sent[i] = slices.Clone(n.sent[i])
	}
	return &n
}

// clone copies a cluster. Parts that are never modified in place are shared.
func (c *cluster) clone() *cluster {
	n := *c
	n.views, n.servers, n.acked = slices.Clone(c.views), slices.Clone(c.servers), slices.Clone(c.acked)
	n.pipes, n.late, n.cut = slices.Clone(c.pipes), slices.Clone(c.late), slices.Clone(c.cut)
	for i := range n.pipes {
		n.pipes[i] = slices.Clip(n.pipes[i])
	}
	for i := range n.servers {
		p := &n.servers[i]
		p.applied = slices.Clone(p.applied)
		if p.r != nil {
			r := *p.r
			r.log, r.ready, r.applies, r.messages = slices.Clone(r.log), Ready[op]{}, 0, 0
			p.r = &r
		}
	}
	return &n
}

// key identifies a state by everything that its future depends on.
func (w *world) key() [16]byte {
	var b []byte
	num := func(ns ...int) {
		for _, n := range ns {
			b = binary.AppendVarint(b, int64(n))
		}
	}
	flags := func(bs ...bool) {
		for _, v := range bs {
			if v {
				b = append(b, 1)
			} else {
				b = append(b, 0)
			}
		}
	}
	list := func(h history) {
		num(len(h))
		for _, o := range h {
			num(int(o))
		}
	}
	num(w.crashes, w.drops, w.breaks, w.joins)
	for _, heads := range w.sent {
		for _, head := range heads {
			b = append(append(b, head...), 0)
		}
	}
	for _, c := range w.shards {
		v := c.view()
		num(len(c.views), int(v.epoch), v.joiner.server, int(v.joiner.since), len(v.chain))
		for _, h := range v.chain {
			num(h.server)
		}
		list(c.acked)
		for i := range c.servers {
			p := &c.servers[i]
			flags(p.up, p.r != nil, p.arriving != nil)
			num(p.seen)
			if r := p.r; r != nil {
				list(p.applied)
				num(r.free, len(r.log), int(r.first), int(r.end), int(r.committed), int(r.applied), int(r.epochStart),
					int(r.followSeen), int(r.reported), int(r.inTransit))
				list(r.log)
				flags(r.hasState, r.joined)
				for _, l := range []*progress{&r.succ, &r.join} {
					flags(l.exists, l.required)
					b = append(b, byte(l.phase))
					num(int(l.sent), int(l.has), l.inFlight, l.idle)
				}
			}
		}
		for _, way := range slices.Concat(c.pipes, c.late) {
			num(len(way))
			for i := range way {
				p := &way[i]
				num(p.from, p.to, int(p.as), p.piece, int(p.m.Kind), int(p.m.Epoch), int(p.m.Pos), int(p.m.Joiner),
					int(p.m.Entry))
				flags(p.m.None)
				list(p.snapshot)
			}
		}
	}
	sum := sha256.Sum256(b)
	return [16]byte(sum[:16])
}

// move is a possible next event. It changes the world that it is given.
type move struct {
	do     func(w *world) error
	format string
	args   []any
}

// moves returns all possible next events.
func (e *explored) moves(w *world) (all []move) {
	add := func(do func(w *world) error, format string, args ...any) {
		all = append(all, move{do, format, args})
	}
	for s, c := range w.shards {
		for n, way := range c.pipes {
			if len(way) > 0 {
				add(func(w *world) error { return w.shards[s].deliver(n) }, "shard %d: %s", s, &way[0])
			}
		}
		for n, way := range c.late {
			add(func(w *world) error { return w.shards[s].deliverLate(n) }, "shard %d: late, %s", s, &way[0])
		}
		e.viewMoves(w, s, add)
		for client := range e.clients {
			if head, ok := w.wants(client, s); ok {
				add(func(w *world) error {
					w.sent[client][s] = w.shards[s].headName()
					return w.shards[s].append(head, op(client))
				}, "shard %d: client %d sends to %d", s, client, head)
			}
		}
		if w.breaks > 0 {
			for n := range e.servers * e.servers {
				if a, b := n/e.servers, n%e.servers; a < b && len(c.pipes[n])+len(c.pipes[c.pipe(b, a)]) > 0 {
					add(func(w *world) error {
						w.breaks--
						w.shards[s].sever(a, b, false)
						return w.shards[s].connect(a, b)
					}, "shard %d: %d and %d reconnect", s, a, b)
				}
			}
		}
	}
	for i := range e.servers {
		if w.crashes > 0 && w.shards[0].servers[i].up {
			add(func(w *world) error {
				w.crashes--
				for _, c := range w.shards {
					c.crash(i)
				}
				return nil
			}, "%d dies", i)
		}
	}
	return all
}

// viewMoves adds the coordinator's possible actions, and the servers that may learn of them.
func (e *explored) viewMoves(w *world, s int, add func(do func(w *world) error, format string, args ...any)) {
	c := w.shards[s]
	v := c.view()
	for i := range c.servers {
		p := &c.servers[i]
		for index := p.seen + 1; p.up && index < len(c.views); index++ {
			add(func(w *world) error {
				w.shards[s].follow(i, index)
				return w.shards[s].flush(i)
			}, "shard %d: %d learns of epoch %d", s, i, c.views[index].epoch)
		}
		at := v.at(i, 0)
		if i >= e.members && at < 0 && p.up && w.joins > 0 && v.joiner.since == 0 {
			add(func(w *world) error {
				w.joins--
				w.shards[s].join(i)
				return nil
			}, "shard %d: %d joins", s, i)
		}
		if at < 0 || len(v.chain) == 1 && at == 0 || p.up && w.drops == 0 {
			continue
		}
		add(func(w *world) error {
			if w.shards[s].servers[i].up {
				w.drops--
			}
			w.shards[s].drop(i)
			return nil
		}, "shard %d: %d is dropped", s, i)
	}
	if j := v.joiner; j.since > 0 {
		if r := c.report(j.server); r.joined && r.holder == j && r.epoch == v.epoch {
			add(func(w *world) error {
				w.shards[s].hear(r)
				return nil
			}, "shard %d: %d is promoted", s, j.server)
		}
	}
}

// headName identifies the current head.
func (c *cluster) headName() string { return fmt.Sprint(c.view().chain[0].server) }

// wants returns the head of the shard that the client would send its operation to now. A client sends to the shards in
// order, and resends to a new head whatever no member shows.
func (w *world) wants(client, s int) (head int, ok bool) {
	c := w.shards[s]
	h := c.view().chain[0]
	p := &c.servers[h.server]
	if s > 0 && w.sent[client][s-1] == "" || w.sent[client][s] == c.headName() || slices.Contains(c.acked, op(client)) {
		return 0, false
	}
	return h.server, p.up && p.r != nil && p.r.cfg.Head
}

// explore visits all states, and returns their number and the first error.
func (e explored) explore() (states int, err error) {
	w := &world{crashes: e.crashes, drops: e.drops, breaks: e.breaks, joins: e.joins}
	for s := range e.shards {
		c := newCluster(e.settings, e.servers, e.members)
		if s%2 == 1 { // another head
			slices.Reverse(c.views[0].chain)
			for i := range e.members {
				c.servers[i] = process{up: true, seen: -1}
				c.follow(i, 0)
			}
		}
		for i := range e.members {
			if err := c.flush(i); err != nil {
				return 0, err
			}
		}
		if e.met {
			if err := c.drain(); err != nil {
				return 0, err
			}
		}
		w.shards = append(w.shards, c)
	}
	for range e.clients {
		w.sent = append(w.sent, make([]string, e.shards))
	}
	visited := map[[16]byte]bool{w.key(): true}
	var course []move
	var visit func(w *world) error
	visit = func(w *world) error {
		moves := e.moves(w)
		if len(moves) == 0 {
			return e.finished(w)
		}
		for _, m := range moves {
			course = append(course, m)
			n := w.clone()
			if err := m.do(n); err != nil {
				return err
			}
			if key := n.key(); !visited[key] {
				visited[key] = true
				for _, c := range n.shards {
					if err := c.check(); err != nil {
						return err
					}
				}
				if err := visit(n); err != nil {
					return err
				}
			}
			course = course[:len(course)-1]
		}
		return nil
	}
	if err := visit(w); err != nil {
		var told strings.Builder
		for _, m := range course {
			fmt.Fprintf(&told, "\n  "+m.format, m.args...)
		}
		return len(visited), fmt.Errorf("%w, after:%s", err, told.String())
	}
	return len(visited), nil
}

// finished checks the end of a course. After some ticks, because a message may have arrived before its receiver knew
// its position, everything that clients sent must be committed, applied everywhere and forgotten, and joiners must have
// joined.
func (e *explored) finished(w *world) error {
	for s, c := range w.shards {
		if !c.alive(-1) {
			continue
		}
		r := &stormRun{cluster: c.clone()}
		for range 4 {
			if err := r.round(); err != nil {
				return fmt.Errorf("shard %d at the end: %w", s, err)
			}
		}
		if err := r.atRest(); err != nil {
			return fmt.Errorf("shard %d at the end: %w", s, err)
		}
		applied := r.servers[r.view().chain[0].server].applied
		for client := range e.clients {
			if !slices.Contains(applied, op(client)) && e.sends(w, client, s) {
				return fmt.Errorf("shard %d at the end: %v lacks %v", s, applied, op(client))
			}
		}
	}
	return nil
}

// sends reports whether a client has reached a shard: it first waits for the previous ones.
func (e *explored) sends(w *world, client, s int) bool { return s == 0 || w.sent[client][s-1] != "" }

var exploredCases = map[string]explored{
	"2 replicas, 2 shards, 2 clients, 1 crash": {servers: 2, members: 2, shards: 2, clients: 2, crashes: 1},
	"3 replicas, 2 clients, 1 crash":           {servers: 3, members: 3, shards: 1, clients: 2, crashes: 1},
	"1 replica, 2 clients, 1 joins, 1 crash":   {servers: 2, members: 1, shards: 1, clients: 2, joins: 1, crashes: 1},
	"2 replicas, 1 client, 1 joins, 1 crash": {
		servers: 3, members: 2, shards: 1, clients: 1, joins: 1, crashes: 1,
		met: true,
	},
	"2 replicas, 1 client, 1 joins, 1 dropped": {
		servers: 3, members: 2, shards: 1, clients: 1, joins: 1, drops: 1,
		met: true, large: true,
	},
	"1 replica, 2 clients, 2 joins, 1 dropped": {servers: 2, members: 1, shards: 1, clients: 2, joins: 2, drops: 1},
	"2 replicas, 3 clients, 1 break":           {servers: 2, members: 2, shards: 1, clients: 3, breaks: 1},
}

// TestExplore checks that in every course of a small case, whichever processes die, no entry is lost or duplicated and
// the chain never gets stuck.
func TestExplore(t *testing.T) {
	for name, e := range exploredCases {
		e.window = 100
		t.Run(name, func(t *testing.T) {
			if testing.Short() && e.large {
				t.Skip("large case: skipped with -short")
			}
			t.Parallel()
			states, err := e.explore()
			if err != nil {
				t.Error(err)
			}
			if states < 1000 {
				t.Errorf("only %d states: the explorer visits too little", states)
			}
			t.Logf("%d states", states)
		})
	}
}

// TestExplorerNoticesWeakening checks that the explorer detects each disabled safety mechanism.
func TestExplorerNoticesWeakening(t *testing.T) {
	for name, e := range map[string]explored{
		"the epochs": {
			servers: 3, members: 2, shards: 1, clients: 1, joins: 1, drops: 1, crashes: 1,
			settings: settings{mutations: mutation.Set{Chain: mutation.Chain{Epochs: true}}},
		},
		"the positions": {
			servers: 2, members: 2, shards: 1, clients: 2, breaks: 1,
			settings: settings{mutations: mutation.Set{Chain: mutation.Chain{Positions: true}}},
		},
		"the levels": {
			servers: 2, members: 1, shards: 1, clients: 1, joins: 1,
			settings: settings{mutations: mutation.Set{Chain: mutation.Chain{Levels: true}}},
		},
	} {
		e.window = 100
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			states, err := e.explore()
			if err == nil {
				t.Error("no error was found")
			}
			t.Logf("%d states: %v", states, err)
		})
	}
}

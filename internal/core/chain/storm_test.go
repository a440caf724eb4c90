package chain

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/perdure/perdure/internal/core/mutation"
)

// stormStep is one event; a and b choose the servers that it affects.
type stormStep struct {
	What string
	A, B int
}

// storm is a course of a cluster over a network that delays, loses and duplicates messages.
type storm struct {
	Servers, Members int
	Eager, Periodic  bool
	Window           int
	Steps            []stormStep
}

// stormKinds lists how often each event happens, out of 256. In the remaining cases a packet arrives.
var stormKinds = []struct {
	what  string
	often int
}{
	{"nothing", 1}, // rapid shrinks a step to this
	{"append", 20},
	{"follow", 20},
	{"report", 8},
	{"hear", 8},
	{"join", 6},
	{"tick", 4},
	{"double", 3},
	{"lose", 3},
	{"sever", 2},
	{"cut one way", 1},
	{"connect", 5},
	{"late", 6},
	{"drop", 2},
	{"crash", 2},
	{"restart", 4},
	{"sync", 4},
}

// drawn returns n bits that are uniformly distributed, which rapid's numbers are not.
func drawn(t *rapid.T, n int) (v int) {
	for range n {
		v *= 2
		if rapid.Bool().Draw(t, "bit") {
			v++
		}
	}
	return v
}

// storms generates storms of up to n steps.
func storms(n int) *rapid.Generator[storm] {
	step := rapid.Custom(func(t *rapid.T) stormStep {
		s := stormStep{What: "deliver"}
		which := drawn(t, 8)
		for _, k := range stormKinds {
			if which < k.often {
				s.What = k.what
				break
			}
			which -= k.often
		}
		s.A, s.B = drawn(t, 4), drawn(t, 2)
		return s
	})
	return rapid.Custom(func(t *rapid.T) storm {
		s := storm{Servers: rapid.IntRange(2, 4).Draw(t, "servers")}
		s.Members = rapid.IntRange(1, min(s.Servers, 3)).Draw(t, "members")
		s.Eager = rapid.IntRange(0, 3).Draw(t, "eager") == 0
		s.Periodic = s.Eager && rapid.Bool().Draw(t, "periodic")
		s.Window = rapid.SampledFrom([]int{1, 2, 5, 100}).Draw(t, "window")
		s.Steps = rapid.SliceOfN(step, n/2, n).Draw(t, "steps")
		return s
	})
}

// GoString shortens rapid's output.
func (s stormStep) GoString() string { return fmt.Sprintf("%s %d %d", s.What, s.A, s.B) }

// stormRun is a storm in progress.
type stormRun struct {
	*cluster
	reports []report // in transit to the coordinator, which receives some late and some never
	next    op
	over    bool // no member lives
}

// run runs a storm, and then lets the cluster come to rest.
func (s storm) run(mutations mutation.Set, trace func(string, ...any)) error {
	c := newCluster(settings{eager: s.Eager, periodic: s.Periodic, window: s.Window, mutations: mutations}, s.Servers,
		s.Members)
	c.trace = trace
	r := &stormRun{cluster: c}
	for i := range s.Members {
		if err := c.flush(i); err != nil {
			return err
		}
	}
	for n, step := range s.Steps {
		c.tell("step %d: %v", n, step)
		err := r.do(step)
		if err == nil && !r.over {
			err = c.check()
		}
		if err != nil {
			return fmt.Errorf("step %d: %w", n, err)
		}
		if r.over {
			return nil
		}
	}
	return r.rest()
}

// do does one step, if it is possible now.
func (r *stormRun) do(s stormStep) error {
	a, b := s.A%len(r.servers), s.B%len(r.servers)
	p := &r.servers[a]
	switch s.What {
	case "append":
		if p.r != nil && p.r.cfg.Head {
			r.next++
			return r.append(a, r.next)
		}
	case "follow": // some views are skipped
		if latest := len(r.views) - 1; p.up && p.seen < latest {
			r.follow(a, max(p.seen+1, latest-s.B%3))
			return r.flush(a)
		}
	case "tick":
		return r.tick(FollowTicks)
	case "sync":
		if p.r != nil && p.r.cfg.Periodic && p.r.cfg.Head {
			p.r.Sync()
			return r.flush(a)
		}
	case "report":
		if p.r != nil {
			r.reports = append(r.reports, r.report(a))
		}
	case "hear":
		if len(r.reports) > 0 {
			r.hear(r.reports[0])
			r.reports = r.reports[1:]
		}
	case "join":
		if p.up {
			r.join(a)
		}
	case "drop":
		if s.B == 0 || r.alive(a) {
			r.over = !r.drop(a)
		}
	case "crash":
		if p.up && (s.B == 0 || r.alive(a)) { // the last one dies less often
			r.crash(a)
			r.over = !r.alive(-1)
		}
	case "restart":
		if !p.up {
			r.restart(a)
		}
	default:
		return r.disturb(s.What, a, b, s.A)
	}
	return nil
}

// alive reports whether any member of the chain lives, not counting one.
func (c *cluster) alive(without int) bool {
	return slices.ContainsFunc(c.view().chain, func(h holder) bool {
		p := &c.servers[h.server]
		return p.up && p.life == h.life && h.server != without
	})
}

// disturb applies a network fault.
func (r *stormRun) disturb(what string, a, b, which int) error {
	var busy []int // pipes with packets in transit
	for n, way := range r.pipes {
		if len(way) > 0 {
			busy = append(busy, n)
		}
	}
	switch what {
	case "sever":
		r.sever(a, b, which%2 == 0)
		return nil
	case "cut one way": // until they reconnect
		r.cut[r.pipe(a, b)] = true
		return nil
	case "connect":
		if n, back := r.pipe(a, b), r.pipe(b, a); r.cut[n] || r.cut[back] {
			r.sever(a, b, false) // possibly in one direction only
			return r.connect(a, b)
		}
	case "late":
		if len(r.late) > 0 {
			return r.deliverLate(which % len(r.late))
		}
	}
	if len(busy) == 0 {
		return nil
	}
	n := busy[which%len(busy)]
	first := r.pipes[n][0]
	switch what {
	case "deliver":
		return r.deliver(n)
	case "double":
		if first.piece == 0 {
			again := first
			again.double = true
			r.pipes[n] = slices.Insert(r.pipes[n], 1, again)
		}
	case "lose":
		if first.piece == 0 {
			r.pipes[n] = r.pipes[n][1:]
		}
	}
	return nil
}

// rest leaves the cluster undisturbed: no process dies, all connections work, dead members are dropped, and all servers
// learn the newest view. Then everything must be committed, joined, applied, and forgotten.
func (r *stormRun) rest() error {
	r.tell("rest")
	for len(r.late) > 0 {
		if err := r.deliverLate(0); err != nil {
			return err
		}
	}
	for i := range r.servers {
		p := &r.servers[i]
		v := r.view()
		dead := func(h holder) bool { return h.since > 0 && h.server == i && (!p.up || p.life != h.life) }
		if (dead(v.joiner) || slices.ContainsFunc(v.chain, dead)) && !r.drop(i) {
			return nil
		}
		for j := range i {
			if r.cut[r.pipe(i, j)] || r.cut[r.pipe(j, i)] {
				if err := r.connect(i, j); err != nil {
					return err
				}
			}
		}
	}
	for range 6 { // promotion takes two rounds; each round makes up for one or two lost messages
		if err := r.round(); err != nil {
			return err
		}
	}
	head := r.view().chain[0].server
	r.next++
	if err := r.append(head, r.next); err != nil {
		return err
	}
	for range 2 { // the Have after a snapshot may be lost: then the first Sync only discovers that
		if r.periodic {
			r.servers[head].r.Sync()
		}
		if err := r.round(); err != nil {
			return err
		}
	}
	return r.atRest()
}

// round lets all servers learn the newest view, all messages arrive, and time pass.
func (r *stormRun) round() error {
	for i := range r.servers {
		if p := &r.servers[i]; p.up && p.seen < len(r.views)-1 {
			r.follow(i, len(r.views)-1)
			if err := r.flush(i); err != nil {
				return err
			}
		}
	}
	if err := r.drain(); err != nil {
		return err
	}
	if v := r.view(); v.joiner.since > 0 {
		r.hear(r.report(v.joiner.server))
	}
	if err := r.tick(FollowTicks); err != nil {
		return err
	}
	if err := r.drain(); err != nil {
		return err
	}
	return r.check()
}

// atRest checks for state that must not remain at rest.
func (r *stormRun) atRest() error {
	v := r.view()
	if v.joiner.since > 0 {
		return fmt.Errorf("server %d never joins: %v", v.joiner.server, &r.servers[v.joiner.server])
	}
	head := &r.servers[v.chain[0].server]
	for _, h := range v.chain {
		p := &r.servers[h.server]
		switch {
		case !p.r.Serving():
			return fmt.Errorf("server %d does not serve: %v", h.server, p)
		case p.r.Committed() != head.r.End() || !slices.Equal(p.applied, head.applied):
			return fmt.Errorf("server %d has %v, the head %v", h.server, p, head)
		case p.r.first <= p.r.end || len(p.r.log) > 0:
			return fmt.Errorf("server %d keeps entries that are not needed: %v", h.server, p)
		}
	}
	return nil
}

// TestStorms checks random courses. Whatever processes, connections and the coordinator do, no acknowledged entry is
// lost while a member lives. Members apply the same entries in the same order, each once. An undisturbed chain commits
// and forgets everything.
func TestStorms(t *testing.T) {
	for name, steps := range map[string]int{"short": 40, "long": 400} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range 10 {
				rapid.Check(t, func(t *rapid.T) {
					if err := storms(steps).Draw(t, "storm").run(mutation.Set{}, nil); err != nil {
						t.Fatal(err)
					}
				})
			}
		})
	}
}

// TestStormsNoticeWeakening checks that storms detect each disabled safety mechanism.
func TestStormsNoticeWeakening(t *testing.T) {
	for name, off := range map[string]mutation.Chain{
		"the epochs": {Epochs: true}, "the positions": {Positions: true}, "the levels": {Levels: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range 20000 {
				if err := storms(400).Example(seed).run(mutation.Set{Chain: off}, nil); err != nil {
					t.Logf("storm %d: %v", seed, err)
					return
				}
			}
			t.Error("no error was found")
		})
	}
}

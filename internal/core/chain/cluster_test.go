package chain

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/mutation"
)

// op is an entry of the tests. Each is one byte long.
type op int

func (o op) String() string {
	if o < 26 {
		return string(rune('a' + o))
	}
	return fmt.Sprintf("(%d)", int(o))
}

// history is a sequence of entries. Positions start from 1: history[p-1] is the entry at position p.
type history []op

func (h history) String() string {
	var b strings.Builder
	for _, o := range h {
		b.WriteString(o.String())
	}
	return b.String()
}

// holder is a process with a position in the chain: a server, the number of its process, and the revision at which the
// process started to copy the shard. since is 0 if it has no position.
type holder struct {
	server, life int
	since        uint64
}

// view is the coordinator's configuration of the chain.
type view struct {
	chain  []holder
	joiner holder
	epoch  perdure.Epoch
}

// process is a server's shell around a replica, for one shard.
type process struct {
	life     int
	up       bool
	seen     int // the view that it knows; -1: none
	since    uint64
	r        *Log[op]
	applied  history
	arriving *packet // a snapshot whose first piece has arrived
	begun    uint64  // its end when its epoch began
	owned    uint64  // up to here, the log has handed over entries without keeping them
}

// packet is a message in transit. A snapshot consists of two pieces.
type packet struct {
	from, to  int
	life      int      // the receiver's life
	as        Neighbor // what the sender is to the receiver
	m         Message[op]
	snapshot  history
	piece     int // piece of a snapshot: 1, 2; 0: not a snapshot
	double    bool
	snapshots uint64
}

// settings configure a cluster.
type settings struct {
	eager, periodic bool
	window          int
	mutations       mutation.Set
}

// cluster is a chain with its coordinator and its network. Packets between two servers keep their order while their
// connection lives.
type cluster struct {
	settings
	views     []view
	servers   []process
	pipes     [][]packet // by connection: pipe(from, to), followed by those for snapshots
	late      [][]packet // of closed connections
	cut       []bool     // by pipe(from, to): packets are lost
	acked     history    // entries that members have shown; in an eager chain, without its heads
	revision  uint64
	snapshots uint64
	asked     bool // a member of a chain that is not periodic was asked to take a snapshot
	trace     func(format string, args ...any)
}

// report is a status that a process sends.
type report struct {
	holder
	epoch  perdure.Epoch
	joined bool
}

// newCluster returns a cluster of live servers in epoch 1. Servers 0 to members-1 form the chain, in this order, and
// know the first view.
func newCluster(s settings, servers, members int) *cluster {
	c := &cluster{settings: s, revision: 1, servers: make([]process, servers)}
	c.pipes, c.cut = make([][]packet, 2*servers*servers), make([]bool, servers*servers)
	first := view{epoch: 1}
	for i := range servers {
		c.servers[i] = process{up: true, seen: -1}
		if i < members {
			first.chain = append(first.chain, holder{server: i, since: 1})
		}
	}
	c.views = []view{first}
	for i := range members {
		c.follow(i, 0)
	}
	return c
}

func (c *cluster) tell(format string, args ...any) {
	if c.trace != nil {
		c.trace(format, args...)
	}
}

// view returns the newest view.
func (c *cluster) view() *view { return &c.views[len(c.views)-1] }

// change derives a new view from the newest one.
func (c *cluster) change(how func(v *view)) {
	v := *c.view()
	v.chain = slices.Clone(v.chain)
	c.revision++
	how(&v)
	c.views = append(c.views, v)
}

// at returns the position of server i in a view's chain: -1 if it has none, len(chain) if it is the joiner.
func (v *view) at(i, life int) int {
	if v.joiner.since > 0 && v.joiner.server == i && v.joiner.life == life {
		return len(v.chain)
	}
	return slices.IndexFunc(v.chain, func(h holder) bool { return h.server == i && h.life == life })
}

// peer returns the neighbor of the chain's member at position at that has the role as: its predecessor, its successor,
// or the joiner, which only the tail has. ok is false if that neighbor does not exist.
func (v *view) peer(at int, as Neighbor) (h holder, ok bool) {
	switch {
	case as == Joiner:
		return v.joiner, v.joiner.since > 0 && at == len(v.chain)-1
	case as == Successor && at+1 < len(v.chain):
		return v.chain[at+1], true
	case as == Predecessor && at > 0:
		return v.chain[at-1], true
	}
	return holder{}, false
}

// follow makes server i adopt the view with this index. It creates or drops the server's replica if the view requires
// that.
func (c *cluster) follow(i, index int) {
	p, v := &c.servers[i], &c.views[index]
	first := p.seen < 0 && index == 0
	p.seen = index
	at := v.at(i, p.life)
	if at < 0 {
		p.r, p.applied, p.since, p.arriving = nil, nil, 0, nil
		return
	}
	h := v.joiner
	if at < len(v.chain) {
		h = v.chain[at]
	}
	if p.r == nil || p.since != h.since {
		size := func(op) int { return 1 }
		p.r, p.applied, p.since, p.arriving = NewJoiner(size, c.window), nil, h.since, nil
		if first {
			p.r = New(0, size, c.window)
		}
		p.r.mutations, p.owned = c.mutations, 0
	}
	cfg := Config{
		Epoch: v.epoch, Head: at == 0, Tail: at == len(v.chain)-1, Joining: at == len(v.chain),
		Eager: c.eager, Periodic: c.periodic,
	}
	if cfg.Tail || cfg.Joining {
		cfg.Joiner = v.joiner.since
	}
	if cfg.Epoch > p.r.cfg.Epoch {
		p.begun = p.r.End()
	}
	p.r.Configure(cfg)
}

// append passes an entry to the head's process.
func (c *cluster) append(i int, o op) error {
	c.servers[i].r.Append(o)
	return c.flush(i)
}

// flush carries out what server i's replica requests: it applies entries and sends messages and snapshots. It returns
// an error if the replica violates an invariant.
func (c *cluster) flush(i int) error {
	p := &c.servers[i]
	if p.r == nil {
		return nil
	}
	ready := p.r.Ready()
	for _, g := range ready.Apply {
		if g.Pos != uint64(len(p.applied))+1 {
			return fmt.Errorf("server %d applies position %d after %d", i, g.Pos, len(p.applied))
		}
		p.applied = append(p.applied, g.Entry)
		if !g.Retained {
			p.owned = g.Pos
			if c.underway(i, g.Pos) {
				return fmt.Errorf("server %d hands over position %d while it is in transit", i, g.Pos)
			}
		}
		if c.trace != nil {
			c.trace("%d applies %v", i, g.Entry)
		}
	}
	v := &c.views[p.seen]
	at := v.at(i, p.life)
	for _, m := range ready.Messages {
		if m.Kind == Entry && m.Pos <= p.owned {
			return fmt.Errorf("server %d sends position %d, which it has not kept", i, m.Pos)
		}
		if to, ok := v.peer(at, m.To); ok {
			c.send(packet{from: i, to: to.server, life: to.life, as: m.To, m: m.Message})
		}
	}
	for as, wanted := range ready.Snapshot {
		if to, ok := v.peer(at, Neighbor(as)); ok && wanted {
			c.asked = c.asked || Neighbor(as) == Successor && !c.periodic
			c.snapshots++
			s := packet{
				from: i, to: to.server, life: to.life, as: Neighbor(as), snapshots: c.snapshots,
				m: Message[op]{Epoch: p.r.cfg.Epoch, Pos: p.r.Applied()}, snapshot: slices.Clone(p.applied), piece: 1,
			}
			c.send(s)
			s.piece = 2
			c.send(s)
		}
	}
	return nil
}

// underway reports whether an entry that server i sent is in transit.
func (c *cluster) underway(i int, pos uint64) bool {
	for to := range c.servers {
		for _, p := range c.pipes[c.pipe(i, to)] {
			if p.piece == 0 && p.m.Kind == Entry && p.m.Pos == pos && !p.double {
				return true
			}
		}
	}
	return false
}

// show appends to c.acked the entries that members let readers see from now on, and so acknowledge. It returns an error
// if two members show different entries. It does nothing in a periodic chain, where anything after a snapshot may be
// lost.
func (c *cluster) show() error {
	if c.periodic {
		return nil
	}
	for i := range c.servers {
		p := &c.servers[i]
		if p.r == nil || p.r.cfg.Joining || c.eager && p.r.cfg.Head {
			continue
		}
		n := min(len(c.acked), len(p.applied))
		if !slices.Equal(c.acked[:n], p.applied[:n]) {
			return fmt.Errorf("server %d shows %v, but others have shown %v", i, p.applied, c.acked)
		}
		c.acked = append(c.acked, p.applied[n:]...)
	}
	return nil
}

// pipe returns the number of the connection from one server to another.
func (c *cluster) pipe(from, to int) int { return from*len(c.servers) + to }

func (c *cluster) send(p packet) {
	n := c.pipe(p.from, p.to)
	if c.cut[n] {
		return
	}
	if p.piece > 0 { // snapshots have a connection of their own
		n += len(c.cut)
	}
	c.pipes[n] = append(c.pipes[n], p)
}

// deliver delivers the first packet of a pipe.
func (c *cluster) deliver(n int) error {
	if len(c.pipes[n]) == 0 {
		return errors.New("nothing is in transit")
	}
	p := c.pipes[n][0]
	c.pipes[n] = c.pipes[n][1:]
	return c.receive(p)
}

// receive does what the receiver's shell does with a packet. A packet for an earlier process of the server is ignored.
func (c *cluster) receive(p packet) error {
	s := &c.servers[p.to]
	if !s.up || s.life != p.life {
		return nil
	}
	if c.trace != nil {
		c.trace("%s", p)
	}
	if s.r == nil {
		return nil
	}
	if p.piece > 0 {
		c.restore(s, &p)
		return c.flush(p.to)
	}
	v := &c.views[s.seen]
	from, at := Predecessor, v.at(p.to, s.life)
	if p.as == Predecessor {
		from = Joiner
		if at < len(v.chain)-1 {
			from = Successor
		}
		if h, ok := v.peer(at, from); !ok || h.server != p.from {
			return nil // neither its successor nor its joiner
		}
	}
	s.r.Step(from, p.m)
	return c.flush(p.to)
}

// restore handles a piece of a snapshot.
func (c *cluster) restore(s *process, p *packet) {
	switch {
	case p.m.Epoch != s.r.cfg.Epoch || !s.r.NeedsSnapshot(p.m.Pos):
	case p.piece == 1:
		s.arriving = p
	case s.arriving != nil && s.arriving.snapshots == p.snapshots:
		s.arriving = nil
		s.applied, s.owned = slices.Clone(p.snapshot), 0
		s.r.Restored(p.m.Pos)
	}
}

// sever ends the connections between two servers. Messages in transit are delayed or lost; pieces of snapshots are
// lost.
func (c *cluster) sever(a, b int, lost bool) {
	for _, n := range []int{c.pipe(a, b), c.pipe(b, a)} {
		if !lost && len(c.pipes[n]) > 0 {
			c.late = append(c.late, c.pipes[n])
		}
		c.pipes[n], c.pipes[n+len(c.cut)], c.cut[n] = nil, nil, true
	}
}

// connect opens a new connection between two servers.
func (c *cluster) connect(a, b int) error {
	c.cut[c.pipe(a, b)], c.cut[c.pipe(b, a)] = false, false
	for _, ends := range [][2]int{{a, b}, {b, a}} {
		p := &c.servers[ends[0]]
		if !p.up || p.r == nil {
			continue
		}
		v := &c.views[p.seen]
		for _, as := range []Neighbor{Successor, Joiner} {
			if h, ok := v.peer(v.at(ends[0], p.life), as); ok && h.server == ends[1] {
				p.r.Reconnected(as)
			}
		}
		if err := c.flush(ends[0]); err != nil {
			return err
		}
	}
	return nil
}

// deliverLate delivers the first packet of a closed connection.
func (c *cluster) deliverLate(n int) error {
	p := c.late[n][0]
	c.late[n] = c.late[n][1:]
	if len(c.late[n]) == 0 {
		c.late = slices.Delete(c.late, n, n+1)
	}
	return c.receive(p)
}

// crash ends server i's process. Packets that it sent may still arrive.
func (c *cluster) crash(i int) {
	p := &c.servers[i]
	*p = process{life: p.life, seen: -1}
	for j := range c.servers {
		c.pipes[c.pipe(j, i)], c.pipes[c.pipe(j, i)+len(c.cut)] = nil, nil
	}
}

// restart starts server i's next process.
func (c *cluster) restart(i int) {
	c.servers[i] = process{life: c.servers[i].life + 1, up: true, seen: -1}
	for j := range c.servers {
		c.sever(i, j, false)
		c.cut[c.pipe(i, j)], c.cut[c.pipe(j, i)] = false, false
	}
}

// drop makes the coordinator remove server i from the chain, or as the joiner, and returns true. It returns false, and
// changes nothing, if i is the only member.
func (c *cluster) drop(i int) (lives bool) {
	v := c.view()
	if v.joiner.since > 0 && v.joiner.server == i {
		c.change(func(v *view) { v.joiner = holder{} })
		return true
	}
	at := slices.IndexFunc(v.chain, func(h holder) bool { return h.server == i })
	if at < 0 {
		return true
	}
	if len(v.chain) == 1 {
		return false
	}
	c.change(func(v *view) { v.chain, v.epoch = slices.Delete(v.chain, at, at+1), v.epoch+1 })
	return true
}

// join makes server i copy the shard, unless it is a member or there is already a joiner.
func (c *cluster) join(i int) {
	v := c.view()
	if v.joiner.since > 0 || slices.ContainsFunc(v.chain, func(h holder) bool { return h.server == i }) {
		return
	}
	c.change(func(v *view) { v.joiner = holder{server: i, life: c.servers[i].life, since: c.revision} })
}

// report returns server i's status.
func (c *cluster) report(i int) report {
	p := &c.servers[i]
	r := report{holder: holder{server: i, life: p.life, since: p.since}}
	if p.r != nil {
		r.epoch, r.joined = p.r.cfg.Epoch, p.r.Joined()
	}
	return r
}

// hear makes the coordinator receive a server's report. If the report says that the current joiner has joined, the
// joiner becomes the tail in a new epoch, and hear returns true.
func (c *cluster) hear(r report) bool {
	v := c.view()
	if !r.joined || r.holder != v.joiner || r.epoch != v.epoch {
		return false
	}
	c.change(func(v *view) { v.chain, v.joiner, v.epoch = append(v.chain, v.joiner), holder{}, v.epoch+1 })
	return true
}

var errNoMember = errors.New("no live member")

// all returns the whole log of a replica, from position 1 on.
func (p *process) all() history {
	all := slices.Clone(p.applied)
	for pos := p.r.Applied() + 1; pos <= p.r.End(); pos++ {
		all = append(all, p.r.at(pos))
	}
	return all
}

// check checks the invariants.
func (c *cluster) check() error {
	if err := c.show(); err != nil {
		return err
	}
	if c.asked {
		return errors.New("a member was asked to take a snapshot")
	}
	var before history
	first := true
	for _, h := range c.view().chain {
		p := &c.servers[h.server]
		if !p.up || p.life != h.life || p.r == nil || p.since != h.since {
			continue
		}
		if !p.r.hasState {
			return fmt.Errorf("member %d has no state", h.server)
		}
		if uint64(len(p.applied)) != p.r.Applied() {
			return fmt.Errorf("server %d has applied %d, but reports %d", h.server, len(p.applied), p.r.Applied())
		}
		if !c.eager && p.r.Serving() && p.r.Applied() < p.begun {
			return fmt.Errorf("server %d serves at %d of %d", h.server, p.r.Applied(), p.begun)
		}
		all := p.all()
		if !first && (len(all) > len(before) || !slices.Equal(all, before[:len(all)])) {
			return fmt.Errorf("server %d has %v, but its predecessor has %v", h.server, all, before)
		}
		before, first = all, false
		if len(c.acked) > len(all) || !slices.Equal(c.acked, all[:len(c.acked)]) {
			return fmt.Errorf("%v was acknowledged, but server %d has %v", c.acked, h.server, all)
		}
		if err := c.checkCommitted(p); err != nil {
			return fmt.Errorf("server %d: %w", h.server, err)
		}
	}
	return nil
}

// checkCommitted checks that all live members have everything that p considers committed, unless the chain is periodic.
// It also checks that p counts the bytes in transit to its neighbors correctly.
func (c *cluster) checkCommitted(p *process) error {
	for _, h := range c.view().chain {
		q := &c.servers[h.server]
		if q.up && q.life == h.life && q.r != nil && q.since == h.since && !c.periodic && q.r.End() < p.r.Committed() {
			return fmt.Errorf("committed is %d, but server %d has %d", p.r.Committed(), h.server, q.r.End())
		}
	}
	for _, l := range []*progress{&p.r.succ, &p.r.join} {
		sum := 0
		for pos := l.has + 1; l.replicating() && pos <= l.sent; pos++ {
			sum += p.r.size(p.r.at(pos))
		}
		if l.replicating() && (sum != l.inFlight || sum > c.window) {
			return fmt.Errorf("%d bytes are in transit but counted as %d; the window is %d", sum, l.inFlight, c.window)
		}
	}
	return nil
}

func (p packet) String() string {
	e := fmt.Sprintf("%d→%d e%d ", p.from, p.to, p.m.Epoch)
	switch {
	case p.piece == 1:
		return e + "snapshot begins"
	case p.piece == 2:
		return e + fmt.Sprintf("snapshot at %d: %v", p.m.Pos, p.snapshot)
	case p.m.Kind == Follow:
		return e + fmt.Sprintf("follow, log end %d", p.m.Pos)
	case p.m.Kind == Have && p.m.None:
		return e + "have nothing"
	case p.m.Kind == Have:
		return e + fmt.Sprintf("have %d", p.m.Pos)
	case p.m.Kind == Entry:
		return e + fmt.Sprintf("entry %d: %v", p.m.Pos, p.m.Entry)
	case p.m.Kind == Committed:
		return e + fmt.Sprintf("committed %d", p.m.Pos)
	}
	return e + fmt.Sprintf("caught up at %d", p.m.Pos)
}

package worker_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/mutation"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/testcluster"
	"github.com/perdure/perdure/worker"
)

// chained is a job in which the test controls the coordinator's views. Its simplified servers hold the shards as
// chains: a member's log is copied hop by hop, and whatever reaches the tail is committed and applied. The servers
// reject messages that violate the protocol of chains.
type chained struct {
	*testing.T
	*testcluster.Hosts
	ctx context.Context
	job perdure.JobSpec

	mu      sync.Mutex // guards the fields below
	view    protocol.View
	told    []transport.Conn // the clients' connections to the coordinator
	status  map[perdure.Slot]protocol.WorkerStatus
	servers []*chainServer
}

// chainServer is one server.
type chainServer struct {
	c        *chained
	index    int
	dead     bool
	view     protocol.View
	frozen   bool // it does not receive views
	holds    bool // it neither receives from its predecessor nor sends to its successor
	lags     bool // it does not apply committed entries
	moves    bool // it answers the next update with Moved
	unready  bool // it does not answer Open
	replicas []*replica
	conns    []*chainConn
	got      map[wire.Kind]int
	clocks   []perdure.Clock // clocks of the received updates, in order
	synced   []perdure.Clock // clocks of the received Syncs, in order
	again    int             // number of duplicate updates
	onTick   func()
}

type chainConn struct {
	transport.Conn
	hello wire.Hello
	opens map[perdure.ShardID]*chainOpen
}

// chainOpen is an Open and the log length that it waits for.
type chainOpen struct {
	wire.Header
	need   int
	opened bool
}

type chainGet struct {
	conn *chainConn
	wire.Header
	rows wire.Rows
}

// replica is a server's copy of one shard.
type replica struct {
	log    []wire.Frame // entries
	done   int          // number of entries applied
	intake *consistency.Sequencer
	parts  []*table.Part
	seq    uint64
	gets   []chainGet
	prompt []perdure.Clock // by slot: up to this clock, acknowledge immediately
	owed   []time.Time     // by slot: when to acknowledge; zero: nothing is pending
}

const (
	chainHop = 200 * time.Microsecond
	chainAck = 5 * time.Millisecond
)

// inChain runs a test in a job with the given numbers of servers and shards. Each shard's chain consists of all
// servers, and the first one is the head.
func inChain(
	t *testing.T, model, recovery string, slots, servers, shards int, like transport.MemoryOptions,
	test func(c *chained),
) {
	t.Helper()
	job := testcluster.Job(model, recovery, slots, servers, shards)
	job.Seed = *seed
	testcluster.RunVirtual(t, time.Minute, hosts(like), func(t *testing.T, ctx context.Context, h *testcluster.Hosts) {
		c := &chained{T: t, Hosts: h, ctx: ctx, job: job, status: map[perdure.Slot]protocol.WorkerStatus{}}
		c.view = protocol.View{
			Revision: 1, Generation: 1,
			Slots: slices.Repeat([]protocol.SlotView{{Incarnation: 1, Decided: true, Settled: true}}, slots),
		}
		for range shards {
			c.view.Shards = append(c.view.Shards, protocol.ShardView{Epoch: 1})
			c.setChain(&c.view.Shards[len(c.view.Shards)-1], members(servers)...)
		}
		c.listen(coordinatorAddr, c.coordinate)
		for i := range servers {
			c.addServer(i)
		}
		c.Go(c.pass)
		test(c)
	})
}

func members(n int) (all []int) {
	for i := range n {
		all = append(all, i)
	}
	return all
}

func (c *chained) setChain(sv *protocol.ShardView, servers ...int) {
	holder := func(i int) protocol.Holder {
		return protocol.Holder{Server: i, Incarnation: 1, Addr: fmt.Sprintf("server:%d/1", i), Since: 1}
	}
	sv.Holder, sv.Followers = holder(servers[0]), nil
	for _, i := range servers[1:] {
		sv.Followers = append(sv.Followers, holder(i))
	}
}

func (c *chained) addServer(i int) {
	s := &chainServer{c: c, index: i, view: c.view, got: map[wire.Kind]int{}}
	for range c.job.Shards {
		s.replicas = append(s.replicas, c.newReplica())
	}
	c.servers = append(c.servers, s)
	c.listen(fmt.Sprintf("server:%d/1", i), s.serve)
}

func (c *chained) newReplica() *replica {
	return &replica{
		intake: consistency.NewSequencer(c.job.ClockMode(nil), make([]perdure.Clock, c.job.Slots), mutation.Set{}),
		prompt: make([]perdure.Clock, c.job.Slots), owed: make([]time.Time, c.job.Slots),
	}
}

// listen serves a host's connections.
func (c *chained) listen(addr string, serve func(conn *chainConn)) {
	c.Listen(addr, func(conn transport.Conn, hello wire.Hello) {
		serve(&chainConn{Conn: conn, hello: hello, opens: map[perdure.ShardID]*chainOpen{}})
	})
}

func (c *chained) welcome(conn *chainConn) {
	incarnation := perdure.Incarnation(0)
	if conn.hello.Role == wire.RoleWorker {
		incarnation = c.view.Slots[conn.hello.Index].Incarnation
	}
	_ = conn.Send(wire.Control(wire.KindWelcome,
		wire.Welcome{Job: c.job, Index: conn.hello.Index, Incarnation: incarnation}))
}

func (c *chained) coordinate(conn *chainConn) {
	c.mu.Lock()
	c.welcome(conn)
	c.told = append(c.told, conn)
	_ = conn.Send(wire.Control(wire.KindView, c.view))
	c.mu.Unlock()
	var st protocol.WorkerStatus
	for {
		var f wire.Frame
		if conn.Recv(&f) != nil {
			return
		}
		var spec perdure.TableSpec
		var said protocol.WorkerDelta
		switch {
		case f.Kind == wire.KindTable && wire.ParseControl(&f, &spec) == nil:
			c.setView(func(v *protocol.View) {
				if !slices.Contains(v.Tables, spec) {
					v.Tables = append(v.Tables, spec)
				}
			})
		case f.Kind == wire.KindWorkerStatus && wire.ParseControl(&f, &said) == nil:
			st.Apply(&said)
			c.mu.Lock()
			c.status[perdure.Slot(conn.hello.Index)] = st
			c.mu.Unlock()
		}
	}
}

// setView changes the view and sends it to all clients.
func (c *chained) setView(change func(v *protocol.View)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.view.Shards, c.view.Tables, c.view.Slots = slices.Clone(c.view.Shards), slices.Clone(c.view.Tables),
		slices.Clone(c.view.Slots)
	change(&c.view)
	c.view.Revision++
	for _, s := range c.servers {
		if !s.frozen {
			s.view = c.view
		}
	}
	for _, conn := range c.told {
		_ = conn.Send(wire.Control(wire.KindView, c.view)) // some clients may have ended
	}
}

// rechain assigns new chains to shards, in a new epoch.
func (c *chained) rechain(chain ...int) {
	c.setView(func(v *protocol.View) {
		for i := range v.Shards {
			c.setChain(&v.Shards[i], chain...)
			v.Shards[i].Epoch++
		}
	})
}

// kill ends a server. Messages that it sent are dropped.
func (c *chained) kill(i int) {
	c.Net.Kill(fmt.Sprintf("server:%d", i))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.servers[i].dead = true
}

// with runs f on a server under its lock.
func (c *chained) with(i int, f func(s *chainServer)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(c.servers[i])
}

// got returns the number of frames of a kind that a server has received.
func (c *chained) got(i int, kind wire.Kind) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.servers[i].got[kind]
}

// dial joins as a worker.
func (c *chained) dial(slot perdure.Slot, with ...func(*testcluster.DialConfig)) *worker.Client {
	c.Helper()
	host := fmt.Sprintf("worker:%d", slot)
	observes := func(cfg *testcluster.DialConfig) { cfg.Observer = slot < 0 }
	w, err := c.NewProcess(host).Dial(c.ctx, slot, append([]func(*testcluster.DialConfig){observes}, with...)...)
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { w.Close() })
	return w
}

func (c *chained) table(w *worker.Client, change ...func(*perdure.TableSpec)) *worker.Table {
	c.Helper()
	spec := perdure.TableSpec{Name: "t", Rows: rows, Dim: dim, Rule: perdure.Rule{Kind: perdure.RuleAdd}}
	for _, f := range change {
		f(&spec)
	}
	t, err := w.Table(c.ctx, spec)
	if err != nil {
		c.Fatal(err)
	}
	return t
}

// step adds v to all values and ends the clock.
func (c *chained) step(w *worker.Client, t *worker.Table, v float32) {
	c.Helper()
	if err := t.IncRun(0, slices.Repeat([]float32{v}, rows*dim)); err != nil {
		c.Fatal(err)
	}
	if _, err := w.Clock(c.ctx); err != nil {
		c.Fatal(err)
	}
}

// read reads all values and expects want.
func (c *chained) read(t *worker.Table, want float32) {
	c.Helper()
	t.Forget()
	got := make([]float32, rows*dim)
	if err := t.GetRun(c.ctx, 0, got); err != nil {
		c.Fatal(err)
	}
	for i, v := range got {
		if v != want {
			c.Fatalf("value %d is %v, want %v", i, v, want)
		}
	}
}

// pass copies logs and applies committed entries as time passes.
func (c *chained) pass() {
	tick := time.NewTicker(chainHop)
	defer tick.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-tick.C:
		}
		c.mu.Lock()
		for shard := range c.view.Shards {
			c.spread(shard)
		}
		for _, s := range c.servers {
			if !s.dead {
				s.answer()
			}
		}
		c.mu.Unlock()
	}
}

// spread copies a shard's log one hop down its chain and applies what the tail has.
func (c *chained) spread(shard int) {
	sv := &c.view.Shards[shard]
	if head := c.servers[sv.Server]; recovery.Of(c.job.Recovery).Traits().EarlyAck && !head.dead && !head.unready {
		head.replicas[shard].apply(head, len(head.replicas[shard].log))
	}
	chain := []*chainServer{}
	for i := range sv.Replicas() {
		s := c.servers[sv.Replica(i).Server]
		if chain = append(chain, s); s.dead || s.holds && sv.Replicas() > 1 {
			return
		}
	}
	for i := len(chain) - 1; i > 0; i-- {
		from, to := chain[i-1].replicas[shard], chain[i].replicas[shard]
		to.log = append(to.log, from.log[len(to.log):]...)
	}
	committed := len(chain[len(chain)-1].replicas[shard].log)
	for _, s := range chain {
		if r := s.replicas[shard]; !s.lags && !s.unready {
			r.apply(s, min(len(r.log), committed))
		}
	}
}

// apply applies the log up to an entry.
func (r *replica) apply(s *chainServer, end int) {
	for len(r.parts) < len(s.view.Tables) {
		id := len(r.parts)
		spec := s.view.Tables[id]
		shard := perdure.ShardID(slices.Index(s.replicas, r))
		first, n := placement.Range(&spec, s.c.job.Shards, shard)
		r.parts = append(r.parts, table.New(spec, perdure.TableID(id), s.c.job.Seed, first, n))
	}
	for ; r.done < end; r.done++ {
		f := &r.log[r.done]
		if f.Kind == wire.KindTick {
			r.intake.Tick(f.Slot, f.Incarnation, f.Clock)
		} else {
			if f.Flags&wire.FlagAckNow != 0 {
				r.prompt[f.Slot] = max(r.prompt[f.Slot], f.Until())
			}
			r.intake.Offer(consistency.UpdatePart{
				Slot: f.Slot, Clock: f.Clock, Clocks: int(f.Clocks), Incarnation: f.Incarnation, Index: int(f.Part),
				Of:     int(f.Parts),
				Ticked: f.Flags&wire.FlagTicked != 0, Repeats: f.Flags&wire.FlagDuplicateRows != 0, Payload: f.Payload,
			})
		}
		if r.owed[f.Slot].IsZero() {
			r.owed[f.Slot] = time.Now().Add(chainAck)
		}
		for u := r.intake.Next(); u != nil; u = r.intake.Next() {
			r.seq += uint64(u.Clocks)
			for _, payload := range u.Parts {
				for b := wire.ReadBlocks(payload); b.Next(); {
					all := b.Unpack(nil).Values
					if err := r.parts[b.Table].ApplyRows(b.First, b.IDs, b.Count, all, u.Clock); err != nil {
						s.c.Error(err)
					}
				}
			}
		}
	}
}

// staged returns the number of a slot's clocks that are completely in the log.
func (r *replica) staged(slot perdure.Slot) perdure.Clock {
	n := r.intake.Applied()[slot]
	for i := range r.log {
		if f := &r.log[i]; f.Kind == wire.KindUpdate && f.Slot == slot && f.Parts > 0 {
			n = max(n, f.Until())
		}
	}
	return n
}

// frame returns a frame about a shard with the header fields as this server knows them.
func (s *chainServer) frame(kind wire.Kind, shard perdure.ShardID) wire.Frame {
	return wire.Frame{Header: wire.Header{
		Kind: kind, Generation: s.view.Generation, Epoch: s.view.Shards[shard].Epoch, Shard: shard,
		Slot:  perdure.NoSlot,
		Clock: s.replicas[shard].intake.MinClock(),
	}}
}

func (s *chainServer) counts(kind wire.Kind, shard perdure.ShardID, conn *chainConn) wire.Frame {
	f := s.frame(kind, shard)
	var counts protocol.Counts
	if conn.hello.Role == wire.RoleWorker {
		counts = s.replicas[shard].intake.Counts(perdure.Slot(conn.hello.Index))
		counts.Seen = counts.Applied
	}
	f.Payload = wire.AppendCounts(nil, counts)
	return f
}

// answer answers all requests that can be answered.
func (s *chainServer) answer() {
	for shard, r := range s.replicas {
		id := perdure.ShardID(shard)
		for _, conn := range s.conns {
			o := conn.opens[id]
			if o == nil || o.Generation != s.view.Generation || o.Epoch != s.view.Shards[shard].Epoch ||
				r.done < o.need || s.unready {
				continue
			}
			slot := conn.hello.Index
			if !o.opened {
				o.opened = true
				_ = conn.Send(s.counts(wire.KindOpened, id, conn))
			} else if ticks := r.intake.Mode().Ticks(); conn.hello.Role == wire.RoleWorker &&
				o.Flags&wire.FlagWriteOnly == 0 && !r.owed[slot].IsZero() &&
				(!time.Now().Before(r.owed[slot]) || r.intake.Applied()[slot] <= r.prompt[slot] || ticks) {
				r.owed[slot] = time.Time{}
				_ = conn.Send(s.counts(wire.KindAck, id, conn))
			}
		}
		r.gets = slices.DeleteFunc(r.gets, func(g chainGet) bool {
			if r.intake.MinClock() < g.Clock || int(g.rows.Table) >= len(r.parts) {
				return false
			}
			f := s.frame(wire.KindRows, id)
			f.Request = g.Request
			f.Payload = wire.AppendState(nil, &wire.State{Seq: r.seq, Applied: r.intake.Applied()})
			values := make([]float32, g.rows.Count*r.parts[g.rows.Table].Spec.Dim)
			if err := r.parts[g.rows.Table].ReadRows(values, g.rows.First, g.rows.IDs, g.rows.Count); err != nil {
				s.c.Error(err)
			}
			f.Payload = wire.AppendFloats(f.Payload, values)
			_ = g.conn.Send(f)
			return true
		})
	}
}

// serve serves one client's connection.
func (s *chainServer) serve(conn *chainConn) {
	s.c.mu.Lock()
	s.c.welcome(conn)
	s.conns = append(s.conns, conn)
	s.c.mu.Unlock()
	for {
		var f wire.Frame
		if conn.Recv(&f) != nil {
			break
		}
		s.c.mu.Lock()
		s.handle(conn, &f)
		s.c.mu.Unlock()
	}
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.conns = slices.DeleteFunc(s.conns, func(other *chainConn) bool { return other == conn })
	for _, r := range s.replicas {
		r.gets = slices.DeleteFunc(r.gets, func(g chainGet) bool { return g.conn == conn })
	}
}

func (s *chainServer) handle(conn *chainConn, f *wire.Frame) {
	s.got[f.Kind]++
	r := s.replicas[f.Shard]
	if f.Kind == wire.KindOpen {
		conn.opens[f.Shard] = &chainOpen{Header: f.Header, need: len(r.log)}
		return
	}
	sv := &s.view.Shards[f.Shard]
	if f.Generation != s.view.Generation || f.Epoch != sv.Epoch {
		return
	}
	o := conn.opens[f.Shard]
	if o == nil || !o.opened {
		s.c.Errorf("server %d got a frame of kind %d before it had answered Open", s.index, f.Kind)
		return
	}
	switch f.Kind {
	case wire.KindUpdate, wire.KindTick:
		s.write(conn, f)
	default:
		if o.Flags&wire.FlagWriteOnly != 0 {
			s.c.Errorf("server %d got a frame of kind %d from a client that would only write", s.index, f.Kind)
		}
		switch f.Kind {
		case wire.KindGet:
			g := chainGet{conn: conn, Header: f.Header}
			if _, err := wire.ParseRows(f.Payload, &g.rows); err != nil {
				s.c.Error(err)
			}
			r.gets = append(r.gets, g)
		case wire.KindLoad: // servers do not store slot states
			state := s.frame(wire.KindState, f.Shard)
			state.Request, state.Slot, state.Flags = f.Request, f.Slot, wire.FlagNone
			_ = conn.Send(state)
		case wire.KindSync:
			s.synced = append(s.synced, f.Clock)
			r.prompt[f.Slot] = max(r.prompt[f.Slot], f.Clock)
			r.owed[f.Slot] = time.Now()
		}
	}
}

// write appends an update or a tick to the log.
func (s *chainServer) write(conn *chainConn, f *wire.Frame) {
	r := s.replicas[f.Shard]
	switch {
	case s.view.Shards[f.Shard].Server != s.index:
		s.c.Errorf("server %d, which is no head, got a frame of kind %d", s.index, f.Kind)
	case f.Kind == wire.KindTick:
		if s.onTick != nil {
			s.onTick()
		}
		r.log = append(r.log, *f)
	case s.moves || f.Clock > r.staged(f.Slot):
		s.moves = false
		_ = conn.Send(s.frame(wire.KindMoved, f.Shard))
	default:
		s.clocks = append(s.clocks, f.Clock)
		if f.Clock < r.staged(f.Slot) {
			s.again++
		}
		r.log = append(r.log, *f)
	}
}

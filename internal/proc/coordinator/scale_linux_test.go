package coordinator

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/registry"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// These benchmarks measure the coordinator of a large job. They run what its loop does for each message, with its own
// functions: read the message, advance the core, encode and save the document, and encode the frames that follow. Only
// sockets are missing, and the simulated peers answer immediately. The results are processor time, so other programs on
// the machine have little effect. docs/bench/scale.md has the figures.

// cpu returns the processor time used by this process.
func cpu() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}

// parts splits the cost of handling messages by purpose.
type parts struct {
	heard, core, document, saved, told time.Duration
	words, documents, frames, bytes    int // received messages, saved documents, and sent frames and their bytes
}

func (p *parts) all() time.Duration { return p.heard + p.core + p.document + p.saved + p.told }

// metered is a registry that records when it is asked to save.
type metered struct {
	registry.Registry
	begun, done time.Duration // of the last save
	saves, size int
}

type meteredLease struct {
	registry.Lease
	by *metered
}

func (m *metered) Acquire(ctx context.Context, h registry.Holder) (registry.Lease, error) {
	l, err := m.Registry.Acquire(ctx, h)
	return meteredLease{l, m}, err
}

func (l meteredLease) Save(ctx context.Context, doc []byte, previous uint64) (uint64, error) {
	l.by.begun = cpu()
	revision, err := l.Lease.Save(ctx, doc, previous)
	l.by.done = cpu()
	l.by.saves, l.by.size = l.by.saves+1, len(doc)
	return revision, err
}

// drain is a connection whose peer reads everything and sends nothing.
type drain struct {
	transport.Conn
	spent *parts
}

func (d drain) TrySend(frames ...wire.Frame) error {
	for i := range frames {
		d.spent.frames++
		d.spent.bytes += wire.HeaderBytes + frames[i].PayloadBytes()
	}
	return nil
}

func (drain) Close() error { return nil }
func (drain) Peer() string { return "drain" }

// crowd is a coordinator with all processes of its job.
type crowd struct {
	testing.TB
	*Coordinator
	registry metered
	spent    parts
	came     int // number of processes so far
	seats    map[memberID]*member
	servers  map[int]*protocol.ServerDeltaEncoder
	said     map[int]protocol.ServerStatus
	workers  map[int]*protocol.WorkerDeltaEncoder
	clocks   map[int]protocol.WorkerStatus
	now      time.Time // at the last tick
}

// begun returns the facts of a job in which every slot has a process.
func begun(t testing.TB, recovery string, workers, servers, shards int) membership.JobRecord {
	job := perdure.JobSpec{ID: "scale", Slots: workers, Servers: servers, Shards: shards, Clocks: 1000}
	var err error
	if job.Recovery, err = perdure.ParseRecovery(recovery); err != nil {
		t.Fatal(err)
	}
	job.Consistency = perdure.Consistency{Kind: perdure.BSP}
	f := membership.NewJobRecord(job, 1, 0, []perdure.TableSpec{{Name: "w", Rows: 1 << 20, Dim: 16}})
	for i := range f.Slots {
		f.Slots[i] = membership.Member{
			Process: fmt.Sprintf("worker-%d-0123456789abcdef", i), PID: i + 1,
			Incarnation: 1,
		}
		f.View.Slots[i] = protocol.SlotView{Incarnation: 1, Decided: true, Settled: true}
	}
	return f
}

// gather returns the coordinator of a job in which all servers and workers are at work.
func gather(t testing.TB, recovery string, workers, servers, shards int) *crowd {
	c := gathering(t, begun(t, recovery, workers, servers, shards))
	for i := range servers {
		c.comes(membership.Server, i)
	}
	for i := range workers {
		c.comes(membership.Worker, i)
	}
	c.settle()
	c.spent = parts{}
	return c
}

// gathering returns the coordinator of a job that only its supervisor has joined.
func gathering(t testing.TB, f membership.JobRecord) *crowd {
	file, err := registry.OpenFile(disk.OS(), t.TempDir()+"/registry")
	if err != nil {
		t.Fatal(err)
	}
	file.Poll = time.Hour
	c := &crowd{
		TB: t, registry: metered{Registry: file}, seats: map[memberID]*member{},
		servers: map[int]*protocol.ServerDeltaEncoder{}, said: map[int]protocol.ServerStatus{},
		workers: map[int]*protocol.WorkerDeltaEncoder{}, clocks: map[int]protocol.WorkerStatus{},
	}
	t.Cleanup(func() { _ = file.Close() })
	c.Coordinator, err = New(t.Context(), Config{
		Store: store.NewDir(disk.NewMemory(), "checkpoint"), Registry: &c.registry, NewJob: &f,
		Log: slog.New(slog.DiscardHandler), Keys: wire.Keys{Job: "a", Servers: "b"},
	})
	if err != nil {
		t.Fatal(err)
	}
	c.handle(func() error {
		c.decide(c.member(wire.Hello{Role: wire.RoleSupervisor, Process: "supervisor"}))
		return nil
	})
	return c
}

func (c *crowd) member(h wire.Hello) *member {
	return &member{
		conn: drain{spent: &c.spent}, hello: h, index: h.Index, stopConfirming: func() {},
		unread: newUnreadLimit(),
	}
}

// handle runs a task of the loop and carries out its effects.
func (c *crowd) handle(do func() error) {
	at, saves := cpu(), c.registry.saves
	err := do()
	c.spent.core += cpu() - at
	at = cpu()
	if err == nil {
		err = c.carryOut(c.Context())
	}
	if err != nil {
		c.Fatal(err)
	}
	if c.registry.saves > saves {
		c.spent.document += c.registry.begun - at
		c.spent.saved += c.registry.done - c.registry.begun
		at = c.registry.done
		c.spent.documents++
	}
	c.spent.told += cpu() - at
}

// hear reads a member's message and carries out its effects.
func (c *crowd) hear(m *member, f wire.Frame) {
	at := cpu()
	act, err := c.parse(m, &f)
	c.spent.heard += cpu() - at
	if err != nil {
		c.Fatal(err)
	}
	c.spent.words++
	c.handle(act)
}

// comes lets a new process join.
func (c *crowd) comes(k membership.Kind, index int) {
	c.came++
	h := wire.Hello{
		Role: wire.Role(k), Index: index, PID: 1000 + c.came, Process: fmt.Sprintf("%s-%d-%016x", k, index, c.came),
		Nonce: "drawn",
	}
	switch f := c.core.Record(); {
	case k == membership.Server:
		h.Addr = fmt.Sprintf("10.0.%d.%d:40123", index/250, index%250)
	case index >= 0 && f.View.Slots[index].Settled: // the slot's process is replaced
		h.Process, h.PID = f.Slots[index].Process, f.Slots[index].PID
	}
	m := c.member(h)
	c.handle(func() error {
		if r := c.decide(m); r != nil {
			return fmt.Errorf("%s:%d is rejected: %s", k, index, r.Reason)
		}
		return nil
	})
	c.seats[m.id()] = m
	if k == membership.Server {
		c.servers[m.index], c.said[m.index] = &protocol.ServerDeltaEncoder{}, protocol.ServerStatus{}
	} else {
		c.workers[m.index], c.clocks[m.index] = &protocol.WorkerDeltaEncoder{}, protocol.WorkerStatus{}
	}
}

// dies lets a process die, reported by the supervisor.
func (c *crowd) dies(k membership.Kind, index int) {
	m := c.seats[memberID{k, index}]
	c.hear(c.supervisor, wire.Control(wire.KindExited,
		wire.Exited{Role: wire.Role(k), Index: index, PID: m.hello.PID, How: "signal: killed"}))
	c.handle(func() error {
		c.removeMember(m, io.EOF)
		return nil
	})
	delete(c.seats, m.id())
}

// settle lets all processes report their changes until no changes remain.
func (c *crowd) settle() {
	for round := 0; ; round++ {
		quiet := true
		for i, st := range c.statuses() {
			m := c.seats[memberID{membership.Server, i}]
			if m == nil || !m.welcomed || reflect.DeepEqual(st.Shards, c.said[i].Shards) {
				continue
			}
			quiet, c.said[i] = false, st
			for more := true; more; {
				var d protocol.ServerDelta
				d, more = c.servers[i].Delta(&st, 0, true)
				c.hear(m, wire.Control(wire.KindStatus, &d))
			}
		}
		acked := c.acked()
		for i := range c.core.Record().Slots {
			m := c.seats[memberID{membership.Worker, i}]
			if m == nil || !m.welcomed {
				continue
			}
			st := protocol.WorkerStatus{Generation: c.core.Record().View.Generation, Acked: acked}
			if st.Generation == c.clocks[i].Generation && reflect.DeepEqual(st.Acked, c.clocks[i].Acked) {
				continue
			}
			c.says(i, st)
			quiet = false
		}
		switch {
		case quiet && c.core.Serving():
			return
		case quiet || round > 1000:
			c.Fatalf("after %d rounds the job does not serve", round)
		}
	}
}

// says lets a worker send its status.
func (c *crowd) says(worker int, st protocol.WorkerStatus) {
	c.clocks[worker] = st
	d := c.workers[worker].Delta(&st, true)
	c.hear(c.seats[memberID{membership.Worker, worker}], wire.Control(wire.KindWorkerStatus, &d))
}

// acked returns what each worker reports about lost shards.
func (c *crowd) acked() (all []protocol.AckedClock) {
	for i := range c.core.Record().View.Shards {
		if sv := &c.core.Record().View.Shards[i]; sv.Lost && sv.Base == nil {
			all = append(all, protocol.AckedClock{Shard: perdure.ShardID(i), Epoch: sv.Epoch})
		}
	}
	return all
}

// statuses returns the statuses of servers that have done everything that the view requires.
func (c *crowd) statuses() []protocol.ServerStatus {
	v := &c.core.Record().View
	all := make([]protocol.ServerStatus, len(c.core.Record().Servers))
	copied := map[int]bool{} // servers that have copied a shard since their last status; each copies one at a time
	var fences []protocol.Fence
	for i := range v.Slots {
		if sl := &v.Slots[i]; !sl.Settled && sl.Incarnation > 0 {
			fences = append(fences,
				protocol.Fence{Slot: perdure.Slot(i), Incarnation: sl.Incarnation, Carried: sl.Decided})
		}
	}
	for i := range v.Shards {
		sv := &v.Shards[i]
		if sv.Server < 0 {
			continue
		}
		for _, h := range sv.Members() {
			st := protocol.ShardStatus{
				Shard: perdure.ShardID(i), Generation: v.Generation, Epoch: sv.Epoch, Since: h.Since, Ready: true,
				Roster: v.Roster, Cuts: protocol.CutStatus{Named: v.Named}, ResendComplete: true, Fences: fences,
			}
			if sv.Lost && sv.Base == nil {
				st = protocol.ShardStatus{
					Shard: st.Shard, Generation: st.Generation, Epoch: st.Epoch, Since: st.Since,
					Applied: make([]perdure.Clock, len(v.Slots)), SavedRows: []protocol.SavedRows{{Rows: 1}},
				}
			}
			all[h.Server].Shards = append(all[h.Server].Shards, st)
		}
		if j := sv.Joining; j != nil {
			all[j.Server].Shards = append(all[j.Server].Shards, protocol.ShardStatus{
				Shard: perdure.ShardID(i), Generation: v.Generation, Epoch: sv.Epoch, Since: j.Since,
				Joined: !copied[j.Server],
			})
			copied[j.Server] = true
		}
	}
	for i := range all {
		all[i].Revision = v.Revision
	}
	return all
}

// holder returns a server that holds shards, a different one for each n.
func (c *crowd) holder(n int) int {
	held := c.statuses()
	for i := n * 37; ; i++ {
		if i %= len(held); len(held[i].Shards) > 0 {
			return i
		}
	}
}

// strategies are the recovery strategies of the benchmarks.
var strategies = []string{"chain:2", "stateless", "none", "checkpoint:20", "resend:auto", "scar:20"}

// sizes are the numbers of workers, servers and shards of jobs.
var sizes = [][3]int{
	{100, 200, 1000},
	{300, 200, 1000},
	{1000, 200, 1000},
	{3000, 200, 1000},
	{10000, 200, 1000},
	{1000, 200, 100},
	{1000, 200, 300},
	{1000, 200, 3000},
}

// each runs a scenario repeatedly for each strategy and size, and reports the cost of its stages.
func each(b *testing.B, strategies []string, story func(c *crowd, s *stages, n int)) {
	for _, recovery := range strategies {
		for _, size := range sizes {
			name := fmt.Sprintf("%s/workers=%d/servers=%d/shards=%d", recovery, size[0], size[1], size[2])
			b.Run(name, func(b *testing.B) {
				c := gather(b, recovery, size[0], size[1], size[2])
				var s stages
				n := 0
				for ; b.Loop(); n++ {
					story(c, &s, n)
				}
				s.report(b, c, n)
			})
		}
	}
}

// stage is the cost of one part of a scenario, over all its runs.
type stage struct {
	name string
	parts
}

// stages are the parts of a scenario in order.
type stages []*stage

func (s *stages) of(name string) *stage {
	at := slices.IndexFunc(*s, func(o *stage) bool { return o.name == name })
	if at < 0 {
		at, *s = len(*s), append(*s, &stage{name: name})
	}
	return (*s)[at]
}

// measure adds the cost of do to a stage.
func (c *crowd) measure(s *stage, do func()) {
	c.spent = parts{}
	do()
	p := &c.spent
	s.heard, s.core, s.document = s.heard+p.heard, s.core+p.core, s.document+p.document
	s.saved, s.told = s.saved+p.saved, s.told+p.told
	s.words, s.documents = s.words+p.words, s.documents+p.documents
	s.frames, s.bytes = s.frames+p.frames, s.bytes+p.bytes
}

// report reports n runs of a scenario.
func (s stages) report(b *testing.B, c *crowd, n int) {
	ms := func(d time.Duration) float64 { return d.Seconds() * 1e3 / float64(n) }
	for _, st := range s {
		b.ReportMetric(ms(st.all()), st.name+"-ms")
		b.ReportMetric(ms(st.heard), st.name+"-heard-ms")
		b.ReportMetric(ms(st.core), st.name+"-core-ms")
		b.ReportMetric(ms(st.document), st.name+"-document-ms")
		b.ReportMetric(ms(st.saved), st.name+"-saved-ms")
		b.ReportMetric(ms(st.told), st.name+"-told-ms")
		b.ReportMetric(float64(st.words)/float64(n), st.name+"-words")
		b.ReportMetric(float64(st.documents)/float64(n), st.name+"-documents")
		b.ReportMetric(float64(st.frames)/float64(n), st.name+"-frames")
		b.ReportMetric(float64(st.bytes)/float64(n)/1e3, st.name+"-kB")
	}
	b.ReportMetric(float64(c.registry.size)/1e3, "document-kB")
	view := wire.Control(wire.KindView, &c.core.Record().View)
	b.ReportMetric(float64(wire.HeaderBytes+view.PayloadBytes())/1e3, "view-kB")
}

// BenchmarkServerDies measures from the report of a server's death until all shards serve again: the death is noticed,
// the replacement joins, and all affected processes report, one after the other.
func BenchmarkServerDies(b *testing.B) {
	each(b, strategies, func(c *crowd, s *stages, n int) {
		victim := c.holder(n)
		c.measure(s.of("death"), func() { c.dies(membership.Server, victim) })
		c.measure(s.of("next"), func() { c.comes(membership.Server, victim) })
		c.measure(s.of("after"), c.settle)
	})
}

// BenchmarkServerJoins adds a server, which receives its share of the shards and then leaves the job.
func BenchmarkServerJoins(b *testing.B) {
	each(b, strategies[:2], func(c *crowd, s *stages, n int) {
		c.measure(s.of("comes"), func() { c.comes(membership.Server, -1) })
		c.measure(s.of("share"), c.settle)
		last := len(c.core.Record().Servers) - 1
		m := c.seats[memberID{membership.Server, last}]
		c.measure(s.of("drain"), func() {
			st := c.said[last]
			st.Draining = true
			d, _ := c.servers[last].Delta(&st, 0, false)
			c.hear(m, wire.Control(wire.KindStatus, &d))
		})
		c.measure(s.of("gone"), func() {
			c.settle()
			c.dies(membership.Server, last)
		})
	})
}

// BenchmarkWorkerDies measures a worker's death until another process holds its slot: every shard has fenced the first
// process and carried out the decision.
func BenchmarkWorkerDies(b *testing.B) {
	each(b, strategies[:2], func(c *crowd, s *stages, n int) {
		victim := n * 37 % len(c.core.Record().Slots)
		c.measure(s.of("death"), func() { c.dies(membership.Worker, victim) })
		c.measure(s.of("next"), func() { c.comes(membership.Worker, victim) })
		c.measure(s.of("after"), c.settle)
	})
}

// BenchmarkSecond measures a second in which each slot finishes one clock and nothing else happens. Every process sends
// five statuses in two seconds, as in jobs of 160 processes and more, and its counts once per second. There are ten
// ticks.
func BenchmarkSecond(b *testing.B) {
	each(b, strategies, func(c *crowd, s *stages, n int) {
		clock := perdure.Clock(n % 900)
		for word := range 2 + n%2 {
			c.measure(s.of("workers"), func() { c.work(clock, word == 0) })
			c.measure(s.of("servers"), func() { c.serveOn(clock, word == 0) })
		}
		c.measure(s.of("ticks"), func() {
			for range 10 {
				c.now = c.now.Add(c.cfg.Tick)
				c.handle(func() error {
					c.tick(c.now)
					c.latest.Counts.tick(c.now, c.core)
					c.rate(c.now)
					c.sendProgress(true)
					c.sweeper.sweep(c.Context(), c.Coordinator)
					return nil
				})
			}
		})
	})
}

// work lets all workers report a clock.
func (c *crowd) work(clock perdure.Clock, counts bool) {
	for i := range c.core.Record().Slots {
		st := protocol.WorkerStatus{
			Generation: c.core.Record().View.Generation, Revision: c.core.Record().View.Revision, Clock: clock,
			Resources: protocol.Resources{Goroutines: 40, HeapBytes: 1 << 28},
		}
		n := int64(clock)
		st.Counters = perdure.WorkerCounters{
			UpdatesSent: 1000 * n, BytesPushed: n << 20, BytesPulled: n << 20, Samples: 64 * n, CommNs: n << 29,
			ComputeNs: n << 29, ClockDifferential: map[int64]int64{0: n, 1: n}, ReadLag: map[int64]int64{0: n},
		}
		c.clocks[i] = st
		d := c.workers[i].Delta(&st, counts)
		c.hear(c.seats[memberID{membership.Worker, i}], wire.Control(wire.KindWorkerStatus, &d))
	}
}

// serveOn lets all servers report the progress of their shards.
func (c *crowd) serveOn(clock perdure.Clock, counts bool) {
	for i, st := range c.statuses() {
		for j := range st.Shards {
			st.Shards[j].MinClock, st.Shards[j].Seq = clock, uint64(clock)*uint64(len(c.core.Record().Slots))
		}
		d, _ := c.servers[i].Delta(&st, 0, counts)
		c.hear(c.seats[memberID{membership.Server, i}], wire.Control(wire.KindStatus, &d))
	}
}

// BenchmarkStart measures the start of a job: all processes join one after the other. For each one, every shard fences
// the processes before it and carries out the decision.
func BenchmarkStart(b *testing.B) {
	for _, workers := range []int{100, 300, 1000, 3000} {
		b.Run(fmt.Sprintf("workers=%d/servers=200/shards=1000", workers), func(b *testing.B) {
			var s stages
			var c *crowd
			n := 0
			for ; b.Loop(); n++ {
				f := begun(b, "chain:2", workers, 200, 1000)
				clear(f.Slots)
				clear(f.View.Slots)
				c = gathering(b, f)
				c.measure(s.of("servers"), func() {
					for i := range 200 {
						c.comes(membership.Server, i)
					}
				})
				c.measure(s.of("workers"), func() {
					for i := range workers {
						c.comes(membership.Worker, i)
					}
				})
				c.measure(s.of("words"), c.settle)
			}
			s.report(b, c, n)
		})
	}
}

// line is a number of members on real connections, with the other ends.
type line struct {
	crew         memberSet
	conns, peers []transport.Conn
}

// connect connects n members.
func connect(b *testing.B, n int) *line {
	l, err := transport.TCP{}.Listen("127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	all := &line{crew: newMemberSet()}
	for range n {
		peer, err := transport.TCP{}.Dial(b.Context(), l.Addr())
		if err != nil {
			b.Fatal(err)
		}
		conn, err := l.Accept()
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _, _ = peer.Close(), conn.Close() })
		all.crew.markWelcomed(&member{conn: conn, hello: wire.Hello{Role: wire.RoleWorker}})
		all.peers, all.conns = append(all.peers, peer), append(all.conns, conn)
	}
	return all
}

// hear receives one message on each connection.
func hear(b *testing.B, conns []transport.Conn) {
	for _, conn := range conns {
		var f wire.Frame
		if err := conn.Recv(&f); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkSockets measures the cost of a message on a real connection for the coordinator's thread: sending one that
// is encoded once for all members, as view deltas are, and receiving one.
func BenchmarkSockets(b *testing.B) {
	mine := func() time.Duration {
		var t unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
			b.Fatal(err)
		}
		return time.Duration(t.Nano())
	}
	d := &protocol.ViewDelta{Base: 7, Revision: 8, Generation: 1}
	for i := range 10 {
		h := protocol.Holder{Server: 1, Incarnation: 1, Addr: "10.0.0.1:40123", Since: 2}
		d.Shards = append(d.Shards, protocol.ShardChange{
			Shard: perdure.ShardID(i), ShardView: protocol.ShardView{Holder: h, Epoch: 2},
		})
	}
	var w protocol.WorkerDeltaEncoder
	word := w.Delta(&protocol.WorkerStatus{Generation: 1}, false)
	for _, n := range []int{200, 1200} {
		b.Run(fmt.Sprintf("connections=%d", n), func(b *testing.B) {
			all := connect(b, n)
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			var tells, receives time.Duration
			times := 0
			for ; b.Loop(); times++ {
				at := mine()
				all.crew.broadcast(d, all.crew.readers)
				tells += mine() - at
				hear(b, all.peers)
				for _, peer := range all.peers {
					if err := peer.Send(wire.Control(wire.KindWorkerStatus, &word)); err != nil {
						b.Fatal(err)
					}
				}
				at = mine()
				hear(b, all.conns)
				receives += mine() - at
			}
			each := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / float64(times*n) / 1e3 }
			b.ReportMetric(each(tells), "tell-us")
			b.ReportMetric(each(receives), "hear-us")
		})
	}
}

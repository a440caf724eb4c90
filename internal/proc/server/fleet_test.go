package server_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/server"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/testcluster"
)

// fleet is a job of one shard in virtual time. Its servers are real; the test plays the coordinator.
type fleet struct {
	*testing.T
	*testcluster.Hosts
	ctx  context.Context
	job  perdure.JobSpec
	with []func(*server.Config)
	view protocol.View // changed only by the test's goroutine, with mu held

	mu     sync.Mutex // guards the fields below
	told   map[int]transport.Conn
	status map[int]protocol.ServerStatus
	ended  map[int]*checkpoint.Segment
	logs   map[int]*lines
}

// inFleet runs a test with n servers that do not hold the shard yet.
func inFleet(t *testing.T, model, recovery string, slots, n int, test func(f *fleet), with ...func(*server.Config)) {
	t.Helper()
	inShards(t, model, recovery, slots, n, 1, test, with...)
}

// inShards is inFleet with several shards.
func inShards(t *testing.T, model, recovery string, slots, n, shards int, test func(f *fleet),
	with ...func(*server.Config),
) {
	t.Helper()
	o := testcluster.Options{
		Seed:  1,
		Ended: func(p *testcluster.Process, err error) { t.Logf("%s ended: %v", p.Name, err) },
	}
	testcluster.RunVirtual(t, 10*time.Minute, o, func(t *testing.T, ctx context.Context, h *testcluster.Hosts) {
		f := &fleet{
			T: t, Hosts: h, ctx: ctx, with: with, job: testcluster.Job(model, recovery, slots, n, shards),
			told: map[int]transport.Conn{}, status: map[int]protocol.ServerStatus{},
			ended: map[int]*checkpoint.Segment{}, logs: map[int]*lines{},
		}
		f.view = protocol.View{
			Revision: 1, Generation: 1,
			Slots: slices.Repeat([]protocol.SlotView{{Incarnation: 1, Decided: true, Settled: true}}, slots),
		}
		f.view.Shards = slices.Repeat([]protocol.ShardView{{Holder: protocol.Holder{Server: -1}}}, shards)
		f.Listen(testcluster.CoordinatorAddr, f.coordinate)
		for i := range n {
			f.start(i)
		}
		test(f)
	})
}

func (f *fleet) coordinate(c transport.Conn, hello wire.Hello) {
	f.mu.Lock()
	_ = c.Send(wire.Control(wire.KindWelcome, wire.Welcome{Job: f.job, Index: hello.Index, Incarnation: 1}),
		wire.Control(wire.KindView, f.view))
	key := hello.Index
	if hello.Role == wire.RoleWorker {
		key += 100
	}
	f.told[key] = c
	f.mu.Unlock()
	var word protocol.ObservedServer
	for {
		var got wire.Frame
		var d protocol.ServerDelta
		if c.Recv(&got) != nil {
			return
		}
		if got.Kind == wire.KindStatus && wire.ParseControl(&got, &d) == nil {
			word.Apply(&d, func(perdure.ShardID, *protocol.ObservedShard, *protocol.ShardDelta) {})
			f.mu.Lock()
			f.status[hello.Index] = word.Status()
			f.mu.Unlock()
		}
	}
}

func host(i int) string { return fmt.Sprintf("server:%d", i) }

// start starts a server.
func (f *fleet) start(i int) {
	log := &lines{added: make(chan struct{}, 1)}
	f.logs[i] = log
	usual := func(cfg *server.Config) {
		cfg.Listen = host(i) + "/1"
		cfg.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn}))
		cfg.OnEnded = func(seg *checkpoint.Segment) { f.mu.Lock(); defer f.mu.Unlock(); f.ended[i] = seg }
	}
	f.StartServer(host(i), append([]func(*server.Config){usual}, f.with...)...)
}

// stop asks a server to end.
func (f *fleet) stop(i int) { f.Process(host(i)).Stop() }

// err returns the error that a server ended with, or nil if it is running or ended without one.
func (f *fleet) err(i int) error {
	select {
	case <-f.Process(host(i)).Ended():
		return f.Process(host(i)).Wait()
	default:
		return nil
	}
}

func (f *fleet) pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// say changes the view, sends it to the connected servers, and waits until they have processed it.
func (f *fleet) say(change func(v *protocol.View, sv *protocol.ShardView)) {
	f.mu.Lock()
	f.view.Revision++
	f.view.Shards, f.view.Slots, f.view.Tables = slices.Clone(f.view.Shards), slices.Clone(f.view.Slots),
		slices.Clone(f.view.Tables)
	change(&f.view, &f.view.Shards[0])
	sent := []transport.Conn{}
	for _, c := range f.told {
		sent = append(sent, c)
	}
	f.mu.Unlock()
	for _, c := range sent {
		_ = c.Send(wire.Control(wire.KindView, f.view)) // some servers have gone
	}
	f.pass(50 * time.Millisecond)
}

func (f *fleet) holder(i int, since uint64) protocol.Holder {
	return protocol.Holder{Server: i, Incarnation: 1, Addr: host(i) + "/1", Since: since}
}

// chain starts the shard's next epoch with these members.
func (f *fleet) chain(members ...int) {
	f.say(func(_ *protocol.View, sv *protocol.ShardView) { f.setChain(sv, members...) })
}

func (f *fleet) setChain(sv *protocol.ShardView, members ...int) {
	since := func(i int) uint64 {
		if sv.Joining != nil && sv.Joining.Server == i {
			return sv.Joining.Since
		}
		for j := range sv.Replicas() {
			if h := sv.Replica(j); h.Server == i {
				return h.Since
			}
		}
		return f.view.Revision
	}
	var all []protocol.Holder
	for _, i := range members {
		all = append(all, f.holder(i, since(i)))
	}
	sv.Holder, sv.Followers, sv.Joining = all[0], all[1:], nil
	sv.Epoch++
}

// table adds a table to the job.
func (f *fleet) table(spec perdure.TableSpec) {
	if spec.Consistency.Kind == "" {
		spec.Consistency = f.job.Consistency
	}
	f.say(func(v *protocol.View, _ *protocol.ShardView) { v.Tables = append(v.Tables, spec) })
}

func dense() perdure.TableSpec {
	return perdure.TableSpec{
		Name: "t", Rows: 4, Dim: 1, Rule: perdure.Rule{Kind: perdure.RuleAdd},
		Init: perdure.Init{Kind: perdure.InitZeros},
	}
}

// shard returns a server's last status of the shard.
func (f *fleet) shard(i int) (st protocol.ShardStatus) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if all := f.status[i].Shards; len(all) > 0 {
		return all[0]
	}
	return st
}

// counted is like shard, after the server has reported new counts.
func (f *fleet) counted(i int) protocol.ShardStatus {
	f.pass(1200 * time.Millisecond)
	return f.shard(i)
}

// end stops the servers and returns what each one held, as the bytes of a segment.
func (f *fleet) end(servers ...int) (held []string) {
	f.Helper()
	f.pass(500 * time.Millisecond)
	for _, i := range servers {
		f.stop(i)
	}
	f.pass(500 * time.Millisecond)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, i := range servers {
		seg := f.ended[i]
		if seg == nil {
			f.Fatalf("server %d held nothing when it ended: %v", i, f.err(i))
		}
		at := disk.NewMemory()
		ref, err := checkpoint.WriteSegment(store.NewDir(at, ""), seg)
		if err != nil {
			f.Fatal(err)
		}
		file, err := at.ReadFile(ref.File)
		if err != nil {
			f.Fatal(err)
		}
		held = append(held, fmt.Sprintf("applied %v, seq %d, states %q, a segment %x", seg.Applied, seg.Seq, seg.States,
			sha256.Sum256(file)))
	}
	return held
}

// speaker is a connection to a server, with the frames received on it.
type speaker struct {
	transport.Conn
	f    *fleet
	slot perdure.Slot

	mu  sync.Mutex // guards got
	got []wire.Frame
}

// speak connects to a server.
func (f *fleet) speak(to int, hello wire.Hello) *speaker {
	f.Helper()
	hello.Incarnation = max(hello.Incarnation, 1)
	hello.Job = f.job.ID
	c, err := transport.DialServer(f.ctx, f.Net.Host(fmt.Sprintf("%s:%d", hello.Role, hello.Index)), host(to)+"/1",
		hello)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { c.Close() })
	return f.hear(c, perdure.Slot(hello.Index))
}

// hear collects the frames received on a connection.
func (f *fleet) hear(c transport.Conn, slot perdure.Slot) *speaker {
	s := &speaker{Conn: c, f: f, slot: slot}
	f.Go(func() {
		for {
			var got wire.Frame
			if c.Recv(&got) != nil {
				return
			}
			got.Payload = bytes.Clone(got.Payload)
			s.mu.Lock()
			s.got = append(s.got, got)
			s.mu.Unlock()
		}
	})
	return s
}

// works connects as a slot's worker and opens the shard.
func (f *fleet) works(to int, slot perdure.Slot) *speaker {
	f.Helper()
	s := f.speak(to, wire.Hello{Role: wire.RoleWorker, Index: int(slot), Incarnation: f.view.Slots[slot].Incarnation})
	s.say(wire.KindOpen, 0, nil)
	if s.last(wire.KindOpened) == nil {
		f.Fatalf("server %d does not serve slot %d: %+v", to, slot, f.shard(to))
	}
	return s
}

// say sends a frame about the shard and lets time pass.
func (s *speaker) say(kind wire.Kind, clock perdure.Clock, payload []byte, change ...func(h *wire.Header)) {
	s.f.Helper()
	h := wire.Header{
		Kind: kind, Generation: s.f.view.Generation, Epoch: s.f.view.Shards[0].Epoch, Slot: s.slot,
		Clock: clock,
	}
	if s.slot >= 0 {
		h.Incarnation = s.f.view.Slots[s.slot].Incarnation
	}
	if kind == wire.KindUpdate {
		h.Parts = 1
	}
	for _, to := range change {
		to(&h)
	}
	if err := s.Send(wire.Frame{Header: h, Payload: payload}); err != nil {
		s.f.Fatal(err)
	}
	s.f.pass(20 * time.Millisecond)
}

// last returns the newest received frame of a kind, or nil.
func (s *speaker) last(kind wire.Kind) *wire.Frame {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.got) - 1; i >= 0; i-- {
		if s.got[i].Kind == kind {
			return &s.got[i]
		}
	}
	return nil
}

// count returns the number of received frames of a kind.
func (s *speaker) count(kind wire.Kind) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.got {
		if s.got[i].Kind == kind {
			n++
		}
	}
	return n
}

// counts returns the counts that the slot received last.
func (s *speaker) counts() protocol.Counts {
	s.f.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.got) - 1; i >= 0; i-- {
		if k := s.got[i].Kind; k == wire.KindAck || k == wire.KindOpened {
			counts, err := wire.ParseCounts(s.got[i].Payload)
			if err != nil {
				s.f.Fatal(err)
			}
			return counts
		}
	}
	return protocol.Counts{Applied: -1}
}

// add returns an update that adds v to row 0 of table 0.
func add(v float32) []byte {
	return wire.AppendBlock(nil, &wire.Block{Rows: wire.Rows{Count: 1}, Values: []float32{v}})
}

// row reads row 0 of table 0 at a MinClock of at least need. ok is false if there is no answer.
func (s *speaker) row(need perdure.Clock) (v float32, ok bool) {
	s.f.Helper()
	before := s.count(wire.KindRows)
	s.say(wire.KindGet, need, wire.AppendRows(nil, &wire.Rows{Count: 1}))
	if s.count(wire.KindRows) == before {
		return 0, false
	}
	var a wire.Answer
	if err := wire.ParseAnswer(s.last(wire.KindRows), &a); err != nil || len(a.Values) != 1 {
		s.f.Fatalf("an answer of %v, %v", a.Values, err)
	}
	return a.Values[0], true
}

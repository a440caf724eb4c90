package coordinator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// send queues frames and closes the connection if the peer does not read. A broken connection is left to its receiving
// goroutine, which first reads the frames that arrived before, for example a worker's announcement that it leaves.
func (m *member) send(frames ...wire.Frame) {
	if err := m.conn.TrySend(frames...); err != nil && !errors.Is(err, transport.ErrBroken) {
		m.conn.Close() // the receiving goroutine notices
	}
}

func (m *member) kind() membership.Kind { return membership.Kind(m.hello.Role) }

// id returns the server or slot that a member holds or asks for.
func (m *member) id() memberID { return memberID{m.kind(), m.index} }

// holdsID reports whether a member is a server or a worker.
func (m *member) holdsID() bool {
	return m.hello.Role == wire.RoleServer || m.hello.Role == wire.RoleWorker
}

// readsServers reports whether a member is a client of the servers.
func (m *member) readsServers() bool {
	return m.hello.Role == wire.RoleWorker || m.hello.Role == wire.RoleObserver
}

// accept accepts connections until the listener is closed. If accepting fails permanently, the coordinator ends, since
// its replacement may succeed.
func (c *Coordinator) accept(ctx context.Context) {
	err := transport.AcceptAll(ctx, c.cfg.Listener, c.admission.Connections(),
		func(conn transport.Conn) { c.wg.Go(func() { c.serve(ctx, conn) }) })
	if err != nil {
		c.inbox.doSaved(ctx, func() { c.endErr = fmt.Errorf("coordinator: accept: %w", err) })
	}
}

// serve handles one connection until it ends.
func (c *Coordinator) serve(ctx context.Context, conn transport.Conn) {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	hello, peer, err := c.admission.Admit(conn)
	if err != nil {
		return // Admit has logged it
	}
	defer peer.Release()
	defer conn.Close() // queued frames count against the peer until then
	hello.Process = hello.Name()
	unanswered, answered := context.WithCancel(ctx)
	defer answered()
	c.wg.Go(func() { transport.ConfirmHello(unanswered, conn) })
	m := &member{
		conn: conn, hello: hello, index: hello.Index, stopConfirming: answered,
		unread: newUnreadLimit(),
	}
	admitted := make(chan bool, 1)
	c.inbox.post(ctx, task{func() { admitted <- c.admit(ctx, m) }, !m.holdsID()}) // observers get the view now
	select {
	case ok := <-admitted:
		if !ok {
			return
		}
	case <-ctx.Done():
		return
	}
	var f wire.Frame
	for {
		if err = conn.Recv(&f); err != nil {
			break
		}
		if err = wire.CheckToCoordinator(hello.Role, f.Kind); err != nil {
			_ = transport.Refuse(conn, wire.Refusal{Reason: err.Error()}) // the connection is closed anyway
			break
		}
		if f.Kind == wire.KindEcho { // answered immediately, whatever the loop is doing
			if err = conn.TrySend(wire.Frame{Header: f.Header}); err != nil && !errors.Is(err, transport.ErrBroken) {
				break
			}
			continue
		}
		weight := m.unread.weight(&f)
		if m.unread.put(ctx, weight) != nil {
			return
		}
		var act func() error
		if act, err = c.parse(m, &f); err != nil {
			break
		}
		c.inbox.post(ctx, task{func() {
			m.unread.take(weight)
			if err := act(); err != nil {
				c.reject(ctx, m, err)
			}
		}, f.Kind == wire.KindOrder})
	}
	c.inbox.doUnsaved(ctx, func() { c.removeMember(m, err) })
}

// reject notifies a misbehaving process and closes its connection.
func (c *Coordinator) reject(ctx context.Context, m *member, why error) {
	c.saveAndRefuse(ctx, m, wire.Refusal{Reason: why.Error()})
	m.conn.Close() // the receiving goroutine notices
}

// admit decides whether a new connection is accepted.
func (c *Coordinator) admit(ctx context.Context, m *member) bool {
	r := c.decide(m)
	if r != nil {
		c.saveAndRefuse(ctx, m, *r)
	}
	return r == nil
}

// saveAndRefuse refuses a process after saving the facts on which the refusal is based.
func (c *Coordinator) saveAndRefuse(ctx context.Context, m *member, r wire.Refusal) {
	if c.endErr == nil {
		c.endErr = c.carryOut(ctx)
	}
	if c.endErr == nil {
		c.refuse(m, r)
	}
}

// decide accepts a new connection or returns why it is refused.
func (c *Coordinator) decide(m *member) *wire.Refusal {
	record := c.core.Record()
	if c.shutdown.refusal != nil {
		c.members.standbys.remove(m.hello.Process)
	}
	if m.hello.Job != "" && m.hello.Job != record.Job.ID {
		return &wire.Refusal{Reason: fmt.Sprintf("wrong job: this is job %s, the peer belongs to job %s", record.Job.ID,
			m.hello.Job)}
	}
	if r := c.records.initial.checkHello(m, c); r != nil {
		return r
	}
	c.shutdown.answered[m.hello.Process] = struct{}{}
	if c.shutdown.refusal != nil && m.hello.Role != wire.RoleSupervisor {
		return c.shutdown.refusal
	}
	if record.Failed != "" && m.hello.Role != wire.RoleSupervisor {
		return new(failedRefusal(record.Failed))
	}
	switch m.hello.Role {
	case wire.RoleSupervisor:
		if s := c.supervisor; s != nil && s.hello.Process != m.hello.Process {
			return &wire.Refusal{Temporary: true, Reason: "the job already has a supervisor"}
		} else if s != nil {
			c.members.replace(s) // the connection broke without being noticed
		}
		c.supervisor, c.reported = m, lastReports{}
		c.core.SetSupervised(true)
		c.welcome(m, 0)
		for _, f := range c.events {
			m.send(f)
		}
		c.events = nil
		c.sendProgress(true)
	case wire.RoleObserver:
		c.welcome(m, 0)
	case wire.RoleServer, wire.RoleWorker:
		return c.join(m)
	default:
		return &wire.Refusal{Reason: fmt.Sprintf("unknown role %q", m.hello.Role)}
	}
	return nil
}

// join asks the core for a server index or worker slot.
func (c *Coordinator) join(m *member) *wire.Refusal {
	record := c.core.Record()
	k := m.kind()
	if i := m.hello.Index; m.hello.Incarnation > 0 && i >= 0 && superseded(record, k, i, m.hello) {
		return &wire.Refusal{Fenced: true, Reason: fmt.Sprintf("a newer process has taken over %s:%d", k, i)}
	}
	// Without this check, any process that knows a worker's name could use it.
	if k == membership.Worker && c.cfg.Keys.Job != "" && m.hello.Nonce == "" {
		return &wire.Refusal{Reason: "the worker's hello has no nonce"}
	}
	if traits := recovery.TraitsOf(&record.Job); m.hello.SavesAtCuts && (!traits.SavesCuts() || traits.CutsBySlot) {
		why := "keeps none, so its progress would be lost if its process died"
		if traits.CutsBySlot {
			why = "chooses their clocks at the last moment if clocks are atomic"
		}
		return &wire.Refusal{Reason: fmt.Sprintf(
			"the program saves its state only for checkpoints, but recovery %s %s; use checkpoint:C or "+
				"chain:N,checkpoint:C without atomic clocks, or call SaveState in every clock",
			record.Job.Recovery, why)}
	}
	index, _, admission := c.core.Join(k, m.hello.Index, membership.Applicant{
		Process: m.hello.Process, Addr: m.hello.Addr, Zone: m.hello.Zone, PID: m.hello.PID, Grow: m.hello.Grow,
		AtCuts: m.hello.SavesAtCuts,
	})
	m.index = index
	switch admission {
	case membership.Granted, membership.Wait: // welcomed once this is saved and the slot is settled
		if k == membership.Worker {
			c.problems.noteArrival(index, arrival{
				m.hello.Process, c.core.MemberStatus(k, index).Clock, record.View.Generation,
			})
		}
		c.members.add(m)
		c.members.standbys.remove(m.hello.Process)
		c.grantsPending = true
	case membership.Taken:
		if r := c.problems.checkClaim(m, c, time.Now()); r != nil {
			return r
		}
		taken := fmt.Sprintf("another process already runs as %s:%d", k, m.hello.Index)
		if m.hello.Index < 0 {
			m.standby = true
			taken = fmt.Sprintf("all %ss of the job are connected", k)
		}
		return &wire.Refusal{Temporary: true, Reason: taken}
	case membership.Unreachable:
		return &wire.Refusal{Temporary: true, Reason: fmt.Sprintf("other servers cannot reach %s", m.hello.Addr)}
	case membership.JobOver:
		return &wire.Refusal{JobEnded: true, JobDone: true, Reason: "the job is done"}
	case membership.SlotLeft:
		return &wire.Refusal{JobEnded: true, Reason: fmt.Sprintf("%s:%d has left the job", k, index)}
	case membership.NoFreeSlot:
		return &wire.Refusal{Reason: fmt.Sprintf(
			"all worker slots are taken, and this job does not add slots by itself; add one with perdure scale %d",
			workers(record)+1)}
	case membership.Refused:
		most := len(record.Slots)
		if k == membership.Server {
			most = len(record.Servers)
		}
		return &wire.Refusal{Reason: fmt.Sprintf("there is no %s:%d; the job has %d", k, index, most)}
	}
	return nil
}

// workers returns the number of slots that have no end yet.
func workers(f *membership.JobRecord) (n int) {
	for i := range f.View.Slots {
		if f.View.Slots[i].Until == 0 {
			n++
		}
	}
	return n
}

// superseded reports whether a newer process holds the server index or slot that h claims.
func superseded(record *membership.JobRecord, k membership.Kind, index int, h wire.Hello) bool {
	places := record.Servers
	if k == membership.Worker {
		places = record.Slots
	}
	return index < len(places) && places[index].Process != h.Process && places[index].Incarnation >= h.Incarnation
}

func (c *Coordinator) refuse(m *member, r wire.Refusal) {
	if m.standby {
		// A standby process is normal, and asks about once a second until it gets a slot.
		if c.members.standbys.add(&m.hello, time.Now()) {
			c.admission.Connections().Info("a process is on standby", "peer", m.conn.Peer(), "peer_role",
				m.hello.Role, "reason", r.Reason)
		}
	} else {
		c.admission.Connections().Warn("rejected a connection", "peer", m.conn.Peer(), "peer_role", m.hello.Role,
			"reason", r.Reason)
	}
	_ = transport.Refuse(m.conn, r) // the connection is closed anyway
}

// welcome sends a process its welcome and the complete view.
func (c *Coordinator) welcome(m *member, incarnation perdure.Incarnation) {
	record := c.core.Record()
	c.members.markWelcomed(m)
	w := wire.Welcome{Job: record.Job, Index: m.index, Incarnation: incarnation}
	if m.hello.Role == wire.RoleWorker {
		w.Ticket = c.cfg.Keys.Ticket(record.Job.ID, perdure.Slot(m.index), incarnation, m.hello.Process)
		w.Store, w.StoreIsLocal = c.cfg.StoreAddr, c.cfg.StoreLocal
	}
	if m.hello.Role == wire.RoleObserver && m.hello.WantsSettings {
		w.RunSettings, w.Dir = c.cfg.Settings, c.cfg.Dir
	}
	m.stopConfirming()
	m.send(wire.Control(wire.KindWelcome, w))
	m.send(c.members.view(&record.View))
	if m.readsServers() {
		c.core.ViewSent()
	}
}

// welcomeAssigned welcomes the waiting members whose assignment is saved and whose slots are settled.
func (c *Coordinator) welcomeAssigned() {
	record := c.core.Record()
	for m := range c.members.waiting {
		places, settled := record.Servers, true
		if m.hello.Role == wire.RoleWorker {
			places, settled = record.Slots, record.View.Slots[m.index].Settled
		}
		if p := &places[m.index]; settled && p.Process == m.hello.Process {
			c.welcome(m, p.Incarnation)
		}
	}
}

func (c *Coordinator) removeMember(m *member, err error) {
	if !c.members.remove(m) {
		return
	}
	c.admission.Connections().Info("connection ended", "peer_role", m.hello.Role, "index", m.index, "err", err)
	if c.supervisor == m {
		c.supervisor = nil
		c.core.SetSupervised(false)
	}
	if c.members.releaseID(m) {
		lockedOut := ""
		if revoked, is := errors.AsType[*transport.PeerRevokedError](err); is {
			lockedOut = fmt.Sprintf("its certificate (%s) is revoked", revoked.Holder)
		}
		c.core.Disconnected(m.kind(), m.index, m.hello.Process, lockedOut)
	}
}

// parse turns a permitted frame into a task for the loop. An error from parse or from the task ends the connection.
func (c *Coordinator) parse(m *member, f *wire.Frame) (act func() error, err error) {
	switch f.Kind {
	case wire.KindStatus:
		var d protocol.ServerDelta
		if err := m.parseStatus(f, &d, &d.Number); err != nil {
			return nil, err
		}
		act = func() error {
			c.serverStatus(m, &d)
			return nil
		}
	case wire.KindWorkerStatus:
		var d protocol.WorkerDelta
		if err := m.parseStatus(f, &d, &d.Number); err != nil {
			return nil, err
		}
		if err := d.CheckSize(c.job); err != nil {
			return func() error { return err }, nil
		}
		m.worker.Apply(&d)
		st := m.worker
		act = func() error { return c.workerStatus(m, st) }
	case wire.KindTable:
		var spec perdure.TableSpec
		act, err = func() error { return c.table(spec) }, wire.ParseControl(f, &spec)
	case wire.KindReport:
		var r wire.Report
		act, err = func() error { return c.report(m, r) }, wire.ParseControl(f, &r)
	case wire.KindExited:
		var e wire.Exited
		act, err = func() error { return c.exited(m, e) }, wire.ParseControl(f, &e)
	case wire.KindOrder:
		var o wire.Order
		act, err = func() error {
			c.order(o)
			return nil
		}, wire.ParseControl(f, &o)
	}
	return act, err
}

// maxText is the maximum number of bytes of a process's text that are passed on.
const maxText = 500

// exited processes a report that a process has ended. It comes from its parent, or from a worker that is leaving.
func (c *Coordinator) exited(m *member, e wire.Exited) error {
	if m.hello.Role == wire.RoleWorker && (e.Role != wire.RoleWorker || e.Index != m.index || e.PID != m.hello.PID) {
		return fmt.Errorf("worker:%d reported the end of another process: %d, %s:%d", m.index, e.PID,
			e.Role.Printable(), e.Index)
	}
	kind, how := membership.Kind(e.Role), e.How[:min(len(e.How), maxText)]
	if e.Vacated && kind == membership.Worker {
		how = membership.GaveUpSlot
	}
	if m.hello.Role != wire.RoleObserver {
		c.core.ProcessDied(kind, e.Index, e.PID, how)
	} else if err := hostReports(kind, &e, how, c.core); err != nil {
		return err
	}
	return programFailed(m, c, &e)
}

// minHostName is the minimum length of a host's secret name, so that it cannot be guessed. Only the host and its
// processes know it.
const minHostName = 20

// hostReports processes a host's report that one of its processes has ended. The host does not know which slot or
// server index the process held.
func hostReports(kind membership.Kind, e *wire.Exited, how string, core *membership.Core) error {
	places := core.Record().Servers
	if kind == membership.Worker {
		places = core.Record().Slots
	}
	if len(e.Host) < minHostName || kind != membership.Server && kind != membership.Worker {
		return fmt.Errorf("an observer that is not the host reported the end of a %s", e.Role.Printable())
	}
	name := wire.OfHost(e.Host, e.PID)
	for i := range places {
		if strings.HasPrefix(places[i].Process, name) {
			core.ProcessDied(kind, i, e.PID, how)
			return nil
		}
	}
	return nil // the process held none
}

// table creates a table for a worker.
func (c *Coordinator) table(spec perdure.TableSpec) error {
	f := c.core.Record()
	copies := recovery.Of(f.Job.Recovery).Traits().Copies
	if err := checkSize(&f.Job, f.View.Tables, len(f.Servers), copies, c.cfg.TableBytes, &spec); err != nil {
		return err
	}
	return c.core.AddTable(spec)
}

func (c *Coordinator) report(m *member, r wire.Report) error {
	f := c.core.Record()
	says := clockReport{Slot: r.Slot, Generation: r.Generation, Clock: r.Clock, EndAfter: r.EndAfter || r.Continue}
	if err := validate(&f.Job, &f.View, perdure.Slot(m.index), says); err != nil || !m.welcomed {
		return err
	}
	if r.Generation != f.View.Generation {
		return nil // of a generation that was rolled back
	}
	if r.EndAfter {
		if r.Clock >= c.core.MinClock() { // otherwise the report is so old that all workers have passed it
			c.core.EndAfter(r.Clock, r.Tentative)
		}
		return nil
	}
	if r.Continue {
		c.core.RevokeEnd(r.Clock)
		return nil
	}
	if r.Untrained != nil {
		c.emit(membership.Event{
			Kind: "untrained", Target: fmt.Sprintf("%s:%d", wire.RoleWorker, m.index),
			Text: r.Untrained.Describe(r.Slot),
		})
	}
	if r.Warning != "" && m.warnings < maxWarnings {
		m.warnings++
		c.emit(membership.Event{
			Kind: "warning", Target: fmt.Sprintf("%s:%d", wire.RoleWorker, m.index),
			Text: fmt.Sprintf("slot %d warns: %s", r.Slot, oneLine(r.Warning)),
		})
	}
	if r.TestAccuracy != nil {
		c.latest.TestAccuracy = r.TestAccuracy
	}
	if r.TrainLoss != nil {
		c.latest.TrainLoss = r.TrainLoss
	}
	c.toSupervisor(wire.Control(wire.KindReport, r))
	return nil
}

// A program can write this much to the console and to the events.
const (
	maxWarnings     = 10
	maxWarningRunes = 500
)

// oneLine returns the beginning of a program's text on one line, without characters that could change a terminal.
func oneLine(text string) string {
	runes := []rune(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text))
	return strings.Join(strings.Fields(string(runes[:min(len(runes), maxWarningRunes)])), " ")
}

// order carries out an order of the supervisor.
func (c *Coordinator) order(o wire.Order) {
	switch o.Kind {
	case wire.OrderFinish:
		c.core.Finish()
	case wire.OrderFinalCheckpoint:
		c.core.RequestFinalCheckpoint()
	case wire.OrderEnd:
		c.startShutdown(o.Spec)
	case wire.OrderDrop:
		var share float64
		var seed uint64
		if _, err := fmt.Sscanf(o.Spec, "%g %d", &share, &seed); err == nil {
			c.drop(share, seed)
		}
	case wire.OrderLogState:
		log := wire.MemberProgress{PID: o.PID}
		if _, err := fmt.Sscanf(o.Spec, "%s %d", &log.State, &log.Incarnation); err == nil {
			c.latest.Log = &log
		}
	case wire.OrderRunning, wire.OrderIdle:
		q := membership.Inquiry{PID: o.PID}
		kind, at, _ := strings.Cut(o.Target, ":")
		if _, err := fmt.Sscan(at+" "+o.Spec, &q.Index, &q.Number); err == nil {
			c.members.noteUnread(c.core) // the process may have sent a status that arrives after this order
			q.Kind = membership.Kind(kind)
			c.core.RecordAnswer(q, o.Kind == wire.OrderRunning)
		}
	case wire.OrderForward: // a fault for a member's fault layer
		o.Kind = wire.OrderFault
		if o.Target == string(wire.RoleCoordinator) && c.cfg.OnOrder != nil {
			c.cfg.OnOrder(o)
		}
		for m := range c.members.all {
			if fmt.Sprintf("%s:%d", m.hello.Role, m.index) == o.Target {
				m.send(wire.Control(wire.KindOrder, o))
			}
		}
	default:
		c.admission.Connections().Warn("unknown order", "kind", o.Kind)
	}
}

// failedRefusal returns the refusal for members of a failed job. The supervisor learns of the failure by an event and
// ends the processes. The coordinator stays to answer processes that reconnect.
func failedRefusal(why string) wire.Refusal {
	return wire.Refusal{JobEnded: true, JobFailed: true, Reason: why}
}

package coordinator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/admission"
	"github.com/perdure/perdure/internal/proc/transport"
)

// send ends the connection of who takes nothing. That of who is gone is its reader's to end, once it has read what came
// before: that may be a worker's word that it leaves.
func (m *member) send(frames ...wire.Frame) {
	if err := m.conn.TrySend(frames...); err != nil && !errors.Is(err, transport.ErrBroken) {
		m.conn.Close() // its reader notices
	}
}

func (m *member) kind() membership.Kind { return membership.Kind(m.hello.Role) }

// seat is the place that a member has, or asks for.
func (m *member) seat() seat { return seat{m.kind(), m.index} }

// place reports whether a member has a place in the job.
func (m *member) place() bool {
	return m.hello.Role == wire.RoleServer || m.hello.Role == wire.RoleWorker
}

// reads reports whether a member is a client of the servers.
func (m *member) reads() bool {
	return m.hello.Role == wire.RoleWorker || m.hello.Role == wire.RoleObserver
}

// accept takes connections until the listener is closed. A coordinator that can take
// none any more ends: its next process may.
func (c *Coordinator) accept(ctx context.Context) {
	err := transport.AcceptAll(ctx, c.cfg.Listener, c.door.Connections(),
		func(conn transport.Conn) { c.wg.Go(func() { c.serve(ctx, conn) }) })
	if err != nil {
		c.inbox.do(ctx, func() { c.ended = fmt.Errorf("coordinator: accept: %w", err) })
	}
}

// serve handles one connection until it breaks.
func (c *Coordinator) serve(ctx context.Context, conn transport.Conn) {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	hello, peer, err := c.door.Enter(conn)
	if err != nil {
		return // the log has it
	}
	defer peer.Leave()
	defer conn.Close() // what is queued counts until then
	hello.Process = hello.Name()
	unanswered, answered := context.WithCancel(ctx)
	defer answered()
	c.wg.Go(func() { transport.Reassure(unanswered, conn) })
	m := &member{
		conn: conn, hello: hello, index: hello.Index, answered: answered,
		unread: newUnread(),
	}
	admitted := make(chan bool, 1)
	c.inbox.post(ctx, deed{func() { admitted <- c.admit(ctx, m) }, !m.place()}) // who has no place is told the view now
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
		if err = admission.ToCoordinator(hello.Role, f.Kind); err != nil {
			_ = transport.Refuse(conn, wire.Refusal{Reason: err.Error()}) // it is being closed anyway
			break
		}
		if f.Kind == wire.KindEcho { // at once, whatever the loop waits for
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
		c.inbox.post(ctx, deed{func() {
			m.unread.take(weight)
			if err := act(); err != nil {
				c.turnAway(ctx, m, err)
			}
		}, f.Kind == wire.KindOrder})
	}
	c.inbox.gather(ctx, func() { c.leave(m, err) })
}

// turnAway ends the connection of a process that does not keep the rules, and tells it.
func (c *Coordinator) turnAway(ctx context.Context, m *member, why error) {
	c.turnDown(ctx, m, wire.Refusal{Reason: why.Error()})
	m.conn.Close() // its reader notices
}

// admit decides on a newcomer.
func (c *Coordinator) admit(ctx context.Context, m *member) bool {
	r := c.judge(m)
	if r != nil {
		c.turnDown(ctx, m, *r)
	}
	return r == nil
}

// turnDown refuses a process, once that is recorded from which it follows.
func (c *Coordinator) turnDown(ctx context.Context, m *member, r wire.Refusal) {
	if c.ended == nil {
		c.ended = c.carryOut(ctx)
	}
	if c.ended == nil {
		c.refuse(m, r)
	}
}

// judge lets a newcomer in, or says why not.
func (c *Coordinator) judge(m *member) *wire.Refusal {
	facts := c.core.Facts()
	c.bye.met[m.hello.Process] = struct{}{}
	if m.hello.Job != "" && m.hello.Job != facts.Job.ID {
		return &wire.Refusal{Reason: fmt.Sprintf("this is job %s, the peer belongs to job %s", facts.Job.ID,
			m.hello.Job)}
	}
	if c.bye.why != nil && m.hello.Role != wire.RoleSupervisor {
		return c.bye.why
	}
	if facts.Failed != "" && m.hello.Role != wire.RoleSupervisor {
		r := failed(facts.Failed)
		return &r
	}
	switch m.hello.Role {
	case wire.RoleSupervisor:
		if s := c.supervisor; s != nil && s.hello.Process != m.hello.Process {
			return &wire.Refusal{Again: true, Reason: "the job has a supervisor already"}
		} else if s != nil {
			c.crew.forget(s) // its connection broke, and that was not noticed yet
		}
		c.supervisor, c.reported = m, reports{}
		c.core.Supervised(true)
		c.welcome(m, 0)
		for _, f := range c.events {
			m.send(f)
		}
		c.events = nil
		c.progress(true)
	case wire.RoleObserver:
		c.welcome(m, 0)
	case wire.RoleServer, wire.RoleWorker:
		return c.join(m)
	default:
		return &wire.Refusal{Reason: fmt.Sprintf("unknown role %q", m.hello.Role)}
	}
	return nil
}

// join asks the core for a server's or worker's place.
func (c *Coordinator) join(m *member) *wire.Refusal {
	facts := c.core.Facts()
	k := m.kind()
	if i := m.hello.Index; m.hello.Incarnation > 0 && i >= 0 && superseded(facts, k, i, m.hello) {
		return &wire.Refusal{Fenced: true, Reason: fmt.Sprintf("%s:%d has been given to a newer process", k, i)}
	}
	// else whoever knows a worker's name could say it
	if k == membership.Worker && c.cfg.Keys.Job != "" && m.hello.Nonce == "" {
		return &wire.Refusal{Reason: "a worker's hello without the number that it has drawn"}
	}
	if job := &facts.Job; m.hello.AtCuts && !recovery.Of(job.Recovery).Traits().Saves() {
		return &wire.Refusal{Reason: fmt.Sprintf(
			"the program saves its state for checkpoints only, and recovery %s keeps none: what it had done would "+
				"be lost with its process; choose checkpoint:C or chain:N,checkpoint:C, or let it call SaveState in "+
				"each clock", job.Recovery)}
	}
	index, _, admission := c.core.Join(k, m.hello.Index, membership.Newcomer{
		Process: m.hello.Process, Addr: m.hello.Addr, Zone: m.hello.Zone, PID: m.hello.PID, Grow: m.hello.Grow,
		AtCuts: m.hello.AtCuts,
	})
	m.index = index
	switch admission {
	case membership.Granted, membership.Wait: // once it is recorded, and the slot is settled
		if k == membership.Worker {
			c.troubles.comes(index, m.hello.Process, c.core.Condition(k, index).Clock)
		}
		c.crew.seat(m)
		c.asked = true
	case membership.Taken:
		if r := c.troubles.claim(m, c, time.Now()); r != nil {
			return r
		}
		taken := fmt.Sprintf("%s:%d is taken", k, m.hello.Index)
		if m.hello.Index < 0 {
			taken = fmt.Sprintf("every %s of the job is there already", k)
		}
		return &wire.Refusal{Again: true, Reason: taken}
	case membership.Unreached:
		return &wire.Refusal{Again: true, Reason: fmt.Sprintf("others cannot reach a server at %s", m.hello.Addr)}
	case membership.Over:
		return &wire.Refusal{Over: true, Done: true, Reason: "the job is done"}
	case membership.Departed:
		return &wire.Refusal{Over: true, Reason: fmt.Sprintf("%s:%d has left the job", k, index)}
	case membership.Fixed:
		return &wire.Refusal{Reason: fmt.Sprintf(
			"every worker of the job is there already, and all wait for each: people say that there are to be more, "+
				"with perdure scale %d", workers(facts)+1)}
	case membership.Refused:
		most := len(facts.Slots)
		if k == membership.Server {
			most = len(facts.Servers)
		}
		return &wire.Refusal{Reason: fmt.Sprintf("there is no %s:%d in a job of %d", k, index, most)}
	}
	return nil
}

// workers returns how many slots take part, as far as is known.
func workers(f *membership.Facts) (n int) {
	for i := range f.View.Slots {
		if f.View.Slots[i].Until == 0 {
			n++
		}
	}
	return n
}

// superseded reports whether a process that had a place has lost it.
func superseded(facts *membership.Facts, k membership.Kind, index int, h wire.Hello) bool {
	places := facts.Servers
	if k == membership.Worker {
		places = facts.Slots
	}
	return index < len(places) && places[index].Process != h.Process && places[index].Incarnation >= h.Incarnation
}

func (c *Coordinator) refuse(m *member, r wire.Refusal) {
	c.door.Connections().Warn("refused a connection", "peer", m.conn.Peer(), "peer_role", m.hello.Role, "reason",
		r.Reason)
	_ = transport.Refuse(m.conn, r) // it is being closed anyway
}

// welcome tells a process that it is in, and everything it needs to know.
func (c *Coordinator) welcome(m *member, incarnation perdure.Incarnation) {
	facts := c.core.Facts()
	c.crew.welcome(m)
	w := wire.Welcome{Job: facts.Job, Index: m.index, Incarnation: incarnation}
	if m.hello.Role == wire.RoleWorker {
		w.Ticket = c.cfg.Keys.Ticket(facts.Job.ID, perdure.Slot(m.index), incarnation, m.hello.Process)
		w.Store, w.Local = c.cfg.StoreAt, c.cfg.StoreLocal
	}
	if m.hello.Role == wire.RoleObserver && m.hello.Asks {
		w.Run, w.Folder = c.cfg.Settings, c.cfg.Folder
	}
	m.answered()
	m.send(wire.Control(wire.KindWelcome, w))
	m.send(c.crew.view(&facts.View))
	if m.reads() {
		c.core.Shown()
	}
}

// grant welcomes those who wait and whose places are recorded, and their slots settled.
func (c *Coordinator) grant() {
	facts := c.core.Facts()
	for m := range c.crew.waiting {
		places, settled := facts.Servers, true
		if m.hello.Role == wire.RoleWorker {
			places, settled = facts.Slots, facts.View.Slots[m.index].Settled
		}
		if p := &places[m.index]; settled && p.Process == m.hello.Process {
			c.welcome(m, p.Incarnation)
		}
	}
}

func (c *Coordinator) leave(m *member, err error) {
	if !c.crew.remove(m) {
		return
	}
	c.door.Connections().Info("connection ended", "peer_role", m.hello.Role, "index", m.index, "err", err)
	if c.supervisor == m {
		c.supervisor = nil
		c.core.Supervised(false)
	}
	if c.crew.vacate(m) {
		c.core.Disconnected(m.kind(), m.index, m.hello.Process)
	}
}

// parse turns a frame that its sender may send into what the loop is to do about it. An error, of this or of that,
// ends the connection.
func (c *Coordinator) parse(m *member, f *wire.Frame) (act func() error, err error) {
	switch f.Kind {
	case wire.KindStatus:
		var d words.ServerDelta
		if err := m.parseStatus(f, &d, &d.Number); err != nil {
			return nil, err
		}
		act = func() error {
			c.serverSays(m, &d)
			return nil
		}
	case wire.KindWorkerStatus:
		var d words.WorkerDelta
		if err := m.parseStatus(f, &d, &d.Number); err != nil {
			return nil, err
		}
		if err := d.Fits(c.job); err != nil {
			return func() error { return err }, nil
		}
		m.worker.Take(&d)
		st := m.worker
		act = func() error { return c.workerSays(m, st) }
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

// mostWords is how much of what a process says in words is passed on, in bytes.
const mostWords = 500

// exited takes the word that a process has ended: its parent's, or, of a worker that
// leaves, its own.
func (c *Coordinator) exited(m *member, e wire.Exited) error {
	if m.hello.Role == wire.RoleWorker && (e.Role != wire.RoleWorker || e.Index != m.index || e.PID != m.hello.PID) {
		return fmt.Errorf("worker:%d says that process %d, %s:%d, has ended", m.index, e.PID, e.Role.Known(), e.Index)
	}
	kind, how := membership.Kind(e.Role), e.How[:min(len(e.How), mostWords)]
	if m.hello.Role != wire.RoleObserver {
		c.core.Gone(kind, e.Index, e.PID, how)
	} else if err := hostSays(kind, &e, how, c.core); err != nil {
		return err
	}
	return programFailed(m, c, &e)
}

// leastHost is how long a host's name is at least: only the host and its processes know it, and nobody guesses it.
const leastHost = 20

// hostSays takes the word of a host that one of its processes has ended. Which place that had the host does not know.
func hostSays(kind membership.Kind, e *wire.Exited, how string, core *membership.Core) error {
	places := core.Facts().Servers
	if kind == membership.Worker {
		places = core.Facts().Slots
	}
	if len(e.Host) < leastHost || kind != membership.Server && kind != membership.Worker {
		return fmt.Errorf("an observer says that a %s has ended, and is not its host", e.Role.Known())
	}
	name := wire.OfHost(e.Host, e.PID)
	for i := range places {
		if strings.HasPrefix(places[i].Process, name) {
			core.Gone(kind, i, e.PID, how)
			return nil
		}
	}
	return nil // it had no place
}

// table creates a table as a worker asks.
func (c *Coordinator) table(spec perdure.TableSpec) error {
	f := c.core.Facts()
	copies := recovery.Of(f.Job.Recovery).Traits().Copies
	if err := fits(&f.Job, f.View.Tables, len(f.Servers), copies, c.cfg.TableBytes, &spec); err != nil {
		return err
	}
	return c.core.AddTable(spec)
}

func (c *Coordinator) report(m *member, r wire.Report) error {
	f := c.core.Facts()
	says := belief{Slot: r.Slot, Generation: r.Generation, Clock: r.Clock, EndAfter: r.EndAfter || r.Continue}
	if err := believe(&f.Job, &f.View, perdure.Slot(m.index), says); err != nil || !m.welcomed {
		return err
	}
	if r.Generation != f.View.Generation {
		return nil // of a course of training that was abandoned
	}
	if r.EndAfter {
		if r.Clock >= c.core.MinClock() { // else it was kept for so long that all have gone beyond it
			c.core.EndAfter(r.Clock, r.Tentative)
		}
		return nil
	}
	if r.Continue {
		c.core.Continue(r.Clock)
		return nil
	}
	if r.Untrained != nil {
		c.tell(membership.Event{
			Kind: "untrained", Target: fmt.Sprintf("%s:%d", wire.RoleWorker, m.index),
			Text: r.Untrained.Of(r.Slot),
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

// order does what the supervisor asks for.
func (c *Coordinator) order(o wire.Order) {
	switch o.Kind {
	case wire.OrderFinish:
		c.core.Finish()
	case wire.OrderClose:
		c.core.Close()
	case wire.OrderEnd:
		c.end(o.Spec)
	case wire.OrderDrop:
		var share float64
		var seed uint64
		if _, err := fmt.Sscanf(o.Spec, "%g %d", &share, &seed); err == nil {
			c.drop(share, seed)
		}
	case wire.OrderLog:
		log := wire.PlaceProgress{PID: o.PID}
		if _, err := fmt.Sscanf(o.Spec, "%s %d", &log.State, &log.Incarnation); err == nil {
			c.latest.Log = &log
		}
	case wire.OrderRuns, wire.OrderIdle:
		q := membership.Inquiry{PID: o.PID}
		kind, at, _ := strings.Cut(o.Target, ":")
		if _, err := fmt.Sscan(at+" "+o.Spec, &q.Index, &q.Number); err == nil {
			c.crew.hearUnread(c.core) // the process may have sent a status since, which comes after this order
			q.Kind = membership.Kind(kind)
			c.core.Answers(q, o.Kind == wire.OrderRuns)
		}
	case wire.OrderPass: // a fault for one of the members' own fault layers
		o.Kind = wire.OrderFault
		if o.Target == string(wire.RoleCoordinator) && c.cfg.OnOrder != nil {
			c.cfg.OnOrder(o)
		}
		for m := range c.crew.members {
			if fmt.Sprintf("%s:%d", m.hello.Role, m.index) == o.Target {
				m.send(wire.Control(wire.KindOrder, o))
			}
		}
	default:
		c.door.Connections().Warn("order not understood", "kind", o.Kind)
	}
}

// failed is what everybody is told of a job that can not go on. The supervisor, which
// hears of it by an event, ends the processes. The coordinator stays, and tells
// whoever comes back.
func failed(why string) wire.Refusal {
	return wire.Refusal{Over: true, Failed: true, Reason: why}
}

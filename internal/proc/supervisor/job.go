package supervisor

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/transport"
)

// Watcher receives events of a job. Its functions are called one at a time and must return soon; any may be nil.
type Watcher struct {
	Event    func(wire.Event)
	Report   func(wire.Report)
	Progress func(wire.Progress)
}

// JobConfig configures a Job.
type JobConfig struct {
	Network     transport.Network
	Coordinator string         // the coordinator's address
	Secret      perdure.Secret // secret of servers and the supervisor
	// Control is the address where the coordinator's process answers control.AlivePath, even if its disk does not
	// answer. "": the coordinator is not watched.
	Control   string
	Ring      *keys.Ring // keys for connections to the job's processes; nil: the job has none
	Faults    []Fault
	Seed      uint64 // seed for random choices of faults
	NoReplace bool   // servers that end are not replaced
	// Worker returns the process for a slot that joins the running job; nil: this supervisor does not start workers.
	Worker func(slot int) Spec
	// OwnWorkers reports whether the workers are programs of the user. Such a worker is restarted even if it ends with
	// an error, until the coordinator reports that the job has failed.
	OwnWorkers bool
	// LogAddr is the address of the job's log process; "": none.
	LogAddr string
	Watch   Watcher
	Log     *slog.Logger
	Grace   time.Duration // see Options; 0: doneGrace, because processes are notified of the end beforehand
	// LastCheckpoint is the time limit for the last checkpoint of a job that is ended early (Stop); 0: none is made.
	LastCheckpoint time.Duration
	// ProgramGrace is the time limit for the user's programs to end before that; 0: they end with the job.
	ProgramGrace time.Duration
	// SlotCuts means that a checkpoint has another clock for each slot, so the programs may end at any clocks.
	SlotCuts bool
}

// Job runs the processes of a local job. It starts and watches them, replaces those that die, injects the planned
// faults, and reports exits to the coordinator.
type Job struct {
	cfg    JobConfig
	group  *Group
	ctx    context.Context
	cancel context.CancelCauseFunc

	mu           sync.Mutex      // guards the fields below, up to reportedLog
	coordinator  coordinatorConn // connection to the coordinator, for exits and orders
	schedule     *Schedule
	startedAt    time.Time // when the first clock started
	started      bool
	lastProgress wire.Progress
	members      memberProgress
	plannedPause map[memberID]time.Duration // how long a place stays empty after its next exit
	trouble      map[string]string          // by target: the last reported problem
	endReason    error                      // why the job ends
	done         bool                       // the job is over; exits are not failures
	until        map[memberID]perdure.Clock // for leaving slots: the first clock without them
	left         map[memberID]bool          // slots that have left, and get no further process
	restarts     map[memberID]*Backoff
	leaderDied   bool // the coordinator has died, and its next process has not connected yet
	closing      closing
	savesOnTerm  bool // a program of the user writes the work since its last update when it receives SIGTERM
	timeline     timeline
	logState     string     // see reportLog
	reportedLog  wire.Order // last report about the log to the coordinator

	probeInterval time.Duration // see probeLoop; shorter in tests
}

// maxPending limits the number of planned faults, because all of them are checked at every tick.
const maxPending = 4096

// ErrChild means that a process of the job failed by itself. A replacement would not help.
var ErrChild = errors.New("supervisor: a process of the job failed")

// Exit codes that are not failures.
const (
	exitFenced = 3 // another process has its place
	// ExitDrained is the exit code of a server that the coordinator has drained. It is not restarted.
	ExitDrained = 4
	exitSignal  = 130 // ended by a signal, perhaps during startup
)

// NewJob returns a job without processes. When ctx is done, the processes continue; Stop ends them.
func NewJob(ctx context.Context, cfg JobConfig) (*Job, error) {
	j := &Job{
		cfg:           cfg,
		schedule:      NewSchedule(cfg.Faults),
		plannedPause:  map[memberID]time.Duration{},
		trouble:       map[string]string{},
		until:         map[memberID]perdure.Clock{},
		left:          map[memberID]bool{},
		restarts:      map[memberID]*Backoff{},
		logState:      stateWaiting,
		probeInterval: defaultProbeInterval,
	}
	j.ctx, j.cancel = context.WithCancelCause(ctx)
	var err error
	j.group, err = NewGroup(Options{OnExit: j.onExit, Grace: cmp.Or(cfg.Grace, doneGrace)})
	if err != nil {
		return nil, err
	}
	return j, nil
}

// Group returns the job's processes.
func (j *Job) Group() *Group { return j.group }

// Run keeps a connection to the coordinator and injects faults until ctx is done, the job ends, or a process fails. It
// returns the reason.
func (j *Job) Run() error {
	name := "supervisor-" + rand.Text() // the coordinator admits one supervisor per job
	link := transport.Link{
		Network: j.cfg.Network, Addr: j.cfg.Coordinator, PeerRole: keys.Coordinator,
		Hello: func() wire.Hello {
			return wire.Hello{Role: wire.RoleSupervisor, Process: name, Secret: j.cfg.Secret}
		},
		Up: j.up, Frame: j.frame, Down: j.down,
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := link.Run(j.ctx); err != nil && j.ctx.Err() == nil {
			j.cancel(err)
		}
	})
	for _, w := range j.probeTargets() {
		wg.Go(func() { j.probeLoop(w) })
	}
	wg.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-j.ctx.Done():
				return
			case <-tick.C:
				j.injectDue()
			}
		}
	})
	<-j.ctx.Done()
	wg.Wait()
	return context.Cause(j.ctx)
}

// End ends the job. The coordinator notifies all workers, including those on other hosts, and ends. Then Run returns
// err.
func (j *Job) End(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.endLocked(err)
}

// endLocked is End for callers that hold j.mu. The first error counts.
func (j *Job) endLocked(err error) {
	j.done = true
	if j.endReason != nil {
		return
	}
	j.endReason = err
	j.coordinator.send(wire.Control(wire.KindOrder, wire.Order{Kind: wire.OrderEnd, Spec: err.Error()}))
	time.AfterFunc(endTimeout, func() { j.cancel(err) })
}

// MarkDone records that the job is done. Processes that end are no longer replaced.
func (j *Job) MarkDone() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.done = true
	j.group.DisableRestarts()
	j.coordinator.send(wire.Control(wire.KindOrder, wire.Order{Kind: wire.OrderFinish}))
}

// AddFault plans another fault.
func (j *Job) AddFault(f Fault) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.schedule.pending = append(j.schedule.pending, f)
}

// Pending returns the planned faults that have not occurred yet.
func (j *Job) Pending() []Fault {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.schedule.pending)
}

// Since returns the time since the first clock started, or 0 if it has not.
func (j *Job) Since() time.Duration {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.sinceLocked(time.Now())
}

func (j *Job) sinceLocked(now time.Time) time.Duration {
	if !j.started {
		return 0
	}
	return now.Sub(j.startedAt)
}

func (j *Job) up(c transport.Conn, _ *wire.Frame) {
	now, target := time.Now(), string(wire.RoleCoordinator)
	j.mu.Lock()
	died := j.leaderDied
	j.leaderDied = false
	j.members = memberProgress{}
	j.coordinator.up(c)
	j.resendCloseLocked()
	if j.cfg.LogAddr != "" {
		j.reportedLog = j.logOrderLocked()
		j.coordinator.send(wire.Control(wire.KindOrder, j.reportedLog))
	}
	j.timeline.serving(wire.Event{
		Target: target, UnixNs: now.UnixNano(), UpdatesLost: j.lastProgress.UpdatesLost,
		ClocksRedone: j.lastProgress.ClocksRedone,
	}, now)
	j.mu.Unlock()
	if died {
		j.Emit("serving", target, now, target+" serves again")
	}
}

func (j *Job) down(c transport.Conn, _ error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.coordinator.down(c)
	if j.endReason != nil { // the coordinator has ended
		j.cancel(j.endReason)
	}
}

// frame handles a message from the coordinator.
func (j *Job) frame(_ transport.Conn, f *wire.Frame) error {
	switch f.Kind {
	case wire.KindEvent:
		var e wire.Event
		if err := wire.ParseControl(f, &e); err != nil {
			return err
		}
		j.event(e)
	case wire.KindReport:
		var r wire.Report
		if err := wire.ParseControl(f, &r); err != nil {
			return err
		}
		if r.SavesOnTerm {
			j.mu.Lock()
			j.savesOnTerm = true
			j.mu.Unlock()
			return nil
		}
		if j.cfg.Watch.Report != nil {
			j.cfg.Watch.Report(r)
		}
	case wire.KindProgress:
		var p wire.Progress
		if err := wire.ParseControl(f, &p); err != nil {
			return err
		}
		j.onProgress(p)
	case wire.KindOrder:
		var o wire.Order
		if err := wire.ParseControl(f, &o); err != nil {
			return err
		}
		return j.order(o)
	}
	return nil
}

func (j *Job) event(e wire.Event) {
	at, received := time.Unix(0, e.UnixNs), time.Now()
	j.mu.Lock()
	switch e.Kind {
	case "detected", "suspected":
		j.timeline.detected(e.Target, at, received)
	case "serving":
		j.timeline.serving(e, received)
	case "trouble":
		j.trouble[e.Target] = e.Text
	case "left":
		for p := range j.until {
			j.left[p] = j.left[p] || targetName(p) == e.Target
		}
	case "failed":
		j.endLocked(fmt.Errorf("%w: %s", ErrFailed, e.Text))
	}
	j.mu.Unlock()
	if j.cfg.Watch.Event != nil {
		j.cfg.Watch.Event(e)
	}
}

func (j *Job) onProgress(p wire.Progress) {
	j.mu.Lock()
	j.done = j.done || p.Done
	j.endIfClosedLocked(&p)
	if p.Serving && !j.started {
		j.startedAt, j.started = time.Now(), true
	}
	p.Members = j.members.update(p.Members)
	j.lastProgress = p
	j.timeline.settled(&p, time.Now())
	awaited := j.updateMembersLocked(p.Members)
	j.mu.Unlock()
	for _, slot := range awaited {
		j.startWorker(slot)
	}
	j.injectDue()
	if j.cfg.Watch.Progress != nil {
		j.cfg.Watch.Progress(p)
	}
}

// updateMembersLocked records which slots leave. It returns the slots that have joined and need a process. The caller
// must hold j.mu.
func (j *Job) updateMembersLocked(places []wire.MemberProgress) (awaited []int) {
	for _, d := range places {
		if d.Role != wire.RoleWorker {
			continue
		}
		p := memberID{d.Role, d.Index}
		if delete(j.until, p); d.Until > 0 {
			j.until[p] = d.Until
		}
		if j.left[p] = d.State == "left"; d.Awaited && !j.done {
			awaited = append(awaited, d.Index)
		}
	}
	return awaited
}

// startWorker starts a slot's first process, unless it already has one.
func (j *Job) startWorker(slot int) {
	if j.cfg.Worker == nil {
		return
	}
	err := j.group.Start(j.cfg.Worker(slot))
	if err != nil && !errors.Is(err, ErrTaken) && !errors.Is(err, perdure.ErrStopped) {
		j.End(err)
	}
}

// order handles an order from the coordinator, or forwarded by it.
func (j *Job) order(o wire.Order) error {
	switch o.Kind {
	case wire.OrderKill:
		if at, ok := j.group.memberOf(o.PID); ok && string(at.role) != strings.SplitN(o.Target, ":", 2)[0] {
			j.cfg.Log.Error("a suspected process reported the ID of another process", "target", o.Target, "pid", o.PID,
				"of", at)
			return nil
		}
		if err := j.group.KillPID(o.PID); err != nil && !errors.Is(err, ErrNotRunning) {
			j.cfg.Log.Error("cannot kill a suspect", "target", o.Target, "err", err)
		}
	case wire.OrderProbe:
		_, ours := j.group.memberOf(o.PID)
		o.Kind = wire.OrderIdle
		if ours && wantsToRun(o.PID) {
			o.Kind = wire.OrderRunning
		}
		j.mu.Lock()
		defer j.mu.Unlock()
		j.coordinator.send(wire.Control(wire.KindOrder, o))
	case wire.OrderFault:
		f, err := ParseFault(o.Spec)
		if err != nil {
			return err
		}
		if len(j.Pending()) >= maxPending {
			j.Emit("trouble", string(wire.RoleSupervisor), time.Now(),
				fmt.Sprintf("ignored fault %v, because %d faults are already planned", f, maxPending))
			return nil
		}
		j.AddFault(f)
	case wire.OrderStop:
		j.Stop(ErrStopAsked)
	}
	return nil
}

// ErrFailed wraps the reason why the coordinator gave up the job.
var ErrFailed = errors.New("supervisor: the job cannot continue")

// ErrStopAsked is returned by Run if the job was stopped on request.
var ErrStopAsked = errors.New("supervisor: stopped on request")

// onExit handles the exit of a process, and decides when it is replaced.
func (j *Job) onExit(e Exit) Restart {
	again, empty := j.replace(e)
	target := targetName(memberID{e.Role, e.Index})
	switch {
	case empty:
		j.Emit("left", target, e.At, fmt.Sprintf("%s %s, and is not replaced", target, e.Description))
	case e.Role == wire.RoleCoordinator && again != Never:
		j.mu.Lock()
		j.leaderDied = true
		j.mu.Unlock()
		j.Emit("detected", target, e.At, fmt.Sprintf("%s is dead: %s; training continues", target, e.Description))
	case e.Role == RoleLog && again != Never:
		j.Emit("detected", target, e.At,
			fmt.Sprintf("%s is dead: %s; updates wait for its successor", target, e.Description))
		j.reportLog(stateDead)
		go j.awaitLog() // until the log listens or the job ends
	}
	return again
}

// Emit reports an event that the coordinator does not know of to the Watcher.
func (j *Job) Emit(kind, target string, at time.Time, text string) {
	if j.cfg.Watch.Event == nil {
		return
	}
	j.mu.Lock()
	e := wire.Event{
		Kind: kind, Target: target, Clock: j.lastProgress.Clock, UnixNs: at.UnixNano(), Text: text,
		UpdatesLost: j.lastProgress.UpdatesLost, ClocksRedone: j.lastProgress.ClocksRedone,
	}
	j.mu.Unlock()
	j.cfg.Watch.Event(e)
}

// replace carries out the consequences of an exit. It returns when the next process starts, and whether the position
// stays empty although the job continues.
func (j *Job) replace(e Exit) (again Restart, empty bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	id := memberID{e.Role, e.Index}
	pause, planned := j.plannedPause[id]
	delete(j.plannedPause, id)
	if !planned {
		pause = j.backoffLocked(id, e)
	}
	c := exitContext{
		own: e.Role == wire.RoleWorker && j.cfg.OwnWorkers, planned: planned,
		slotLeft: j.left[id], leaving: j.until[id] > 0,
		finished: j.lastProgress.End > 0 && j.lastProgress.Clock >= j.lastProgress.End,
		jobDone:  j.done, noReplace: j.cfg.NoReplace,
		stopping: j.ctx.Err() != nil || j.closing.ends && e.Role == wire.RoleWorker,
	}
	target := targetName(id)
	actions := c.decide(&e)
	if actions.record {
		j.timeline.died(target, e, j.sinceLocked(e.At), j.lastProgress)
		if e.Role == wire.RoleCoordinator || e.Role == RoleLog {
			j.timeline.detected(target, e.At, e.At)
		}
	}
	if actions.report != nil {
		j.coordinator.send(wire.Control(wire.KindExited, *actions.report))
	}
	if actions.delay {
		pause = max(pause, leaveDelay)
	}
	switch actions.restart {
	case restartAfter:
		return Restart(pause), false
	case restartFail:
		j.endLocked(fmt.Errorf("%w: %s: %s", ErrChild, target, j.exitReasonLocked(target, e)))
	}
	return Never, actions.restart == restartOff
}

// backoffLocked returns how long a place stays empty after an unplanned exit. The caller must hold j.mu.
func (j *Job) backoffLocked(p memberID, e Exit) time.Duration {
	if j.restarts[p] == nil {
		j.restarts[p] = &Backoff{}
	}
	return j.restarts[p].Next(e.Uptime)
}

// exitReasonLocked returns why a process ended: its last line, or, if the log could not be written (a full disk), the
// last problem that it reported to the coordinator. The caller must hold j.mu.
func (j *Job) exitReasonLocked(target string, e Exit) string {
	if text, ok := strings.CutPrefix(e.LastLine, "perdure: "); ok {
		return text
	}
	if text := j.trouble[target]; text != "" {
		return text
	}
	return e.LastLine
}

// Timeline returns the failures so far.
func (j *Job) Timeline() []Failure {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.timeline.list()
}

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

// Watcher is told what happens to a job. Its functions are called one at a time
// and must return soon; any may be nil.
type Watcher struct {
	Event    func(wire.Event)
	Report   func(wire.Report)
	Progress func(wire.Progress)
}

// JobConfig is what a Job needs.
type JobConfig struct {
	Network     transport.Network
	Coordinator string         // its address
	Secret      perdure.Secret // what servers and the supervisor show
	// Control is where the coordinator's process answers at control.AlivePath, though its
	// disk may not; "": nobody looks whether it is silent.
	Control   string
	Ring      *keys.Ring // of a job with keys: what its processes are called with; else nil
	Faults    []Fault
	Seed      uint64 // of what faults draw
	NoReplace bool   // servers that end are not started again
	// Worker says what runs in a slot that joins the job while it runs; nil: nobody here
	// starts its processes.
	Worker func(slot int) Spec
	// OwnWorkers says that these are programs of the user's: one that ends with an error is started
	// again, too, until the coordinator says that the job has failed.
	OwnWorkers bool
	// LogAddr is where the job's log process, if it has one, listens.
	LogAddr string
	Watch   Watcher
	Log     *slog.Logger
	Grace   time.Duration // see Options; 0: 150 ms, since they are told before
	// LastCheckpoint is how long a job that is ended early (Stop) may take for its last
	// checkpoint; 0: none is made.
	LastCheckpoint time.Duration
}

// Job runs a local job's processes: it starts and watches them, replaces those
// that die, carries the planned faults out, and tells the coordinator which
// processes have ended.
type Job struct {
	cfg   JobConfig
	group *Group
	ctx   context.Context
	fatal context.CancelCauseFunc

	mu       sync.Mutex // guards what follows
	line     line       // to the coordinator: exits and orders
	schedule *Schedule
	begun    time.Time // when the first clock began
	began    bool
	clock    wire.Progress
	places   known
	away     map[place]time.Duration // how long a place stays empty after its next exit
	trouble  map[string]string       // by target: what it last could not do
	why      error                   // the job ends because of it
	over     bool                    // processes may end as they like
	until    map[place]perdure.Clock // of slots that leave: from when they do not take part
	left     map[place]bool          // of slots that have: no process comes after the last
	restarts map[place]*Backoff
	closing  closing
	timeline timeline
	logState string     // see tellLog
	logTold  wire.Order // what the coordinator was last told of the log

	callRound time.Duration // see watch; tests hurry it
}

// maxPending bounds the faults that are planned: each is looked at again and again.
const maxPending = 4096

// ErrChild means that a process of the job ended with an error of its own, not
// by being killed: replacing it would not help.
var ErrChild = errors.New("supervisor: a process of the job failed")

// Codes of processes that nothing is wrong with.
const (
	exitFenced = 3 // its place was taken
	// ExitDrained is how a server ends that the coordinator has ordered to hand over what it holds: it is not started
	// again.
	ExitDrained = 4
	exitSignal  = 130 // a signal told it to end, perhaps before it had begun its work
)

// NewJob makes a job without processes. ctx's end does not end them; Stop does.
func NewJob(ctx context.Context, cfg JobConfig) (*Job, error) {
	j := &Job{
		cfg: cfg, schedule: NewSchedule(cfg.Faults), away: map[place]time.Duration{}, trouble: map[string]string{},
		until: map[place]perdure.Clock{}, left: map[place]bool{},
		restarts: map[place]*Backoff{}, logState: placeWaiting, callRound: callRound,
	}
	j.ctx, j.fatal = context.WithCancelCause(ctx)
	var err error
	j.group, err = NewGroup(Options{OnExit: j.onExit, Grace: cmp.Or(cfg.Grace, overGrace)})
	if err != nil {
		return nil, err
	}
	return j, nil
}

// Group returns the job's processes.
func (j *Job) Group() *Group { return j.group }

// Run keeps in touch with the coordinator and carries faults out until ctx or
// the job ends, or a process fails; it returns why.
func (j *Job) Run() error {
	name := "supervisor-" + rand.Text() // of one job, the coordinator lets one in
	link := transport.Link{
		Network: j.cfg.Network, Addr: j.cfg.Coordinator, Wants: keys.Coordinator,
		Hello: func() wire.Hello {
			return wire.Hello{Role: wire.RoleSupervisor, Process: name, Secret: j.cfg.Secret}
		},
		Up: j.up, Frame: j.frame, Down: j.down,
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := link.Run(j.ctx); err != nil && j.ctx.Err() == nil {
			j.fatal(err)
		}
	})
	for _, w := range j.watches() {
		wg.Go(func() { j.watch(w) })
	}
	wg.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-j.ctx.Done():
				return
			case <-tick.C:
				j.carryOut()
			}
		}
	})
	<-j.ctx.Done()
	wg.Wait()
	return context.Cause(j.ctx)
}

// End ends the job: the coordinator tells the workers, among them those that
// nobody here has started, and ends; then Run returns err.
func (j *Job) End(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.end(err)
}

// end is End for those who hold j.mu. The first error counts.
func (j *Job) end(err error) {
	j.over = true
	if j.why != nil {
		return
	}
	j.why = err
	j.line.send(wire.Control(wire.KindOrder, wire.Order{Kind: wire.OrderEnd, Spec: err.Error()}))
	time.AfterFunc(lastWord, func() { j.fatal(err) })
}

// Over says that the job is done: processes that end are not replaced.
func (j *Job) Over() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.over = true
	j.group.NoMore()
	j.line.send(wire.Control(wire.KindOrder, wire.Order{Kind: wire.OrderFinish}))
}

// AddFault plans another fault.
func (j *Job) AddFault(f Fault) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.schedule.pending = append(j.schedule.pending, f)
}

// Pending returns the planned faults that have not happened.
func (j *Job) Pending() []Fault {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.schedule.pending)
}

// Since returns how long ago the first clock began; 0 if it has not.
func (j *Job) Since() time.Duration {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.since(time.Now())
}

func (j *Job) since(now time.Time) time.Duration {
	if !j.began {
		return 0
	}
	return now.Sub(j.begun)
}

func (j *Job) up(c transport.Conn, _ *wire.Frame) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.places = known{}
	j.line.up(c)
	j.remind()
	if j.cfg.LogAddr != "" {
		j.logTold = j.logOrder()
		j.line.send(wire.Control(wire.KindOrder, j.logTold))
	}
	now := time.Now()
	j.timeline.serving(wire.Event{
		Target: string(wire.RoleCoordinator), UnixNs: now.UnixNano(),
		UpdatesLost: j.clock.UpdatesLost, ClocksRedone: j.clock.ClocksRedone,
	}, now)
}

func (j *Job) down(c transport.Conn, _ error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.line.down(c)
	if j.why != nil { // that was the coordinator's last word
		j.fatal(j.why)
	}
}

// frame takes what the coordinator tells.
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
		if j.cfg.Watch.Report != nil {
			j.cfg.Watch.Report(r)
		}
	case wire.KindProgress:
		var p wire.Progress
		if err := wire.ParseControl(f, &p); err != nil {
			return err
		}
		j.progress(p)
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
	at, heard := time.Unix(0, e.UnixNs), time.Now()
	j.mu.Lock()
	switch e.Kind {
	case "detected", "suspected":
		j.timeline.detected(e.Target, at, heard)
	case "serving":
		j.timeline.serving(e, heard)
	case "trouble":
		j.trouble[e.Target] = e.Text
	case "left":
		for p := range j.until {
			j.left[p] = j.left[p] || targetName(p) == e.Target
		}
	case "failed":
		j.end(fmt.Errorf("%w: %s", ErrFailed, e.Text))
	}
	j.mu.Unlock()
	if j.cfg.Watch.Event != nil {
		j.cfg.Watch.Event(e)
	}
}

func (j *Job) progress(p wire.Progress) {
	j.mu.Lock()
	j.over = j.over || p.Done
	j.closed(&p)
	if p.Serving && !j.began {
		j.begun, j.began = time.Now(), true
	}
	p.Places = j.places.take(p.Places)
	j.clock = p
	j.timeline.settled(&p, time.Now())
	awaited := j.takePlaces(p.Places)
	j.mu.Unlock()
	for _, slot := range awaited {
		j.startWorker(slot)
	}
	j.carryOut()
	if j.cfg.Watch.Progress != nil {
		j.cfg.Watch.Progress(p)
	}
}

// takePlaces notes which slots leave, and returns those that have joined and need a
// process. It needs j.mu.
func (j *Job) takePlaces(places []wire.PlaceProgress) (awaited []int) {
	for _, d := range places {
		if d.Role != wire.RoleWorker {
			continue
		}
		p := place{d.Role, d.Index}
		if delete(j.until, p); d.Until > 0 {
			j.until[p] = d.Until
		}
		if j.left[p] = d.State == "left"; d.Awaited && !j.over {
			awaited = append(awaited, d.Index)
		}
	}
	return awaited
}

// startWorker starts a slot's first process here, unless there is one.
func (j *Job) startWorker(slot int) {
	if j.cfg.Worker == nil {
		return
	}
	err := j.group.Start(j.cfg.Worker(slot))
	if err != nil && !errors.Is(err, ErrTaken) && !errors.Is(err, perdure.ErrStopped) {
		j.End(err)
	}
}

// order does what the coordinator, or somebody through it, asks for.
func (j *Job) order(o wire.Order) error {
	switch o.Kind {
	case wire.OrderKill:
		if at, ok := j.group.at(o.PID); ok && string(at.role) != strings.SplitN(o.Target, ":", 2)[0] {
			j.cfg.Log.Error("a suspect calls itself by another's process number", "target", o.Target, "pid", o.PID,
				"of", at)
			return nil
		}
		if err := j.group.KillPID(o.PID); err != nil && !errors.Is(err, ErrNotRunning) {
			j.cfg.Log.Error("cannot kill a suspect", "target", o.Target, "err", err)
		}
	case wire.OrderLook:
		_, ours := j.group.at(o.PID)
		o.Kind = wire.OrderIdle
		if ours && wantsToRun(o.PID) {
			o.Kind = wire.OrderRuns
		}
		j.mu.Lock()
		defer j.mu.Unlock()
		j.line.send(wire.Control(wire.KindOrder, o))
	case wire.OrderFault:
		f, err := ParseFault(o.Spec)
		if err != nil {
			return err
		}
		if len(j.Pending()) >= maxPending {
			j.say("trouble", string(wire.RoleSupervisor), time.Now(),
				fmt.Sprintf("%v is left out: %d faults are planned already", f, maxPending))
			return nil
		}
		j.AddFault(f)
	case wire.OrderStop:
		j.Stop(ErrStopAsked)
	}
	return nil
}

// ErrFailed wraps why the coordinator gave the job up.
var ErrFailed = errors.New("supervisor: the job cannot go on")

// ErrStopAsked is why Run ends after somebody asked to stop the job.
var ErrStopAsked = errors.New("supervisor: stopped as asked")

// onExit is told of every process that ends, and decides about its successor.
func (j *Job) onExit(e Exit) Restart {
	again, left := j.successor(e)
	target := targetName(place{e.Role, e.Index})
	switch {
	case left:
		j.say("left", target, e.At, fmt.Sprintf("%s %s, and is not replaced", target, e.How))
	case e.Role == RoleLog && again != Never:
		j.say("detected", target, e.At, fmt.Sprintf("%s is dead: %s; updates wait for its successor", target, e.How))
		j.tellLog(placeDead)
		go j.awaitLog() // until it listens, or the job ends
	}
	return again
}

// say tells who watches of something that the coordinator knows nothing of.
func (j *Job) say(kind, target string, at time.Time, text string) {
	if j.cfg.Watch.Event == nil {
		return
	}
	j.mu.Lock()
	e := wire.Event{
		Kind: kind, Target: target, Clock: j.clock.Clock, UnixNs: at.UnixNano(), Text: text,
		UpdatesLost: j.clock.UpdatesLost, ClocksRedone: j.clock.ClocksRedone,
	}
	j.mu.Unlock()
	j.cfg.Watch.Event(e)
}

// leavePause is how long a process is waited for that came after one whose slot may
// just have left: then it is told so when it comes.
const leavePause = 250 * time.Millisecond

// successor says when the next process takes the place of one that ended. left
// says that none does, since the job replaces no servers.
func (j *Job) successor(e Exit) (again Restart, left bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	p := place{e.Role, e.Index}
	pause, planned := j.away[p]
	delete(j.away, p)
	if !planned {
		pause = j.restart(p, e)
	}
	target := targetName(p)
	if e.Code == 0 && (j.left[p] || j.until[p] > 0) {
		if pause = max(pause, leavePause); j.left[p] {
			return Never, false // it had nothing left to do
		}
	}
	if j.cfg.OwnWorkers && e.Role == wire.RoleWorker && e.Code == 0 && j.clock.End > 0 && j.clock.Clock >= j.clock.End {
		return Restart(max(pause, leavePause)), false // it has done all, and the job's end is not known here yet
	}
	drained := e.Role == wire.RoleServer && e.Code == ExitDrained
	if !j.over && !drained {
		j.timeline.died(target, e, j.since(e.At), j.clock)
		if e.Role == wire.RoleCoordinator || e.Role == RoleLog {
			j.timeline.detected(target, e.At, e.At)
		}
	}
	own := e.Role == wire.RoleWorker && j.cfg.OwnWorkers
	if e.Role != RoleLog {
		told := wire.Exited{Role: e.Role, Index: e.Index, PID: e.PID, How: e.How}
		if own && !planned && !j.over {
			told = e.Worker(true)
		}
		if told.Failed {
			pause = max(pause, leavePause) // the coordinator may say that it was the last time
		}
		j.line.send(wire.Control(wire.KindExited, told))
	}
	switch {
	case j.over || j.ctx.Err() != nil:
		return Never, false
	case own && e.PID != 0: // the coordinator counts how often it fails
	case drained:
		return Never, true
	case e.PID == 0 || e.Code > 0 && e.Code != exitFenced && e.Code != exitSignal:
		j.end(fmt.Errorf("%w: %s: %s", ErrChild, target, j.reason(target, e)))
		return Never, false
	case j.cfg.NoReplace && e.Role == wire.RoleServer:
		return Never, true
	}
	return Restart(pause), false
}

// restart returns how long a place stays empty after a process that nobody here has
// ended on purpose. It needs j.mu.
func (j *Job) restart(p place, e Exit) time.Duration {
	if j.restarts[p] == nil {
		j.restarts[p] = &Backoff{}
	}
	return j.restarts[p].Next(e.Lived)
}

// reason says why a process ended: its last word, or, where that could not be
// written (a full disk), what it last told the coordinator. It needs j.mu.
func (j *Job) reason(target string, e Exit) string {
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

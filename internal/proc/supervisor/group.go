package supervisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
)

// Spec describes the process of a place. The same Spec is used for restarts.
type Spec struct {
	Role    wire.Role
	Index   int
	Command []string // program and arguments
	Env     []string // "KEY=value", added to this process's environment
	LogPath string   // file that receives stdout and stderr (appended); "": see Output
	Output  *os.File // receives stdout and stderr if LogPath is ""; nil: they are discarded
	// Files become the process's descriptors 3, 4, … The caller owns them and must keep them open. So a listener
	// outlives the process that serves it.
	Files []*os.File
	// Grace is how long Stop waits for the process to end by itself; 0: Options.Grace.
	Grace time.Duration
}

// Exit describes the end of a process, or a failed start.
type Exit struct {
	Role        wire.Role
	Index       int
	PID         int    // 0: could not be started
	Code        int    // -1: ended by a signal, or could not be started
	Signal      string // for example "SIGKILL"; "": no signal
	Description string // description of the above
	LastLine    string // last line of its log, or the first line of a Go panic: the reason of the exit
	Tail        string // last lines of its log
	At          time.Time
	Uptime      time.Duration // run time; 0: could not be started
}

// Restart is the pause before a place's next process starts; a negative value means no restart.
type Restart time.Duration

// The usual values of a Restart.
const (
	Now   Restart = 0
	Never Restart = -1
)

// Options configures a Group.
type Options struct {
	// OnExit is called immediately for every exit, and decides about the next process. The result is ignored after Stop
	// was called. OnExit must not call Stop. Nil: never restart.
	OnExit func(Exit) Restart
	// Grace is how long Stop waits for processes to end by themselves; 0: 5 s.
	Grace time.Duration
}

var (
	// ErrNotRunning is returned if a place has no process.
	ErrNotRunning = errors.New("supervisor: not running")
	// ErrTaken is returned by Start if the place already has a process.
	ErrTaken = errors.New("supervisor: the process is already running")
)

const (
	defaultGrace = 5 * time.Second
	// killTimeout limits the wait for a killed process. A process in an uninterruptible system call may never end.
	killTimeout = 5 * time.Second
)

// Group manages the processes of one job on this machine.
type Group struct {
	opts             Options
	lifeline         *os.File // read end, inherited by every process; see DieWithParent
	lifelineWriter   *os.File // write end; the system closes it when this process ends
	thread           chan func()
	stop             chan struct{} // closed by Stop
	restartsDisabled chan struct{} // closed by DisableRestarts
	last             sync.Once
	running          sync.WaitGroup
	finish           sync.Once

	mu       sync.Mutex // guards the fields below, and the fields of children where noted
	stopping bool
	children map[memberID]*child
	spent    map[wire.Role]Usage // usage of processes that have ended
	failed   []Exit              // last exits of places whose process failed or was killed, and was not restarted
}

type memberID struct {
	role  wire.Role
	index int
}

func (p memberID) String() string { return fmt.Sprintf("%s:%d", p.role, p.index) }

// NewGroup returns a group without processes. Stop releases it.
func NewGroup(opts Options) (*Group, error) {
	if opts.OnExit == nil {
		opts.OnExit = func(Exit) Restart { return Never }
	}
	if opts.Grace == 0 {
		opts.Grace = defaultGrace
	}
	g := &Group{
		opts:             opts,
		thread:           make(chan func()),
		stop:             make(chan struct{}),
		restartsDisabled: make(chan struct{}),
		children:         map[memberID]*child{},
		spent:            map[wire.Role]Usage{},
	}
	var err error
	if g.lifeline, g.lifelineWriter, err = os.Pipe(); err != nil {
		return nil, fmt.Errorf("supervisor: %w", err)
	}
	go g.runThread()
	return g, nil
}

// runThread starts all processes from one thread that lives as long as the group. Linux sends a process's Pdeathsig
// when the *thread* that created it ends. The Go runtime may end any thread, except one that a goroutine has locked.
func (g *Group) runThread() {
	runtime.LockOSThread()
	for f := range g.thread {
		f()
	}
}

func (g *Group) onThread(f func() error) (err error) {
	done := make(chan struct{})
	g.thread <- func() {
		err = f()
		close(done)
	}
	<-done
	return err
}

// Start starts a process at its place. It fails if the place already has a process or a pending restart, if the program
// cannot be started, and after Stop (perdure.ErrStopped).
func (g *Group) Start(spec Spec) error {
	k := &child{group: g, spec: spec, id: memberID{spec.Role, spec.Index}, ended: make(chan struct{})}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.children[k.id] != nil {
		return fmt.Errorf("%w: %s", ErrTaken, k.id)
	}
	if err := g.startLocked(k); err != nil {
		return err
	}
	g.children[k.id] = k
	g.running.Go(k.run)
	return nil
}

// startLocked starts a child's process. The caller must hold g.mu, so that Stop and signals find either no process or a
// running one.
func (g *Group) startLocked(k *child) error {
	if g.stopping {
		return perdure.ErrStopped
	}
	if err := k.startLocked(); err != nil {
		return fmt.Errorf("supervisor: start %s: %w", k.id, err)
	}
	return nil
}

// Kill sends SIGKILL.
func (g *Group) Kill(role wire.Role, index int) error { return g.signal(role, index, os.Kill) }

// Terminate sends SIGTERM, a request to end.
func (g *Group) Terminate(role wire.Role, index int) error {
	return g.signal(role, index, signalTerm)
}

// Freeze sends SIGSTOP, which stops the process until it is thawed or killed.
func (g *Group) Freeze(role wire.Role, index int) error { return g.signal(role, index, signalStop) }

// Thaw sends SIGCONT. It has no effect on a process that is not frozen.
func (g *Group) Thaw(role wire.Role, index int) error { return g.signal(role, index, signalCont) }

func (g *Group) signal(role wire.Role, index int, sig os.Signal) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := memberID{role, index}
	if k := g.children[p]; k != nil {
		return k.signalLocked(sig)
	}
	return fmt.Errorf("%w: %s", ErrNotRunning, p)
}

// KillPID sends SIGKILL to the process with the given ID if it belongs to the group, and never to its successor.
func (g *Group) KillPID(pid int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, k := range g.children {
		if k.pidLocked() == pid && pid != 0 {
			return k.signalLocked(os.Kill)
		}
	}
	return fmt.Errorf("%w: process %d", ErrNotRunning, pid)
}

// memberOf returns the place of a process.
func (g *Group) memberOf(pid int) (p memberID, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for p, k := range g.children {
		if k.pidLocked() == pid && pid != 0 {
			return p, true
		}
	}
	return p, false
}

// PID returns the ID of the process at a place, or 0.
func (g *Group) PID(role wire.Role, index int) int {
	pid, _ := g.pidAndStarts(memberID{role, index})
	return pid
}

// pidAndStarts returns the ID of the process at a place, or 0, and how many processes the place has had.
func (g *Group) pidAndStarts(p memberID) (pid, began int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if k := g.children[p]; k != nil {
		return k.pidLocked(), k.starts
	}
	return 0, 0
}

// Stop ends all processes with SIGTERM, and with SIGKILL if they still run after their grace period or when ctx is
// done. It returns when all processes have ended and all exits are reported, or an error that names the places whose
// processes survive SIGKILL.
func (g *Group) Stop(ctx context.Context) error {
	g.mu.Lock()
	if !g.stopping {
		g.stopping = true
		close(g.stop)
	}
	g.mu.Unlock()
	g.signalAll(signalTerm)
	g.signalAll(signalCont) // a frozen process handles no other signal

	ended := make(chan struct{})
	go func() {
		g.running.Wait()
		close(ended)
	}()
	longest := time.Duration(0)
	for _, grace := range g.graces() {
		longest = max(longest, grace)
		timer := time.AfterFunc(grace,
			func() { g.signalWhere(os.Kill, func(k *child) bool { return k.grace() <= grace }) })
		defer timer.Stop()
	}
	select {
	case <-ended:
	case <-ctx.Done():
	case <-time.After(longest):
	}
	g.signalAll(os.Kill)
	select {
	case <-ended:
	case <-time.After(killTimeout):
		return fmt.Errorf("supervisor: processes are still running %v after they were killed: %s", killTimeout,
			g.remaining())
	}
	var err error
	g.finish.Do(func() {
		close(g.thread)
		err = errors.Join(g.lifeline.Close(), g.lifelineWriter.Close())
	})
	return err
}

// DisableRestarts cancels pending restarts: places that wait for one stay empty.
func (g *Group) DisableRestarts() { g.last.Do(func() { close(g.restartsDisabled) }) }

// Await waits until no place of a role has a process or a pending restart, or until ctx is done. It returns the exits
// of the role's processes that failed or were killed, and were not restarted.
func (g *Group) Await(ctx context.Context, role wire.Role) (failed []Exit) {
	g.mu.Lock()
	var all []*child
	for p, k := range g.children {
		if p.role == role {
			all = append(all, k)
		}
	}
	g.mu.Unlock()
	for _, k := range all {
		select {
		case <-k.ended:
			continue
		case <-ctx.Done():
		}
		break
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, e := range g.failed {
		if e.Role == role {
			failed = append(failed, e)
		}
	}
	return failed
}

// Running returns the indices of a role's places that have a process or a pending restart, in order.
func (g *Group) Running(role wire.Role) (of []int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for p, k := range g.children {
		select {
		case <-k.ended:
		default:
			if p.role == role {
				of = append(of, p.index)
			}
		}
	}
	slices.Sort(of)
	return of
}

func (g *Group) signalAll(sig os.Signal) { g.signalWhere(sig, func(*child) bool { return true }) }

func (g *Group) signalWhere(sig os.Signal, which func(*child) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, k := range g.children {
		if which(k) {
			_ = k.signalLocked(sig) // an error means that the process has ended
		}
	}
}

// graces returns the distinct grace periods of the processes.
func (g *Group) graces() (all []time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, k := range g.children {
		if !slices.Contains(all, k.grace()) {
			all = append(all, k.grace())
		}
	}
	return all
}

func (g *Group) remaining() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var names []string
	for p := range g.children {
		names = append(names, p.String())
	}
	return strings.Join(names, ", ")
}

// child manages one place.
type child struct {
	group *Group
	spec  Spec
	id    memberID
	ended chan struct{} // closed when the place will never have a process again

	cmd      *exec.Cmd // nil: no process; guarded by group.mu
	born     time.Time // start of the current process; guarded by group.mu
	starts   int       // number of processes so far; guarded by group.mu
	logStart int64     // offset of the process's output in the log
	used     Usage     // last sample of the current process; guarded by group.mu
}

// grace returns the grace period of the place's process.
func (k *child) grace() time.Duration { return cmp.Or(k.spec.Grace, k.group.opts.Grace) }

// run reports exits and starts the place's next processes, until there are no more restarts.
func (k *child) run() {
	g := k.group
	defer close(k.ended)
	var last Exit
	defer func() {
		g.mu.Lock()
		delete(g.children, k.id)
		if last.Code != 0 {
			g.failed = append(g.failed, last)
		}
		g.mu.Unlock()
	}()
	for {
		last = k.wait()
		again := g.opts.OnExit(last)
		for started := false; !started; {
			if !k.pause(again) {
				return
			}
			g.mu.Lock()
			err := g.startLocked(k)
			g.mu.Unlock()
			if errors.Is(err, perdure.ErrStopped) {
				return
			}
			if started = err == nil; !started {
				again = g.opts.OnExit(Exit{
					Role: k.spec.Role, Index: k.spec.Index, Code: -1,
					Description: "could not be started", LastLine: err.Error(), At: time.Now(),
				})
			}
		}
	}
}

// pause waits before the next process. It reports whether to start it.
func (k *child) pause(again Restart) bool {
	if again < 0 {
		return false
	}
	timer := time.NewTimer(time.Duration(again))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-k.group.restartsDisabled:
		return false
	case <-k.group.stop:
		return false
	}
}

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

// Spec says what runs at a place. The same is started again after an exit.
type Spec struct {
	Role    wire.Role
	Index   int
	Command []string // program and arguments
	Env     []string // "KEY=value", over this process's own
	LogPath string   // stdout and stderr are appended to it; "": they go to Output
	Output  *os.File // nil: they are dropped
	// Files become the process's descriptors 3, 4, … They stay the caller's, who
	// keeps them open: a listener given so outlives the process that serves it.
	Files []*os.File
	// Grace is how long Stop lets the process end by itself; 0: Options.Grace.
	Grace time.Duration
}

// Exit is the end of a process, or a start that failed.
type Exit struct {
	Role     wire.Role
	Index    int
	PID      int    // 0: it could not be started
	Code     int    // -1: a signal ended it, or it could not be started
	Signal   string // "SIGKILL"; "": it ended by itself
	How      string // all of the above in words
	LastLine string // of its log, or where a Go panic began: why it ended
	Tail     string // the last lines of its log
	At       time.Time
	Lived    time.Duration // since it was started; 0: it could not be
}

// Restart is how long to wait before a place's next process is started; below 0
// there is none.
type Restart time.Duration

// The usual answers to an Exit.
const (
	Now   Restart = 0
	Never Restart = -1
)

// Options are how a Group behaves.
type Options struct {
	// OnExit is told of every exit at once, and decides about the next process.
	// Once Stop was called the answer does not matter. It must not call Stop.
	// Nil: never restart.
	OnExit func(Exit) Restart
	// Grace is how long Stop lets processes end by themselves; 0: 5 s.
	Grace time.Duration
}

var (
	// ErrNotRunning is returned where a place has no process now.
	ErrNotRunning = errors.New("supervisor: not running")
	// ErrTaken is returned by Start for a place that is held already.
	ErrTaken = errors.New("supervisor: the place is taken")
)

const (
	defaultGrace = 5 * time.Second
	// killPatience bounds the wait for a process that was killed: one in an
	// uninterruptible system call can take for ever.
	killPatience = 5 * time.Second
)

// Group is the processes of one job on this machine.
type Group struct {
	opts     Options
	lifeline *os.File // read end, inherited by every process; see DieWithParent
	hold     *os.File // write end: closed by the system when this process ends
	thread   chan func()
	stop     chan struct{} // closed by Stop
	noMore   chan struct{} // closed by NoMore
	last     sync.Once
	keepers  sync.WaitGroup
	finish   sync.Once

	mu       sync.Mutex // guards all below, and the keepers' fields that say so
	stopping bool
	places   map[place]*keeper
	spent    map[wire.Role]Usage // by processes that have ended
}

type place struct {
	role  wire.Role
	index int
}

func (p place) String() string { return fmt.Sprintf("%s:%d", p.role, p.index) }

// NewGroup makes a group without processes. Stop releases it.
func NewGroup(opts Options) (*Group, error) {
	if opts.OnExit == nil {
		opts.OnExit = func(Exit) Restart { return Never }
	}
	if opts.Grace == 0 {
		opts.Grace = defaultGrace
	}
	g := &Group{
		opts:   opts,
		thread: make(chan func()),
		stop:   make(chan struct{}),
		noMore: make(chan struct{}),
		places: map[place]*keeper{},
		spent:  map[wire.Role]Usage{},
	}
	var err error
	if g.lifeline, g.hold, err = os.Pipe(); err != nil {
		return nil, fmt.Errorf("supervisor: %w", err)
	}
	go g.runThread()
	return g, nil
}

// runThread starts all processes from one thread that lives as long as the
// group: Linux sends a process's Pdeathsig when the *thread* that made it ends,
// and the runtime ends threads as it likes, but none that a goroutine holds.
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

// Start puts a process at its place. It fails if the place is taken (by a
// process, or by one that is about to be started again), if the program cannot
// be started, or after Stop (perdure.ErrStopped).
func (g *Group) Start(spec Spec) error {
	k := &keeper{group: g, spec: spec, place: place{spec.Role, spec.Index}, ended: make(chan struct{})}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.places[k.place] != nil {
		return fmt.Errorf("%w: %s", ErrTaken, k.place)
	}
	if err := g.begin(k); err != nil {
		return err
	}
	g.places[k.place] = k
	g.keepers.Go(k.run)
	return nil
}

// begin starts a keeper's process; g.mu is held, so that Stop and signals find
// either none or one that runs.
func (g *Group) begin(k *keeper) error {
	if g.stopping {
		return perdure.ErrStopped
	}
	if err := k.start(); err != nil {
		return fmt.Errorf("supervisor: start %s: %w", k.place, err)
	}
	return nil
}

// Kill sends SIGKILL.
func (g *Group) Kill(role wire.Role, index int) error { return g.signal(role, index, os.Kill) }

// Terminate sends SIGTERM: notice of the end.
func (g *Group) Terminate(role wire.Role, index int) error {
	return g.signal(role, index, signalTerm)
}

// Freeze sends SIGSTOP: the process stands still until it is thawed or killed.
func (g *Group) Freeze(role wire.Role, index int) error { return g.signal(role, index, signalStop) }

// Thaw sends SIGCONT. It does nothing to a process that is not frozen.
func (g *Group) Thaw(role wire.Role, index int) error { return g.signal(role, index, signalCont) }

func (g *Group) signal(role wire.Role, index int, sig os.Signal) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := place{role, index}
	if k := g.places[p]; k != nil {
		return k.signal(sig)
	}
	return fmt.Errorf("%w: %s", ErrNotRunning, p)
}

// KillPID sends SIGKILL to the process of that number if it is one of the
// group's, at whatever place: never to its successor there.
func (g *Group) KillPID(pid int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, k := range g.places {
		if k.pid() == pid && pid != 0 {
			return k.signal(os.Kill)
		}
	}
	return fmt.Errorf("%w: process %d", ErrNotRunning, pid)
}

// at returns the place of a process.
func (g *Group) at(pid int) (p place, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for p, k := range g.places {
		if k.pid() == pid && pid != 0 {
			return p, true
		}
	}
	return p, false
}

// PID returns the number of the process at a place, 0 if it has none now.
func (g *Group) PID(role wire.Role, index int) int {
	pid, _ := g.life(place{role, index})
	return pid
}

// life returns the number of the process at a place, 0 if it has none now, and how many
// the place has had.
func (g *Group) life(p place) (pid, began int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if k := g.places[p]; k != nil {
		return k.pid(), k.began
	}
	return 0, 0
}

// Stop ends all processes: SIGTERM, and SIGKILL for those that are left when
// their grace is over or ctx ends. It returns when all have ended and their exits
// have been told, or with the places of those that even SIGKILL does not end.
func (g *Group) Stop(ctx context.Context) error {
	g.mu.Lock()
	if !g.stopping {
		g.stopping = true
		close(g.stop)
	}
	g.mu.Unlock()
	g.signalAll(signalTerm)
	g.signalAll(signalCont) // a frozen process hears nothing else

	ended := make(chan struct{})
	go func() {
		g.keepers.Wait()
		close(ended)
	}()
	longest := time.Duration(0)
	for _, grace := range g.graces() {
		longest = max(longest, grace)
		timer := time.AfterFunc(grace,
			func() { g.signalSome(os.Kill, func(k *keeper) bool { return k.grace() <= grace }) })
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
	case <-time.After(killPatience):
		return fmt.Errorf("supervisor: killed, but not ended after %v: %s", killPatience, g.left())
	}
	var err error
	g.finish.Do(func() {
		close(g.thread)
		err = errors.Join(g.lifeline.Close(), g.hold.Close())
	})
	return err
}

// NoMore has no place get a process again that waits for one.
func (g *Group) NoMore() { g.last.Do(func() { close(g.noMore) }) }

// Await waits until all places of a role are without a process for good, or ctx ends.
func (g *Group) Await(ctx context.Context, role wire.Role) {
	g.mu.Lock()
	var all []*keeper
	for p, k := range g.places {
		if p.role == role {
			all = append(all, k)
		}
	}
	g.mu.Unlock()
	for _, k := range all {
		select {
		case <-k.ended:
		case <-ctx.Done():
			return
		}
	}
}

func (g *Group) signalAll(sig os.Signal) { g.signalSome(sig, func(*keeper) bool { return true }) }

func (g *Group) signalSome(sig os.Signal, which func(*keeper) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, k := range g.places {
		if which(k) {
			_ = k.signal(sig) // it has ended: all the better
		}
	}
}

// graces lists how long processes may take to end by themselves, each time once.
func (g *Group) graces() (all []time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, k := range g.places {
		if !slices.Contains(all, k.grace()) {
			all = append(all, k.grace())
		}
	}
	return all
}

func (g *Group) left() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var names []string
	for p := range g.places {
		names = append(names, p.String())
	}
	return strings.Join(names, ", ")
}

// keeper keeps one place.
type keeper struct {
	group *Group
	spec  Spec
	place place
	ended chan struct{} // closed when the place has no process, and will have none

	cmd      *exec.Cmd // nil: no process now; guarded by group.mu
	born     time.Time // when the present process began; guarded by group.mu
	began    int       // how many processes the place has had; guarded by group.mu
	logStart int64     // where the process's part of the log begins
	used     Usage     // by the present process, when last looked; guarded by group.mu
}

// grace is how long the place's process may take to end by itself.
func (k *keeper) grace() time.Duration { return cmp.Or(k.spec.Grace, k.group.opts.Grace) }

// run tells of exits and starts the place's next processes, until there is to
// be none.
func (k *keeper) run() {
	g := k.group
	defer close(k.ended)
	defer func() {
		g.mu.Lock()
		delete(g.places, k.place)
		g.mu.Unlock()
	}()
	for {
		again := g.opts.OnExit(k.wait())
		for started := false; !started; {
			if !k.pause(again) {
				return
			}
			g.mu.Lock()
			err := g.begin(k)
			g.mu.Unlock()
			if errors.Is(err, perdure.ErrStopped) {
				return
			}
			if started = err == nil; !started {
				again = g.opts.OnExit(Exit{
					Role: k.spec.Role, Index: k.spec.Index, Code: -1,
					How: "could not be started", LastLine: err.Error(), At: time.Now(),
				})
			}
		}
	}
}

// pause waits before the next process. It is false if there is to be none.
func (k *keeper) pause(again Restart) bool {
	if again < 0 {
		return false
	}
	timer := time.NewTimer(time.Duration(again))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-k.group.noMore:
		return false
	case <-k.group.stop:
		return false
	}
}

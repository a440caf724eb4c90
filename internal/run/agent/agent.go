//go:build linux

// Package agent runs a worker on behalf of a program that is not written in Go. The program starts the agent as a
// process of its own, and drives it over a socket that it has inherited: each call of package worker is a packet,
// and its reply another. Rows lie in memory that both share, so that they are copied no more often than in Go.
// What a worker must know (views, safe points, what is sent again, outages) is in package worker alone, for all
// languages.
//
// An agent works for the process that has started it, and ends with it. Its end is the death of a worker: the program
// ends, too, and whoever has started that starts it again.
//
// The protocol is in docs/formats/agent.md, its reasons in docs/design/agent.md.
package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/machine"
	"github.com/perdure/perdure/internal/run/plain"
	"github.com/perdure/perdure/worker"
)

// Options are what an agent needs.
type Options struct {
	Version string // of Perdure
	PID     int    // of the program, as people see it
	// Dial joins a job; nil: as worker.Dial does.
	Dial func(ctx context.Context, cfg worker.Config) (*worker.Client, error)
}

// Agent is one program's membership in a job.
type Agent struct {
	Options
	arena  arena
	lender *lender
	client *worker.Client // set by the hello, which is the first call
	greet  sync.Mutex

	mu     sync.Mutex
	tables []*worker.Table
	names  map[string]int
	state  []byte // that was loaded, until it is fetched

	cancels map[uint32]context.CancelFunc // of calls that go on, by number

	all      sync.WaitGroup // channels
	finished atomic.Bool    // the program has said so: it gives nothing up
}

// Serve works for the program at the other end of a socket, until it has said goodbye, or ctx ends because it is dead.
// It returns nil in both cases.
func Serve(ctx context.Context, socket *Socket, o Options) error {
	if o.Dial == nil {
		o.Dial = worker.Dial
	}
	a := &Agent{Options: o, lender: &lender{}, names: map[string]int{}, cancels: map[uint32]context.CancelFunc{}}
	ctx, end := context.WithCancel(ctx)
	defer end()
	watch, err := socket.again()
	if err != nil {
		return err
	}
	a.all.Go(func() {
		defer watch.Close()
		watch.awaitEnd() // amid a call, too, that may wait for long
		end()
	})
	err = a.channel(ctx, end, socket)
	end()
	watch.HangUp()
	a.all.Wait()
	if a.client == nil {
		return err
	}
	if !a.finished.Load() {
		_ = a.client.Leave() // who takes the slot over need not wait for silence
	}
	return errors.Join(err, a.client.Close())
}

// channel carries out the calls that come on a socket, one after the other, until its end or that of ctx. Calls on
// other channels go on meanwhile, and cancellations come on these.
func (a *Agent) channel(ctx context.Context, end func(), socket *Socket) error {
	stop := context.AfterFunc(ctx, socket.HangUp)
	defer stop()
	defer socket.Close()
	in, out := make([]byte, packetMost), []byte(nil)
	for {
		text, files, err := socket.receive(in)
		if err != nil || len(text) == 0 {
			closeAll(files)
			return err
		}
		r, err := parse(text)
		if err != nil {
			closeAll(files)
			return err
		}
		of, over := a.begin(ctx, r.id)
		answer := a.call(of, ctx, end, &r, files)
		over()
		closeAll(files)
		out = answer.append(out[:0], r.id)
		if err := socket.send(out); err != nil {
			return nil // nobody waits for it
		}
		if r.op == opGoodbye {
			end()
			return nil
		}
	}
}

// begin has a call begin, which may be cancelled until it is over.
func (a *Agent) begin(ctx context.Context, id uint32) (of context.Context, over func()) {
	of, cancel := context.WithCancel(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cancels[id] = cancel
	return of, func() {
		a.mu.Lock()
		delete(a.cancels, id)
		a.mu.Unlock()
		cancel()
	}
}

// cancel ends a call that goes on. It reports false where there is none of that number: it has not begun, or is over.
func (a *Agent) cancel(id uint32) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	end := a.cancels[id]
	if end != nil {
		end()
	}
	return end != nil
}

// call carries a call out, until ctx ends. Life and end are those of the agent.
func (a *Agent) call(ctx, life context.Context, end func(), r *request, files []int) reply {
	switch r.op {
	case opChannel:
		return a.open(life, end, files)
	case opCancel:
		found := int64(0)
		if a.cancel(uint32(r.args[0])) {
			found = 1
		}
		return answer(nil, found)
	case opGoodbye:
		a.finished.Store(r.args[0] != 0)
		return reply{}
	case opHello:
		return a.hello(ctx, r.text)
	case opMap:
		if len(files) != 1 {
			return failed(mistake("memory comes with one file, and not %d", len(files)))
		}
		address, err := a.arena.add(files[0], r.args[0])
		return answer(err, address)
	case opUnmap:
		return answer(a.arena.remove(r.args[0]))
	case opLend:
		if len(files) != 1 {
			return failed(mistake("memory to lend comes with one file, and not %d", len(files)))
		}
		return answer(a.lender.open(files[0]))
	}
	a.greet.Lock()
	c := a.client
	a.greet.Unlock()
	if c == nil {
		return failed(mistake("the first call is the hello"))
	}
	return a.work(ctx, c, r)
}

// open has another channel.
func (a *Agent) open(ctx context.Context, end func(), files []int) reply {
	if len(files) != 1 {
		return failed(mistake("a channel comes with one socket, and not %d", len(files)))
	}
	fd, err := unix.FcntlInt(uintptr(files[0]), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return failed(err)
	}
	socket, err := Open(fd)
	if err != nil {
		return failed(err)
	}
	a.all.Go(func() { _ = a.channel(ctx, end, socket) }) // its end is that of a thread
	return reply{}
}

// greeting is what a program asks for when it joins.
type greeting struct {
	Protocol    int      `json:"protocol"`
	Coordinator string   `json:"coordinator"` // "": as the environment says
	SecretFile  string   `json:"secret_file"`
	Keys        string   `json:"keys"` // the folder of its keys; "": the environment's; without one the job has none
	Slot        *int32   `json:"slot"` // null: any that is free
	Grow        bool     `json:"grow"`
	Observer    bool     `json:"observer"`
	SavesAtCuts bool     `json:"saves_at_cuts"`
	CacheMB     int      `json:"cache_mb"`
	WindowMB    int64    `json:"window_mb"`
	RetainMB    int64    `json:"retain_mb"`
	Patience    *float64 `json:"patience"`   // seconds
	LostAfter   *float64 `json:"lost_after"` // seconds; below 0: never
}

// welcome is what it is told.
type welcome struct {
	Version    string          `json:"version"`
	Slot       perdure.Slot    `json:"slot"`
	Job        perdure.JobSpec `json:"job"`
	StateBytes int             `json:"state_bytes"`         // how large a state may be at most
	StateWhy   string          `json:"state_why,omitempty"` // why it is 1 MiB only
}

// hello joins the job.
func (a *Agent) hello(ctx context.Context, text []byte) reply {
	a.greet.Lock()
	defer a.greet.Unlock()
	if a.client != nil {
		return failed(mistake("this agent has joined already"))
	}
	var g greeting
	if err := json.Unmarshal(text, &g); err != nil {
		return failed(mistake("the hello cannot be read: %v", err))
	}
	if g.Protocol != Protocol {
		return failed(fmt.Errorf("%w: the program speaks protocol %d, and this agent (perdure %s) %d; install both of "+
			"one version", perdure.ErrRefused, g.Protocol, a.Version, Protocol))
	}
	cfg, err := a.config(&g)
	if err != nil {
		return failed(err)
	}
	if a.client, err = a.Dial(ctx, cfg); err != nil {
		a.client = nil
		return failed(err)
	}
	w := welcome{Version: a.Version, Slot: a.client.Slot(), Job: a.client.Job(), StateBytes: worker.MaxState}
	if why := a.client.Look().StateErr; why != nil && w.Slot >= 0 {
		w.StateBytes, w.StateWhy = wire.PartBytes, plain.Text(why)
	}
	return told(&w)
}

// retain is how many bytes of updates are kept at most, where the program does not say: a sixteenth of the memory.
// Updates of whole models are large, and half of it is a checkpoint: 512 MiB would be one each six updates of 40 MB.
func retain(memory int64) int64 { return max(512<<20, memory/16) }

func (a *Agent) config(g *greeting) (cfg worker.Config, err error) {
	cfg = worker.Config{
		Coordinator: g.Coordinator, SecretFile: g.SecretFile, Keys: g.Keys, Slot: perdure.NoSlot, Grow: g.Grow,
		SavesAtCuts: g.SavesAtCuts, Observer: g.Observer, PID: a.PID,
		WindowBytes: g.WindowMB << 20, RetainBytes: cmp.Or(g.RetainMB<<20, retain(machine.Memory())),
		CacheBytes: g.CacheMB << 20,
		Memory:     a.lender,
	}
	if g.Coordinator == "" {
		if cfg, err = cfg.FromEnv(); err != nil {
			return cfg, err
		}
		cfg.SecretFile = cmp.Or(g.SecretFile, cfg.SecretFile)
	}
	cfg.Keys = cmp.Or(g.Keys, os.Getenv(worker.EnvKeys))
	if g.Slot != nil {
		cfg.Slot = perdure.Slot(*g.Slot).Exactly()
	}
	seconds := func(v *float64) time.Duration { return time.Duration(*v * float64(time.Second)) }
	if g.Patience != nil {
		cfg.Patience = seconds(g.Patience)
	}
	if g.LostAfter != nil {
		if cfg.LostAfter = seconds(g.LostAfter); cfg.LostAfter < 0 {
			cfg.LostAfter = worker.NeverLost
		}
	}
	return cfg, nil
}

// answer is a reply of numbers, or an error.
func answer(err error, args ...int64) (r reply) {
	if err != nil {
		return failed(err)
	}
	copy(r.args[:], args)
	return r
}

// told is a reply of JSON.
func told(v any) reply {
	text, err := json.Marshal(v)
	if err != nil {
		return failed(err)
	}
	return reply{text: text}
}

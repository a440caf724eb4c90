//go:build linux

// Package agent runs a worker on behalf of a program that is not written in Go. The program starts the agent as a child
// process and drives it over an inherited socket: each call of package worker is a packet, and its reply is another.
// Rows are in memory that both processes share, so that they are copied no more often than in Go. The worker protocol
// (views, safe points, resending, outages) is implemented only in package worker, for all languages.
//
// An agent serves the process that started it and ends with it. The end of an agent counts as the death of a worker:
// the program then ends as well, and its supervisor restarts it.
//
// The protocol is specified in docs/formats/agent.md, and its design is explained in docs/design/agent.md.
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
	"github.com/perdure/perdure/internal/proc/hooks"
	"github.com/perdure/perdure/internal/proc/machine"
	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/worker"
)

// Options are the options of an agent.
type Options struct {
	Version string // of Perdure
	PID     int    // of the program, as shown to users
	// Dial joins a job; nil: worker.Dial.
	Dial func(ctx context.Context, cfg worker.Config) (*worker.Client, error)
}

// Agent is one program's membership in a job.
type Agent struct {
	Options
	arena   arena
	lender  *lender
	client  *worker.Client // set by the hello, which is the first call
	helloMu sync.Mutex

	mu     sync.Mutex
	tables []*worker.Table
	names  map[string]int
	state  []byte // loaded, and waiting to be fetched
	stream *stateStream
	draft  *stateStream

	cancels map[uint32]context.CancelFunc // by number of the pending call

	all      sync.WaitGroup // channels
	finished atomic.Bool    // the program has finished, and does not give its slot up
	goodbye  atomic.Bool    // the program has said goodbye
}

// Serve serves the program at the other end of a socket until it says goodbye, or until ctx ends because it has died.
// It returns nil in both cases.
func Serve(ctx context.Context, socket *Socket, o Options) error {
	if o.Dial == nil {
		o.Dial = worker.Dial
	}
	a := &Agent{Options: o, lender: &lender{}, names: map[string]int{}, cancels: map[uint32]context.CancelFunc{}}
	ctx, end := context.WithCancel(ctx)
	defer end()
	watch, err := socket.dup()
	if err != nil {
		return err
	}
	a.all.Go(func() {
		defer watch.Close()
		watch.awaitEnd() // also during a call, which may take long
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
		_ = a.client.Leave() // the next process of the slot need not wait for the failure detector
	}
	return errors.Join(err, a.client.Close())
}

// channel executes the calls that arrive on a socket one after the other, until the socket or ctx ends. Other channels
// execute calls at the same time, and can cancel calls of this one.
func (a *Agent) channel(ctx context.Context, end func(), socket *Socket) error {
	stop := context.AfterFunc(ctx, socket.HangUp)
	defer stop()
	defer socket.Close()
	in, out := make([]byte, maxPacket), []byte(nil)
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
		of, over := a.startCall(ctx, r.id)
		answer := a.call(of, ctx, end, &r, files)
		over()
		closeAll(files)
		out = answer.append(out[:0], r.id)
		if err := socket.send(out); err != nil {
			return nil // the program does not wait for the reply
		}
		if r.op == opGoodbye {
			end()
			return nil
		}
	}
}

// startCall registers a call, which can be cancelled until over is called.
func (a *Agent) startCall(ctx context.Context, id uint32) (of context.Context, over func()) {
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

// cancel cancels a pending call. It returns false if no call with that number is pending.
func (a *Agent) cancel(id uint32) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	end := a.cancels[id]
	if end != nil {
		end()
	}
	return end != nil
}

// call executes a call until ctx ends. life and end are those of the agent.
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
		a.goodbye.Store(true)
		return reply{}
	case opHello:
		return a.hello(ctx, r.text)
	case opMap:
		if len(files) != 1 {
			return failed(usageErrorf("mapping memory requires one file descriptor, got %d", len(files)))
		}
		address, err := a.arena.add(files[0], r.args[0])
		return answer(err, address)
	case opUnmap:
		return answer(a.arena.remove(r.args[0]))
	case opLend:
		if len(files) != 1 {
			return failed(usageErrorf("lending memory requires one file descriptor, got %d", len(files)))
		}
		return answer(a.lender.open(files[0]))
	}
	a.helloMu.Lock()
	c := a.client
	a.helloMu.Unlock()
	if c == nil {
		return failed(usageErrorf("the first call must be the hello"))
	}
	return a.execute(ctx, life, c, r)
}

// open adds a channel.
func (a *Agent) open(ctx context.Context, end func(), files []int) reply {
	if len(files) != 1 {
		return failed(usageErrorf("a channel requires one socket, got %d", len(files)))
	}
	fd, err := unix.FcntlInt(uintptr(files[0]), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return failed(err)
	}
	socket, err := Open(fd)
	if err != nil {
		return failed(err)
	}
	a.all.Go(func() { _ = a.channel(ctx, end, socket) }) // it ends with the program's thread
	return reply{}
}

// helloRequest is the program's request to join a job.
type helloRequest struct {
	Protocol    int    `json:"protocol"`
	Coordinator string `json:"coordinator"` // "": from the environment
	SecretFile  string `json:"secret_file"`
	// directory of its keys; "": from the environment; without it the job has no keys
	Keys        string   `json:"keys"`
	Slot        *int32   `json:"slot"` // null: any free slot
	Grow        bool     `json:"grow"`
	Observer    bool     `json:"observer"`
	SavesAtCuts bool     `json:"saves_at_cuts"`
	CacheMB     int      `json:"cache_mb"`
	WindowMB    int64    `json:"window_mb"`
	RetainMB    int64    `json:"retain_mb"`
	Patience    *float64 `json:"patience"`   // seconds
	LostAfter   *float64 `json:"lost_after"` // seconds; below 0: never
}

// helloReply is the reply to a greeting.
type helloReply struct {
	Version    string          `json:"version"`
	Slot       perdure.Slot    `json:"slot"`
	Job        perdure.JobSpec `json:"job"`
	StateBytes int             `json:"state_bytes"`         // maximum size of a slot state
	StateWhy   string          `json:"state_why,omitempty"` // why that is only 1 MiB
}

// hello joins the job.
func (a *Agent) hello(ctx context.Context, text []byte) reply {
	a.helloMu.Lock()
	defer a.helloMu.Unlock()
	if a.client != nil {
		return failed(usageErrorf("this agent has already joined"))
	}
	var g helloRequest
	if err := json.Unmarshal(text, &g); err != nil {
		return failed(usageErrorf("cannot read the hello: %v", err))
	}
	if g.Protocol != Protocol {
		return failed(fmt.Errorf("%w: the program uses protocol %d, but this agent (perdure %s) uses %d; install the "+
			"same version of both", perdure.ErrRefused, g.Protocol, a.Version, Protocol))
	}
	cfg, err := a.config(&g)
	if err != nil {
		return failed(err)
	}
	with := hooks.FromContext(ctx)
	with.Version, with.Died = a.Version, func() bool { return !a.goodbye.Load() }
	if a.client, err = a.Dial(hooks.NewContext(ctx, with), cfg); err != nil {
		a.client = nil
		return failed(err)
	}
	w := helloReply{Version: a.Version, Slot: a.client.Slot(), Job: a.client.Job(), StateBytes: worker.MaxState}
	if why := a.client.Snapshot().StateErr; why != nil && w.Slot >= 0 {
		w.StateBytes, w.StateWhy = wire.PartBytes, humanize.ErrorText(why)
	}
	return jsonReply(&w)
}

// retain returns the default limit for updates that are kept, in bytes: a sixteenth of the memory. Updates of whole
// models are large, and a checkpoint is made at half the limit: 512 MiB would mean one for every six updates of 40 MB.
func retain(memory int64) int64 { return max(512<<20, memory/16) }

func (a *Agent) config(g *helloRequest) (cfg worker.Config, err error) {
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
		cfg.JoinTimeout = seconds(g.Patience)
	}
	if g.LostAfter != nil {
		if cfg.LostAfter = seconds(g.LostAfter); cfg.LostAfter < 0 {
			cfg.LostAfter = worker.NeverLost
		}
	}
	return cfg, nil
}

// answer returns a reply of numbers, or an error.
func answer(err error, args ...int64) (r reply) {
	if err != nil {
		return failed(err)
	}
	copy(r.args[:], args)
	return r
}

// jsonReply returns a reply with JSON text.
func jsonReply(v any) reply {
	text, err := json.Marshal(v)
	if err != nil {
		return failed(err)
	}
	return reply{text: text}
}

package reach

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/control"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/run/plain"
	"github.com/perdure/perdure/internal/run/settings"
)

// Job is where a server or a worker finds its job. Its parent says all of it but Join; a
// person says Join, and the rest where the job's own word is not enough, by flags. Find completes it.
type Job struct {
	// Join are addresses of a running job's coordinators, with commas between them.
	Join string `help:"@join_join" placeholder:"HOST:PORT"`
	// KeysDir has the process's keys, or those of all roles; "": the job has none.
	KeysDir string `name:"keys" env:"PERDURE_KEYS" help:"@keys" placeholder:"DIR" type:"path"`
	// SecretFile is, where it is "", that of the folder of keys, or of the run.
	SecretFile string `name:"secret-file" env:"PERDURE_SECRET_FILE" help:"@secret" placeholder:"FILE" type:"path"`
	// Run is the run's folder, or a copy; "": where the job says that it is.
	Run         string `help:"@join_run" placeholder:"DIR" type:"path"`
	Coordinator string `hidden:"" help:"@join_coordinator"`

	Log  *slog.Logger `kong:"-"`
	Keys wire.Keys    `kong:"-"` // that Find has found
	Ring *keys.Ring   `kong:"-"` // likewise; nil: the job has no keys
	Told bool         `kong:"-"` // the job's folder is not here, and its coordinator has told the settings
}

// FirstFD is the first descriptor that a process inherits from its parent: of all roles but the
// coordinator's, which inherits sockets before, it has the first secret.
const FirstFD = 3

// directPatience is how long who listens at an address may take for a coordinator's answer before it is asked for
// that of a control API, too.
const directPatience = 500 * time.Millisecond

// joinPatience is how long a job may take to answer somebody who would join it.
const joinPatience = 5 * time.Second

// Find completes the flags, and returns the run's settings; of a job whose folder
// is not here, what the job itself tells.
func (f *Job) Find(ctx context.Context, role wire.Role) (s settings.Run, err error) {
	switch {
	case f.Join != "" && f.Coordinator != "":
		return s, fmt.Errorf("%w: --join finds the coordinator itself; leave --coordinator out", perdure.ErrUsage)
	case f.Join != "":
		if f.Ring, err = Ring(ctx, f.KeysDir, role, f.Log); err != nil {
			return s, err
		}
		if f.Keys, err = ReadSecrets(secretOf(f.SecretFile, f.Ring), f.Run, role); err != nil {
			return s, err
		}
		return f.ask(ctx)
	case f.Coordinator == "" || f.Run == "":
		return s, fmt.Errorf("%w: which job? write --join HOST:PORT with the address that perdure status shows",
			perdure.ErrUsage)
	}
	if f.Keys, err = InheritedSecrets(role, FirstFD); err != nil {
		return s, err
	}
	if f.Ring, err = Ring(ctx, f.KeysDir, role, f.Log); err != nil {
		return s, err
	}
	return f.runSettings()
}

func (f *Job) runSettings() (settings.Run, error) {
	return settings.Read(filepath.Join(f.Run, "run.json"))
}

// ask asks the job at f.Join for what it is.
func (f *Job) ask(ctx context.Context) (s settings.Run, err error) {
	if err := transport.CheckAddress("--join", f.Join); err != nil {
		return s, err
	}
	ctx, cancel := context.WithTimeout(ctx, joinPatience)
	defer cancel()
	welcome, err := f.find(ctx)
	if errors.Is(err, perdure.ErrRefused) {
		return s, fmt.Errorf("the job at %s refuses this process: %w", f.Join, plain.Cause(err))
	}
	if err != nil {
		return s, fmt.Errorf("no job answers at %s: %w; perdure status shows a running job's address", f.Join,
			plain.Cause(err))
	}
	if f.Run != "" {
		if s, err = f.runSettings(); err != nil {
			return s, err
		}
		if s.Job.ID != welcome.Job.ID {
			return s, fmt.Errorf("%w: %s is the folder of job %s; the job at %s is %s", perdure.ErrUsage, f.Run,
				s.Job.ID, f.Join, welcome.Job.ID)
		}
		return s, nil
	}
	if f.Run = welcome.Folder; f.Run != "" {
		if s, err := f.runSettings(); err == nil && s.Job.ID == welcome.Job.ID {
			return s, nil
		}
		f.Run = "" // it is on another machine
	}
	if f.Told = len(welcome.Run) > 0; f.Told {
		return settings.Told(welcome.Run)
	}
	return settings.Run{
		Job: welcome.Job, CacheMB: settings.DefaultCacheMB, RetainMB: settings.DefaultRetainMB,
	}, nil
}

// find asks who listens at f.Join, which may be the address of the control API, and notes where the
// coordinator is. Who listens there may be silent if asked as the other, so that is not waited for.
func (f *Job) find(ctx context.Context) (wire.Welcome, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	behind := make(chan string, 1)
	direct, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		select {
		case <-time.After(directPatience):
		case <-direct.Done():
		}
		at := f.behindControl(ctx)
		if behind <- at; at != "" {
			stop()
		}
	}()
	f.Coordinator = f.Join
	welcome, err := Visit(direct, f.Coordinator, f.Keys.Job, f.Ring)
	if err != nil {
		stop() // it is asked as the other at once
	}
	if err == nil || errors.Is(err, perdure.ErrRefused) || errors.Is(err, perdure.ErrStopped) {
		return welcome, err
	}
	if at := <-behind; at != "" {
		f.Coordinator = at
		return Visit(ctx, f.Coordinator, f.Keys.Job, f.Ring)
	}
	return welcome, err
}

// behindControl is the coordinator's address where f.Join is its control API's; "": it is not.
func (f *Job) behindControl(ctx context.Context) string {
	for _, addr := range transport.Addresses(f.Join) {
		if status, err := control.NewClient(addr, f.Keys.Job, f.Ring).Status(ctx); err == nil {
			return status.Coordinator
		}
	}
	return ""
}

// Visit asks a coordinator, at one of some addresses, which job it has; ring is nil for a job without keys.
func Visit(ctx context.Context, addrs string, secret perdure.Secret, ring *keys.Ring) (w wire.Welcome, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	link := transport.Link{
		Network: transport.TCP{Keys: ring}, Addr: addrs, Wants: keys.Coordinator,
		Hello: func() wire.Hello { return Asking(secret) },
		Up: func(_ transport.Conn, f *wire.Frame) {
			err = wire.ParseControl(f, &w)
			cancel()
		},
		Frame:   func(transport.Conn, *wire.Frame) error { return nil },
		Down:    func(transport.Conn, error) {},
		Patient: func(attempts int, _ error) bool { return attempts < len(transport.Addresses(addrs)) },
	}
	if ended := link.Run(ctx); err == nil && w.Job.ID == "" {
		err = ended
	}
	return w, err
}

// Asking is the hello of who only looks, and wants to know what the job is.
func Asking(secret perdure.Secret) wire.Hello {
	return wire.Hello{
		Role: wire.RoleObserver, Index: int(perdure.NoSlot), Process: ProcessName(), Asks: true, Secret: secret,
	}
}

// NeedsFolder says why a process cannot do without the run's folder, if it cannot.
func (f *Job) NeedsFolder(why string) error {
	if f.Run != "" {
		return nil
	}
	return fmt.Errorf("%w: the job's folder is not on this machine, and %s; name it, or a copy of it, with --run, or "+
		"have the job keep them in a --store that all machines reach", perdure.ErrUsage, why)
}

package reach

import (
	"context"
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
	"github.com/perdure/perdure/internal/run/secrets"
	"github.com/perdure/perdure/internal/run/settings"
)

// Job is where a server or a worker finds its job. Its parent says all of it but Join; a
// person says Join, and the rest where the job's own word is not enough. find completes it.
type Job struct {
	Join        string // an address of a running job
	SecretFile  string // "": that of the folder of keys, or of the run
	KeysDir     string // of the process's keys, or of all roles'; "": the job has none
	Run         string // the run's folder, or a copy; "": where the job says that it is
	Coordinator string

	Keys wire.Keys  // that find has found
	Ring *keys.Ring // likewise; nil: the job has no keys
	Log  *slog.Logger
}

// FirstFD is the first descriptor that a process inherits from its parent: of all roles but the
// coordinator's, which inherits sockets before, it has the first secret.
const FirstFD = 3

// joinPatience is how long a job may take to answer somebody who would join it.
const joinPatience = 5 * time.Second

// Find completes the flags, and returns the run's settings; of a job whose folder
// is not here, only what the job itself tells.
func (f *Job) Find(ctx context.Context, role wire.Role) (s settings.Run, err error) {
	switch {
	case f.Join != "" && f.Coordinator != "":
		return s, fmt.Errorf("%w: --join finds the coordinator itself; leave --coordinator out", perdure.ErrUsage)
	case f.Join != "":
		if f.Ring, err = Ring(ctx, f.KeysDir, role, f.Log); err != nil {
			return s, err
		}
		if f.Keys, err = secrets.Read(secretOf(f.SecretFile, f.Ring), f.Run, role); err != nil {
			return s, err
		}
		return f.ask(ctx)
	case f.Coordinator == "" || f.Run == "":
		return s, fmt.Errorf("%w: which job? write --join HOST:PORT with the address that perdure status shows",
			perdure.ErrUsage)
	}
	if f.Keys, err = secrets.Inherited(role, FirstFD); err != nil {
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
	ctx, cancel := context.WithTimeout(ctx, joinPatience)
	defer cancel()
	folder := ""
	f.Coordinator = f.Join
	if status, err := control.NewClient(f.Join, f.Keys.Job, f.Ring).Status(ctx); err == nil &&
		status.Coordinator != "" {
		f.Coordinator, folder = status.Coordinator, status.RunDir
	}
	welcome, err := f.visit(ctx)
	if err != nil {
		return s, fmt.Errorf("no job answers at %s: %w; perdure status shows a running job's address", f.Join,
			plain.Cause(err))
	}
	told := settings.Run{Job: welcome.Job, CacheMB: settings.DefaultCacheMB, RetainMB: settings.DefaultRetainMB}
	if f.Run == "" {
		f.Run = folder
		if s, err := f.runSettings(); err == nil && s.Job.ID == welcome.Job.ID {
			return s, nil
		}
		f.Run = "" // it is on another machine
		return told, nil
	}
	if s, err = f.runSettings(); err != nil {
		return s, err
	}
	if s.Job.ID != welcome.Job.ID {
		return s, fmt.Errorf("%w: %s is the folder of job %s; the job at %s is %s", perdure.ErrUsage, f.Run, s.Job.ID,
			f.Join, welcome.Job.ID)
	}
	return s, nil
}

// visit asks a coordinator which job it has.
func (f *Job) visit(ctx context.Context) (w wire.Welcome, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	link := transport.Link{
		Network: transport.TCP{Keys: f.Ring}, Addr: f.Coordinator, Wants: keys.Coordinator,
		Hello: func() wire.Hello {
			return wire.Hello{
				Role: wire.RoleObserver, Index: int(perdure.NoSlot), Process: ProcessName(),
				Secret: f.Keys.Job,
			}
		},
		Up: func(_ transport.Conn, f *wire.Frame) {
			err = wire.ParseControl(f, &w)
			cancel()
		},
		Frame:   func(transport.Conn, *wire.Frame) error { return nil },
		Down:    func(transport.Conn, error) {},
		Patient: func(int, error) bool { return false },
	}
	if ended := link.Run(ctx); err == nil && w.Job.ID == "" {
		err = ended
	}
	return w, err
}

// NeedsFolder says why a process cannot do without the run's folder, if it cannot.
func (f *Job) NeedsFolder(why string) error {
	if f.Run != "" {
		return nil
	}
	return fmt.Errorf("%w: the job's folder is not on this machine, and %s; name it, or a copy of it, with --run",
		perdure.ErrUsage, why)
}

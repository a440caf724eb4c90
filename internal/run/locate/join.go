package locate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/settings"
)

// Job holds the flags that a server or a worker needs to find its job. Its parent sets all of them except Join. A
// person sets Join, and the others only if the job's own information is not sufficient. Find completes them.
type Job struct {
	// Join holds addresses of a running job's coordinators, separated by commas.
	Join string `help:"@join_join" placeholder:"HOST:PORT"`
	// KeysDir has the process's keys or those of all roles; "": the job has no keys.
	KeysDir string `name:"keys" env:"PERDURE_KEYS" help:"@keys" placeholder:"DIR" type:"path"`
	// SecretFile defaults to the file in the directory of the keys or of the run.
	SecretFile string `name:"secret-file" env:"PERDURE_SECRET_FILE" help:"@secret" placeholder:"FILE" type:"path"`
	// Run is the run's directory or a copy; "": the directory that the job reports.
	Run         string `help:"@join_run" placeholder:"DIR" type:"path"`
	Coordinator string `hidden:"" help:"@join_coordinator"`

	Log  *slog.Logger `kong:"-"`
	Keys wire.Keys    `kong:"-"` // set by Find
	Ring *keys.Ring   `kong:"-"` // set by Find; nil: the job has no keys
	// the run's directory is not on this machine, and the coordinator has sent the settings
	Remote bool `kong:"-"`
}

// FirstFD is the first descriptor that a process inherits from its parent. It is the first secret for all roles except
// the coordinator, which inherits sockets before it.
const FirstFD = 3

// joinTimeout is how long a job may take to answer a process that wants to join.
const joinTimeout = 5 * time.Second

// Find completes the flags and returns the run's settings. If the run's directory is not on this machine, it returns
// the settings that the job sends.
func (f *Job) Find(ctx context.Context, role wire.Role) (s settings.Run, err error) {
	switch {
	case f.Join != "" && f.Coordinator != "":
		return s, perdure.Usagef("--join finds the coordinator itself; remove --coordinator")
	case f.Join != "":
		if f.Ring, err = OpenWatchedRing(ctx, f.KeysDir, role, f.Log); err != nil {
			return s, err
		}
		if f.Keys, err = ReadSecrets(secretOf(f.SecretFile, f.Ring), f.Run, role); err != nil {
			return s, err
		}
		return f.query(ctx)
	case f.Coordinator == "" || f.Run == "":
		return s, perdure.Usagef("no job given; add --join HOST:PORT with the address that perdure status shows")
	}
	if f.Keys, err = InheritedSecrets(role, FirstFD); err != nil {
		return s, err
	}
	if f.Ring, err = OpenWatchedRing(ctx, f.KeysDir, role, f.Log); err != nil {
		return s, err
	}
	return f.runSettings()
}

func (f *Job) runSettings() (settings.Run, error) {
	return settings.Read(filepath.Join(f.Run, "run.json"))
}

// query queries the job at f.Join.
func (f *Job) query(ctx context.Context) (s settings.Run, err error) {
	if err := transport.CheckAddress("--join", f.Join); err != nil {
		return s, err
	}
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	f.Coordinator = f.Join
	welcome, err := QueryJob(ctx, f.Coordinator, f.Keys.Job, f.Ring)
	if errors.Is(err, perdure.ErrRefused) {
		return s, fmt.Errorf("the job at %s rejected this process: %w", f.Join, humanize.Cause(err))
	}
	if err != nil {
		return s, fmt.Errorf("no job answers at %s: %w; perdure status shows a running job's address", f.Join,
			humanize.Cause(err))
	}
	if f.Run != "" {
		if s, err = f.runSettings(); err != nil {
			return s, err
		}
		if s.Job.ID != welcome.Job.ID {
			return s, perdure.Usagef("%s is the directory of job %s, but the job at %s is %s", f.Run, s.Job.ID, f.Join,
				welcome.Job.ID)
		}
		return s, nil
	}
	if f.Run = welcome.Dir; f.Run != "" {
		if s, err := f.runSettings(); err == nil && s.Job.ID == welcome.Job.ID {
			return s, nil
		}
		f.Run = "" // it is on another machine
	}
	if f.Remote = len(welcome.RunSettings) > 0; f.Remote {
		return settings.Decode(welcome.RunSettings)
	}
	return settings.Run{
		Job: welcome.Job, CacheMB: settings.DefaultCacheMB, RetainMB: settings.DefaultRetainMB,
	}, nil
}

// QueryJob asks a coordinator at one of some addresses which job it has. ring is nil for a job without keys.
func QueryJob(ctx context.Context, addrs string, secret perdure.Secret, ring *keys.Ring) (w wire.Welcome, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	link := transport.Link{
		Network: transport.TCP{Keys: ring}, Addr: addrs, PeerRole: keys.Coordinator,
		Hello: func() wire.Hello { return QueryHello(secret) },
		Up: func(_ transport.Conn, f *wire.Frame) {
			err = wire.ParseControl(f, &w)
			cancel()
		},
		Frame:       func(transport.Conn, *wire.Frame) error { return nil },
		Down:        func(transport.Conn, error) {},
		ShouldRetry: func(attempts int, _ error) bool { return attempts < len(transport.ParseAddresses(addrs)) },
	}
	if ended := link.Run(ctx); err == nil && w.Job.ID == "" {
		err = ended
	}
	return w, err
}

// QueryHello returns the hello of an observer that requests a description of the job.
func QueryHello(secret perdure.Secret) wire.Hello {
	return wire.Hello{
		Role:          wire.RoleObserver,
		Index:         int(perdure.NoSlot),
		Process:       ProcessName(),
		WantsSettings: true,
		Secret:        secret,
	}
}

// RequireDir returns an error with the reason if the run's directory is missing.
func (f *Job) RequireDir(why string) error {
	if f.Run != "" {
		return nil
	}
	return perdure.Usagef("the job's directory is not on this machine, and %s; specify it or a copy with --run, or "+
		"start the job with a --store that all machines can reach", why)
}

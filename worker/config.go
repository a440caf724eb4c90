package worker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/outbox"
	"github.com/perdure/perdure/internal/core/weaken"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/hooks"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/transport"
)

// Config is what a Client needs. The zero value of a field is what its comment says; only
// Coordinator must be given.
type Config struct {
	Coordinator string       // its address, or several with commas between them, tried in turn; @FILE has them
	Slot        perdure.Slot // the slot to take; 0: any that is free; perdure.SlotZero: slot 0
	Grow        bool         // where none is free, the job is to have one slot more
	SavesAtCuts bool         // the program calls SaveState only when SaveDue says so: see there
	Observer    bool         // takes no slot: reads only, at the clock set by At
	Process     string       // unique to this process; "": a name is drawn
	// SecretFile has the run's secret, which the coordinator and the servers ask for: perdure
	// up prints its name, as PERDURE_SECRET_FILE. Secret is the secret itself, where the
	// program has it already.
	SecretFile string
	Secret     perdure.Secret
	// Keys is the folder of a worker's keys, of a job that has keys: perdure keys new makes it. It has the secret, too.
	// The files are read again when they change.
	Keys string
	PID  int          // of the process, as people see it; 0: this one's
	Log  *slog.Logger // nil: nothing is logged

	// Bounds, in bytes. Clock waits while more is kept than the first three allow: of updates
	// that were not acknowledged; of those that are kept until they are in a checkpoint, where
	// the strategy wants that; and of those for shards that are out.
	WindowBytes int64 // 0: 64 MiB; at most 4 GiB
	RetainBytes int64 // 0: 512 MiB
	OutageBytes int64 // 0: as the job says
	CacheBytes  int   // of cached rows; 0: 256 MiB

	Memory Memory // what Table.Deltas lends; nil: Go's own

	Connections int           // to each server, over which its shards are spread; 0: 1
	Heartbeat   time.Duration // between two statuses; 0: 100 ms
	// Patience is how long Dial looks for a coordinator that lets it in, or says that it has
	// heard it; 0: 10 s.
	Patience time.Duration
	// OutAfter is how long a shard may owe an answer until it is out, where the job goes on
	// without it; 0: 200 ms.
	OutAfter time.Duration
	// LostAfter is how long no process of the job may be heard, once it has been joined,
	// before calls fail with perdure.ErrLost; 0: 60 s, NeverLost: for ever. Time in which
	// this process itself does not run does not count.
	LostAfter time.Duration
	// StateBytes is how large a state is at most that travels with an update, and does not lie in
	// the job's store; 0: 1 MiB, and no more than that.
	StateBytes int

	hooks hooks.Worker // by Dial's context
	weak  weaken.Set   // likewise: negative controls in simulations
}

const (
	defaultRetainBytes = 512 << 20
	defaultWindowBytes = 64 << 20
	defaultCacheBytes  = 256 << 20
	defaultHeartbeat   = 100 * time.Millisecond
	defaultPatience    = 10 * time.Second
	defaultLostAfter   = time.Minute
	maxReports         = 1024             // that wait for the coordinator
	maxSpare           = 64 << 20         // bytes of memory of safe updates that are kept to be used again
	trimEvery          = 10 * time.Second // after which memory that was not used again is let go
)

// NeverLost is the Config.LostAfter of a program that waits for the job for ever.
const NeverLost time.Duration = -1

// limits are the bounds of what is kept.
func (cfg *Config) limits() outbox.Limits {
	return outbox.Limits{
		Window: cfg.WindowBytes, Retain: cfg.RetainBytes, Outage: cfg.OutageBytes, Spare: maxSpare,
		Memory: cfg.Memory, Weak: cfg.weak,
	}
}

// checkAddress refuses what is no address of a coordinator. A file with it may be written while it is looked for.
func (cfg *Config) checkAddress() error {
	if cfg.Coordinator == "" {
		return fmt.Errorf("%w: worker: Dial needs the Coordinator's address", perdure.ErrUsage)
	}
	if cfg.hooks.Network != nil || strings.HasPrefix(cfg.Coordinator, "@") {
		return nil
	}
	return transport.CheckAddress("coordinator", cfg.Coordinator)
}

// openKeys makes a network of the keys of a job that has some; nil: it has none.
func (cfg *Config) openKeys() (*keys.Ring, error) {
	if cfg.Keys == "" {
		return nil, nil
	}
	if cfg.hooks.Network != nil {
		return nil, fmt.Errorf("%w: worker: Keys are for the default network; leave out Keys", perdure.ErrUsage)
	}
	ring, err := keys.Open(keys.Folder(cfg.Keys, keys.Worker))
	if err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	cfg.hooks.Network = transport.TCP{Keys: ring}
	if cfg.SecretFile == "" && cfg.Secret == "" {
		cfg.SecretFile = ring.SecretFile()
	}
	return ring, nil
}

// complete puts in the defaults.
func (cfg *Config) complete() {
	if cfg.hooks.Network == nil {
		cfg.hooks.Network = transport.TCP{}
	}
	if cfg.PID == 0 {
		cfg.PID = os.Getpid()
	}
	if cfg.Process == "" {
		cfg.Process = wire.OfHost(os.Getenv(wire.HostVariable), cfg.PID) + rand.Text()
	}
	if cfg.WindowBytes == 0 {
		cfg.WindowBytes = defaultWindowBytes
	}
	if cfg.RetainBytes == 0 {
		cfg.RetainBytes = defaultRetainBytes
	}
	cfg.WindowBytes = min(cfg.WindowBytes, wire.MaxUpdate/2)
	if cfg.Heartbeat == 0 {
		cfg.Heartbeat = defaultHeartbeat
	}
	if cfg.Patience == 0 {
		cfg.Patience = defaultPatience
	}
	if cfg.LostAfter == 0 {
		cfg.LostAfter = defaultLostAfter
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.CacheBytes == 0 {
		cfg.CacheBytes = defaultCacheBytes
	}
	if cfg.OutAfter == 0 {
		cfg.OutAfter = defaultOutAfter
	}
	if cfg.Connections == 0 {
		cfg.Connections = 1
	}
	if cfg.StateBytes <= 0 || cfg.StateBytes > wire.PartBytes {
		cfg.StateBytes = wire.PartBytes
	}
}

// openStore opens the job's store.
func (cfg *Config) openStore(ctx context.Context, where string) (store.Store, error) {
	if cfg.hooks.OpenStore != nil {
		return cfg.hooks.OpenStore(ctx, where)
	}
	return store.OpenLocation(ctx, where)
}

// canReach refuses a job whose store this program has no driver for. The program would otherwise fail at the first
// state of more than 1 MiB, which may be hours later.
func (cfg *Config) canReach(where string) error {
	if cfg.hooks.OpenStore != nil || where == "" {
		return nil
	}
	if _, err := store.ParseLocation(where); errors.Is(err, store.ErrNoDriver) {
		return fmt.Errorf("%w: the job's store is %s: %w", perdure.ErrUsage, where, err)
	}
	return nil
}

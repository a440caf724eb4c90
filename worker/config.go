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
	"github.com/perdure/perdure/internal/core/mutation"
	"github.com/perdure/perdure/internal/core/outbox"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/hooks"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/transport"
)

// Config configures a Client. Only Coordinator is required; the comment of each other field gives the meaning of its
// zero value.
type Config struct {
	Coordinator string       // address, or a comma-separated list to try in turn, or @FILE that contains it
	Slot        perdure.Slot // the slot to take; 0: any that is free; perdure.SlotZero: slot 0
	Grow        bool         // if no slot is free, add one to the job
	SavesAtCuts bool         // the program calls SaveState only if SaveDue reports true
	Observer    bool         // take no slot and only read, at the clock set by SetReadClock
	Process     string       // unique name of this process; "": a random name
	// SecretFile is the path of the file with the run's secret, which authenticates this process to the coordinator and
	// the servers. perdure up prints the path as PERDURE_SECRET_FILE. Secret is the secret itself, if the program
	// already has it.
	SecretFile string
	Secret     perdure.Secret
	// Keys is the directory with the worker's keys, for a job that has keys; perdure keys new creates it. It also
	// contains the secret. The files are reloaded when they change.
	Keys string
	PID  int          // process ID to display; 0: that of this process
	Log  *slog.Logger // nil: no logging

	// Limits in bytes. Clock waits while the kept updates exceed one of the first three: WindowBytes limits updates
	// that are not acknowledged, RetainBytes limits updates that the recovery strategy keeps until a checkpoint
	// contains them, and OutageBytes limits updates for unavailable shards.
	WindowBytes int64 // 0: 64 MiB; at most 4 GiB
	RetainBytes int64 // 0: 512 MiB
	OutageBytes int64 // 0: the job's limit
	CacheBytes  int   // size of the row cache; 0: 256 MiB

	Memory Memory // source of the memory that Table.Deltas returns; nil: the Go heap

	Connections int           // connections to each server, over which its shards are spread; 0: 1
	Heartbeat   time.Duration // interval between status reports; 0: 100 ms
	// JoinTimeout is how long Dial retries until a coordinator accepts this process or confirms that it has received
	// the request; 0: 10 s.
	JoinTimeout time.Duration
	// OutageAfter is how long an answer of a shard may be pending before the shard is unavailable, in jobs that
	// continue during outages; 0: 200 ms.
	OutageAfter time.Duration
	// LostAfter is how long the client may go without a message from any process of the job, after joining, before
	// calls fail with perdure.ErrLost; 0: 60 s, NeverLost: no limit. Time in which this process itself does not run is
	// not counted.
	LostAfter time.Duration
	// StateBytes is the max size of a state that travels with an update instead of going to the job's store; 0: 1 MiB,
	// which is also the upper limit.
	StateBytes int

	hooks     hooks.Worker // from Dial's context
	mutations mutation.Set // from Dial's context: negative controls in simulations
}

const (
	defaultRetainBytes = 512 << 20
	defaultWindowBytes = 64 << 20
	defaultCacheBytes  = 256 << 20
	defaultHeartbeat   = 100 * time.Millisecond
	defaultJoinTimeout = 10 * time.Second
	defaultLostAfter   = time.Minute
	maxReports         = 1024             // queued for the coordinator
	maxSpare           = 64 << 20         // bytes of memory of safe updates that are kept for reuse
	trimEvery          = 10 * time.Second // interval at which unused memory is freed
)

// NeverLost is the Config.LostAfter of a program that waits for the job without a limit.
const NeverLost time.Duration = -1

// limits returns the limits of the outbox.
func (cfg *Config) limits() outbox.Limits {
	return outbox.Limits{
		Window: cfg.WindowBytes, Retain: cfg.RetainBytes, Outage: cfg.OutageBytes, Spare: maxSpare,
		Memory: cfg.Memory, Mutations: cfg.mutations,
	}
}

// checkAddress returns an error for an invalid coordinator address. A file with the address may not exist yet and is
// not checked.
func (cfg *Config) checkAddress() error {
	if cfg.Coordinator == "" {
		return fmt.Errorf("%w: worker: Config.Coordinator is empty; set the coordinator's address", perdure.ErrUsage)
	}
	if cfg.hooks.Network != nil || strings.HasPrefix(cfg.Coordinator, "@") {
		return nil
	}
	return transport.CheckAddress("coordinator", cfg.Coordinator)
}

// openKeys opens the keys of a job that has keys, and makes the network use them. The result is nil if cfg names no
// keys.
func (cfg *Config) openKeys() (*keys.Ring, error) {
	if cfg.Keys == "" {
		return nil, nil
	}
	if cfg.hooks.Network != nil {
		return nil, fmt.Errorf("%w: worker: Config.Keys works only with the default network; do not set it",
			perdure.ErrUsage)
	}
	ring, err := keys.Open(keys.RoleDir(cfg.Keys, keys.Worker))
	if err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	cfg.hooks.Network = transport.TCP{Keys: ring}
	if cfg.SecretFile == "" && cfg.Secret == "" {
		cfg.SecretFile = ring.SecretFile()
	}
	return ring, nil
}

// complete fills in the defaults.
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
	cfg.WindowBytes = min(cfg.WindowBytes, wire.MaxUpdateBytes/2)
	if cfg.Heartbeat == 0 {
		cfg.Heartbeat = defaultHeartbeat
	}
	if cfg.JoinTimeout == 0 {
		cfg.JoinTimeout = defaultJoinTimeout
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
	if cfg.OutageAfter == 0 {
		cfg.OutageAfter = defaultOutageAfter
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

// canReach returns an error if this program has no driver for the job's store. Otherwise the program would fail only at
// its first state of more than 1 MiB, which may be hours later.
func (cfg *Config) canReach(where string) error {
	if cfg.hooks.OpenStore != nil || where == "" {
		return nil
	}
	if _, err := store.ParseLocation(where); errors.Is(err, store.ErrNoDriver) {
		return fmt.Errorf("%w: the job's store is %s: %w", perdure.ErrUsage, where, err)
	}
	return nil
}

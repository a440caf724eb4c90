package worker

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
)

// Environment variables that locate a program's job. perdure up prints the first two, and sets all of them for programs
// that it starts itself.
const (
	EnvCoordinator = "PERDURE_COORDINATOR" // the coordinator's HOST:PORT, or a comma-separated list
	EnvSecretFile  = "PERDURE_SECRET_FILE" // the file with the run's secret
	EnvKeys        = "PERDURE_KEYS"        // the directory with the program's keys, if the job has keys
	EnvSlot        = "PERDURE_SLOT"        // the slot to take; not set: any free slot
)

// FromEnv returns cfg with Coordinator, SecretFile, Keys and Slot taken from the environment. A program that a host has
// started then waits for a free slot without a limit, unless cfg has a JoinTimeout: it may be a standby. The error says
// which variable is missing or invalid.
func (cfg Config) FromEnv() (Config, error) {
	cfg.Coordinator, cfg.SecretFile, cfg.Slot = os.Getenv(EnvCoordinator), os.Getenv(EnvSecretFile), perdure.NoSlot
	cfg.Keys = os.Getenv(EnvKeys)
	if cfg.Coordinator == "" {
		return cfg, fmt.Errorf("%w: %s is not set; start this program with perdure up --exec, or set the "+
			"variables that perdure up prints", perdure.ErrUsage, EnvCoordinator)
	}
	if text, set := os.LookupEnv(EnvSlot); set {
		n, err := strconv.ParseInt(text, 10, 32)
		if err != nil || n < 0 {
			return cfg, fmt.Errorf("%w: invalid slot %s=%q; set a number ≥ 0, or unset it", perdure.ErrUsage,
				EnvSlot, text)
		}
		cfg.Slot = perdure.Slot(n).Exactly()
	} else if os.Getenv(wire.HostVariable) != "" && cfg.JoinTimeout == 0 {
		cfg.JoinTimeout = math.MaxInt64
	}
	return cfg, nil
}

// Step does the work of one clock: it reads rows and adds deltas to the clock's update. It must not call Clock or
// Finish. After a rollback, the calls within it return perdure.ErrRolledBack; Step returns that error, and Run calls
// Step again with the earlier clock.
type Step func(ctx context.Context, clock perdure.Clock) error

// Run takes part in a job until it ends, and handles rollbacks. It joins the job, calls begin to open the tables, and
// calls the step that begin returns for each clock of the slot. It returns nil when all slots have ended their clocks,
// also if they had before Run joined. Otherwise it returns the first error. If cfg names no coordinator, Run takes the
// job from the environment, as FromEnv does.
//
// A program that must do work between clocks, or outside of them, calls Dial, Clock and Finish itself.
func Run(ctx context.Context, cfg Config, start func(ctx context.Context, c *Client) (Step, error)) (err error) {
	if cfg.Coordinator == "" {
		if cfg, err = cfg.FromEnv(); err != nil {
			return err
		}
	}
	c, err := Dial(ctx, cfg)
	if errors.Is(err, perdure.ErrDone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer c.Close() // Finish has made its updates safe; after an error they may be lost
	var step Step
	for clock := c.Now(); ; {
		switch {
		case step == nil: // initially, and again if a rollback interrupted begin
			if step, err = start(ctx, c); err == nil && step == nil {
				return fmt.Errorf("%w: begin returned no step; return a Step or an error", perdure.ErrUsage)
			}
			if err == nil {
				continue
			}
		case clock < c.End():
			err = step(ctx, clock)
		default:
			if err = c.Finish(ctx); err == nil {
				return nil
			}
		}
		if err != nil && !errors.Is(err, perdure.ErrRolledBack) {
			return err
		}
		if clock, err = c.Clock(ctx); err != nil {
			return err
		}
	}
}

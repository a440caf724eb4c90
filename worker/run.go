package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/perdure/perdure"
)

// Variables of the environment that say where a program's job is. perdure up prints the first two, and
// sets all for programs that it starts itself.
const (
	EnvCoordinator = "PERDURE_COORDINATOR" // the coordinator's HOST:PORT, or several with commas between them
	EnvSecretFile  = "PERDURE_SECRET_FILE" // the file with the run's secret
	EnvKeys        = "PERDURE_KEYS"        // the folder of the program's keys, where the job has keys
	EnvSlot        = "PERDURE_SLOT"        // the slot to take; not set: any that is free
)

// FromEnv completes a Config with what the environment says of the job. Coordinator, SecretFile, Keys and Slot
// are replaced; an error says what is missing or wrong.
func (cfg Config) FromEnv() (Config, error) {
	cfg.Coordinator, cfg.SecretFile, cfg.Slot = os.Getenv(EnvCoordinator), os.Getenv(EnvSecretFile), perdure.NoSlot
	cfg.Keys = os.Getenv(EnvKeys)
	if cfg.Coordinator == "" {
		return cfg, fmt.Errorf("%w: %s is not set: start this program by perdure up --exec, or set what perdure up "+
			"prints", perdure.ErrUsage, EnvCoordinator)
	}
	if text, set := os.LookupEnv(EnvSlot); set {
		n, err := strconv.ParseInt(text, 10, 32)
		if err != nil || n < 0 {
			return cfg, fmt.Errorf("%w: %s=%q is no slot; set a number from 0, or nothing", perdure.ErrUsage,
				EnvSlot, text)
		}
		cfg.Slot = perdure.Slot(n).Exactly()
	}
	return cfg, nil
}

// Step does the work of one clock: it reads rows and adds to the clock's update. It must not call Clock or
// Finish. When it returns perdure.ErrRolledBack, as the calls within it do after a roll-back, it is called
// again with the earlier clock.
type Step func(ctx context.Context, clock perdure.Clock) error

// Run works in a job to its end: it joins, has begin open the tables, and calls the step that begin returns
// for each clock of the slot, through whatever fails. It returns nil when all slots have ended
// theirs, also where that was so before it came, and else the first error. Where cfg names no
// coordinator the environment says where the job is, as FromEnv reads it.
//
// A program that must do something between clocks, or outside of them, calls Dial, Clock and Finish itself.
func Run(ctx context.Context, cfg Config, begin func(ctx context.Context, c *Client) (Step, error)) (err error) {
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
	defer c.Close() // what it has done is safe, or lost with it
	var step Step
	for clock := c.Now(); ; {
		switch {
		case step == nil: // also again, where a roll-back came before it had begun
			if step, err = begin(ctx, c); err == nil && step == nil {
				return fmt.Errorf("%w: there is no step to be called", perdure.ErrUsage)
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

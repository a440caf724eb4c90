package host

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/data/registry"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/run/metrics"
	"github.com/perdure/perdure/internal/run/role"
)

// This file has several coordinators of one job, on several machines: they share a registry. Whoever has its lease
// leads. The others stand by: they do not listen, so that who looks for the leader goes on to the next address at once.

// again is how long one that stands by waits before it asks for the lease again.
const again = 100 * time.Millisecond

// shares reports whether other coordinators may share the registry.
func (c *Coordinator) shares(ring *keys.Ring) (bool, error) {
	if c.Registry == "" {
		return false, nil
	}
	at, err := registry.ParseLocation(c.Registry)
	if err != nil {
		return false, fmt.Errorf("--registry: %w", err)
	}
	if _, own := at.File(); own {
		return false, nil
	}
	if ring == nil {
		return false, fmt.Errorf("%w: --registry %s can be shared by several coordinators, which need the same "+
			"secrets; give each the same keys with --keys DIR, which perdure keys new makes", perdure.ErrUsage, at)
	}
	return true, nil
}

// idOf is the name of the job that all make who share a registry, and are asked for the same.
// It does not depend on which members of etcd each names, nor in which order.
func (c *Coordinator) idOf() string {
	at, _ := registry.ParseLocation(c.Registry) // as shares has
	sum := sha256.Sum256(append([]byte(at.Identity()+"\n"), c.Job.Text...))
	return hex.EncodeToString(sum[:8])
}

// standBy waits for the lease, and then listens. What was open until then was only to see whether it can be. nil: ctx
// has ended before.
func (c *Coordinator) standBy(ctx context.Context, tried *role.Opened, job string) (*role.Opened, error) {
	known, ring := tried.Keys, tried.Ring
	if err := errors.Join(tried.Frames.Close(), tried.Web.Close()); err != nil {
		return nil, err
	}
	facts, err := registry.OpenLocation(ctx, c.Registry)
	if err != nil {
		return nil, err
	}
	lease, err := c.await(ctx, facts, job)
	if err != nil {
		if ctx.Err() != nil {
			err = nil
		}
		return nil, errors.Join(err, facts.Close())
	}
	over, err := c.isOver(ctx, facts)
	if err != nil || over {
		return nil, errors.Join(err, facts.Close())
	}
	open, err := c.listen(ring)
	if err != nil {
		return nil, errors.Join(err, facts.Close())
	}
	open.Keys, open.Facts, open.Lease = known, facts, lease
	return open, nil
}

// isOver reports whether the job is over that a shared registry has: the coordinator that led it has written what it
// has made. It refuses the registry of another job.
func (c *Coordinator) isOver(ctx context.Context, from registry.Registry) (bool, error) {
	doc, revision, err := from.Load(ctx)
	if err != nil || revision == 0 {
		return false, err
	}
	var f membership.Facts
	if err := json.Unmarshal(doc, &f); err != nil {
		return false, fmt.Errorf("facts in the registry: %w", err)
	}
	if f.Job.ID != c.idOf() {
		at, _ := registry.ParseLocation(c.Registry) // as shares has
		return false, fmt.Errorf("%w: --registry %s has job %s, and %s asks for another one; choose another prefix",
			perdure.ErrUsage, at, f.Job.ID, c.Job.Name)
	}
	if f.Failed != "" {
		return true, fmt.Errorf("%w: %s", perdure.ErrFailed, f.Failed)
	}
	if f.View.Done {
		c.Log.Info("the job is done; what it has made is with the coordinator that led it")
	}
	return f.View.Done, nil
}

// await waits for the lease of a shared registry. Meanwhile it can be watched.
func (c *Coordinator) await(ctx context.Context, facts registry.Registry, job string) (registry.Lease, error) {
	stands := newStanding()
	c.eye.Show(metrics.Standby(stands.look, c.Watch.Who(job, wire.RoleCoordinator, 0)))
	defer c.eye.Show(nil) // what comes then only begins
	return c.take(ctx, facts, stands)
}

// take waits for the lease, whoever has it.
func (c *Coordinator) take(ctx context.Context, facts registry.Registry, stands *standing) (registry.Lease, error) {
	defer close(stands.ended)
	tick := time.NewTicker(again)
	defer tick.Stop()
	told := ""
	for {
		stands.begin()
		lease, err := facts.Acquire(ctx, registry.Self())
		stands.end()
		switch {
		case err == nil:
			return lease, nil
		case !errors.Is(err, registry.ErrHeld) && !errors.Is(err, registry.ErrAway):
			return nil, err
		case err.Error() != told:
			told = err.Error()
			c.Log.Info("the coordinator stands by", "why", err)
		}
		for waits := true; waits; {
			select {
			case why := <-stands.asks:
				why <- told
			case <-tick.C:
				waits = false
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	}
}

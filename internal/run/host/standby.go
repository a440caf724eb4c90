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

// This file lets several coordinators on different machines serve one job. They share a registry, and the holder of its
// lease leads. The others are on standby. They do not listen, so that processes that look for the leader try the next
// address immediately.

// leasePause is the time between two attempts of a standby coordinator to acquire the lease.
const leasePause = 100 * time.Millisecond

// sharesRegistry reports whether other coordinators may share the registry.
func (c *Coordinator) sharesRegistry(ring *keys.Ring) (bool, error) {
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
		return false, perdure.Usagef("--registry %s can be shared by several coordinators, which need the same "+
			"secrets; give each coordinator the same keys with --keys DIR; perdure keys new creates them", at)
	}
	return true, nil
}

// jobID returns a job ID that is equal for all coordinators with the same registry and the same requested job. It
// depends neither on the members of etcd that each names nor on their order.
func (c *Coordinator) jobID() string {
	at, _ := registry.ParseLocation(c.Registry) // shares has checked it
	sum := sha256.Sum256(append([]byte(at.Identity()+"\n"), c.Job.Text...))
	return hex.EncodeToString(sum[:8])
}

// standBy waits for the lease and then listens. The listeners in tried were only opened to check the addresses. It
// returns nil if ctx ends first.
func (c *Coordinator) standBy(ctx context.Context, tried *role.Resources, job string) (*role.Resources, error) {
	known, ring := tried.Keys, tried.Ring
	if err := errors.Join(tried.FrameListener.Close(), tried.ControlListener.Close()); err != nil {
		return nil, err
	}
	record, err := registry.OpenLocation(ctx, c.Registry)
	if err != nil {
		return nil, err
	}
	lease, err := c.awaitLease(ctx, record, job)
	if err != nil {
		if ctx.Err() != nil {
			err = nil
		}
		return nil, errors.Join(err, record.Close())
	}
	over, err := c.isOver(ctx, record)
	if err != nil || over {
		return nil, errors.Join(err, record.Close())
	}
	open, err := c.listen(ring)
	if err != nil {
		return nil, errors.Join(err, record.Close())
	}
	open.Keys, open.OpenRegistry, open.Lease = known, record, lease
	return open, nil
}

// isOver reports whether the job in a shared registry is over. The coordinator that led it has then written the
// results. isOver returns an error if the registry contains another job.
func (c *Coordinator) isOver(ctx context.Context, from registry.Registry) (bool, error) {
	doc, revision, err := from.Load(ctx)
	if err != nil || revision == 0 {
		return false, err
	}
	var f membership.JobRecord
	if err := json.Unmarshal(doc, &f); err != nil {
		return false, fmt.Errorf("job record in the registry: %w", err)
	}
	if f.Job.ID != c.jobID() {
		at, _ := registry.ParseLocation(c.Registry) // shares has checked it
		return false, perdure.Usagef("--registry %s contains job %s, but %s requests another one; choose another "+
			"prefix", at, f.Job.ID, c.Job.Name)
	}
	if f.Failed != "" {
		return true, fmt.Errorf("%w: %s", perdure.ErrFailed, f.Failed)
	}
	if f.View.Done {
		c.Log.Info("the job is done; the coordinator that led it has the results")
	}
	return f.View.Done, nil
}

// awaitLease waits for the lease of a shared registry, with metrics and health endpoints.
func (c *Coordinator) awaitLease(ctx context.Context, record registry.Registry, job string) (registry.Lease, error) {
	stands := &standbyState{since: time.Now()}
	c.debug.SetProbe(metrics.Standby(stands.state, c.Watch.Identity(job, wire.RoleCoordinator, 0)))
	defer c.debug.SetProbe(nil) // the leader is not ready yet
	return c.acquireLease(ctx, record, stands)
}

// acquireLease waits for the lease.
func (c *Coordinator) acquireLease(
	ctx context.Context,
	record registry.Registry,
	stands *standbyState,
) (registry.Lease, error) {
	defer stands.endRequest(nil)
	tick := time.NewTicker(leasePause)
	defer tick.Stop()
	sent := ""
	for {
		stands.startRequest()
		lease, err := record.Acquire(ctx, registry.Self())
		if err == nil {
			return lease, nil
		}
		stands.endRequest(err)
		if !errors.Is(err, registry.ErrHeld) && !errors.Is(err, registry.ErrUnavailable) {
			return nil, err
		}
		if err.Error() != sent {
			sent = err.Error()
			c.Log.Info("the coordinator is on standby", "why", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

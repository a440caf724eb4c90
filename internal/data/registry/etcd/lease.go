package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/perdure/perdure/internal/data/registry"
)

// lease is the holder's key, which etcd deletes when the attached etcd lease expires.
type lease struct {
	r     *Registry
	id    clientv3.LeaseID
	fence int64 // the revision that created the holder's key; unique to this lease
	done  chan struct{}
	end   func() // closes done, once

	saving sync.Mutex // guards the fields below, and serialises saves
	saves  int
	last   *attempt    // the last Save, if its result is unknown
	known  *knownState // nil: must be read first
}

// Acquire implements registry.Registry.
func (r *Registry) Acquire(ctx context.Context, holder registry.Holder) (registry.Lease, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var l *lease
	err := r.retry(ctx, func(ctx context.Context) (err error) {
		l, err = r.acquire(ctx, holder)
		return err
	})
	if err != nil {
		return nil, err
	}
	if r.lease != nil {
		r.lease.end() // it has ended: otherwise this one could not have been acquired
	}
	r.lease = l
	r.renewals.Go(l.renew)
	return l, nil
}

// acquire makes one attempt. If it fails, the etcd lease that it may leave expires by itself.
func (r *Registry) acquire(ctx context.Context, holder registry.Holder) (*lease, error) {
	key := r.prefix + holderKey
	// Read first: waiting clients ask often, and must not create an etcd lease each time.
	found, err := r.client.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	if len(found.Kvs) > 0 {
		return nil, r.held(found.Kvs[0])
	}
	granted, err := r.client.Grant(ctx, int64(r.t.ttl/time.Second))
	if err != nil {
		return nil, err
	}
	made, err := r.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, holder.Line(), clientv3.WithLease(granted.ID))).
		Else(clientv3.OpGet(key)).Commit()
	if err != nil || !made.Succeeded {
		_ = r.revoke(granted.ID) // also deletes the key if it was created
	}
	if err != nil {
		return nil, err
	}
	if !made.Succeeded {
		return nil, r.held(made.Responses[0].GetResponseRange().Kvs[0])
	}
	done := make(chan struct{})
	return &lease{
		r: r, id: granted.ID, fence: made.Header.Revision, done: done, end: sync.OnceFunc(func() { close(done) }),
	}, nil
}

func (r *Registry) held(kv *mvccpb.KeyValue) error {
	err := fmt.Errorf("%w: %s (%s)", registry.ErrHeld, registry.HolderName(string(kv.Value)), r.display)
	return final(&registry.LingeringLeaseError{Err: err, ExpiresWithin: maxExpiry})
}

// revoke ends an etcd lease. It does not depend on the caller's context, which may be done.
func (r *Registry) revoke(id clientv3.LeaseID) error {
	ctx, cancel := context.WithTimeout(context.Background(), r.t.release)
	defer cancel()
	_, err := r.client.Revoke(ctx, id)
	if err == nil || errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return nil
	}
	err, _ = r.explainError(err)
	return err
}

// renew renews the lease until it ends, and ends it when etcd reports that it is gone.
//
// Without an answer from etcd, the lease may still exist: a cluster without a leader expires no leases, and a new
// leader restarts their lifetimes. So a registry outage of a minute does not end the lease. But a holder that is cut
// off alone must not lead forever while a successor waits, so it gives up after timing.renewDeadline.
func (l *lease) renew() {
	defer l.end()
	received := l.r.t.now()
	tick := time.NewTicker(l.r.t.renew)
	defer tick.Stop()
	for {
		select {
		case <-l.done:
			return
		case <-tick.C:
		}
		turn := l.r.members.current()
		there, err := l.renewOnce()
		if err != nil {
			l.r.members.reportFailure(turn)
		}
		switch {
		case err == nil && !there:
			return
		case err == nil:
			received = l.r.t.now()
		case l.r.t.now().Sub(received) > l.r.t.renewDeadline:
			return
		}
	}
}

// renewOnce renews the etcd lease once, and reports whether it and the holder's key still exist.
func (l *lease) renewOnce() (bool, error) {
	ctx, cancel := l.r.withTimeout(context.Background(),
		l.r.t.maxAttempt/4) // the member may be stalled; then another one is asked
	defer cancel()
	// The client's KeepAlive gives up after one lifetime, and its KeepAliveOnce retries without a pause.
	stream, err := l.r.leases.LeaseKeepAlive(ctx)
	if err != nil {
		return false, err
	}
	if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(l.id)}); err != nil {
		return false, err
	}
	renewed, err := stream.Recv()
	if err != nil || renewed.TTL <= 0 {
		return false, err
	}
	key, err := l.r.client.Get(ctx, l.r.prefix+holderKey)
	if err != nil {
		return false, err
	}
	return len(key.Kvs) > 0 && key.Kvs[0].CreateRevision == l.fence, nil
}

func (l *lease) Done() <-chan struct{} { return l.done }

func (l *lease) Release() error {
	if l.ended() {
		return nil
	}
	l.end()
	return l.r.revoke(l.id)
}

func (l *lease) ended() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

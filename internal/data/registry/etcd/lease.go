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

// lease is the holder's key, which etcd deletes when the lease of etcd ends that it is bound to.
type lease struct {
	r     *Registry
	id    clientv3.LeaseID
	fence int64 // the revision that has created the holder's key: no other lease has the same
	done  chan struct{}
	end   func() // closes done, once

	saving sync.Mutex // guards what follows, and keeps saves apart
	saves  int
	last   *attempt // the last Save, if it is not known what came of it
	known  *known   // nil: it is to be asked for
}

// Acquire implements registry.Registry.
func (r *Registry) Acquire(ctx context.Context, holder registry.Holder) (registry.Lease, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var l *lease
	err := r.patiently(ctx, func(ctx context.Context) (err error) {
		l, err = r.acquire(ctx, holder)
		return err
	})
	if err != nil {
		return nil, err
	}
	if r.lease != nil {
		r.lease.end() // it is over, or this one would not be
	}
	r.lease = l
	r.renewals.Go(l.renew)
	return l, nil
}

// acquire is one try. What it leaves behind when it fails ends by itself, since nobody renews it.
func (r *Registry) acquire(ctx context.Context, holder registry.Holder) (*lease, error) {
	key := r.prefix + holderKey
	found, err := r.client.Get(ctx, key) // who waits for the lease asks often, and makes no lease of etcd each time
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
		_ = r.revoke(granted.ID) // the key, too, if it was made
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
	err := fmt.Errorf("%w: %s (%s)", registry.ErrHeld, registry.NameOf(string(kv.Value)), r.shown)
	return decided(&registry.LingersError{Err: err, For: lingers})
}

// revoke ends a lease of etcd, also for who has no time any more.
func (r *Registry) revoke(id clientv3.LeaseID) error {
	ctx, cancel := context.WithTimeout(context.Background(), r.t.release)
	defer cancel()
	_, err := r.client.Revoke(ctx, id)
	if err == nil || errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return nil
	}
	err, _ = r.explain(err)
	return err
}

// renew keeps the lease until it is over, and ends it once etcd says that it is. While etcd says
// nothing it may still be there: a cluster without a leader ends no lease, and its next leader
// counts each from the beginning. So a registry that is away for a minute ends no lease. But who
// alone is cut off must not lead for ever whom a successor is waiting for: after a longer time
// it gives up.
func (l *lease) renew() {
	defer l.end()
	heard := l.r.t.now()
	tick := time.NewTicker(l.r.t.renew)
	defer tick.Stop()
	for {
		select {
		case <-l.done:
			return
		case <-tick.C:
		}
		turn := l.r.members.asked()
		there, err := l.there()
		if err != nil {
			l.r.members.failed(turn)
		}
		switch {
		case err == nil && !there:
			return
		case err == nil:
			heard = l.r.t.now()
		case l.r.t.now().Sub(heard) > l.r.t.giveUp:
			return
		}
	}
}

// there renews the lease of etcd once, and reports whether it and the holder's key are still there.
func (l *lease) there() (bool, error) {
	ctx, cancel := l.r.soon(context.Background(), l.r.t.try/4) // a member may be frozen, and the next one not
	defer cancel()
	// The client's own KeepAlive gives up after one time to live, and its KeepAliveOnce
	// tries again without a pause.
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
	if l.over() {
		return nil
	}
	l.end()
	return l.r.revoke(l.id)
}

func (l *lease) over() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// Package etcd keeps a registry in etcd, for a coordinator that may die with its machine: a
// standby on another one takes the lease over within seconds.
//
// What keeps the facts right is what etcd compares in each transaction that writes, never a
// clock: that the holder's key is still the one that this lease has created, and that the
// head is still the one that is to be replaced. See docs/design/registry.md.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/perdure/perdure/internal/data/registry"
)

// timing is how long things may take. Nothing that it says decides whether a Save is right.
type timing struct {
	ttl      time.Duration // of a lease, in whole seconds: who has died holds it for that long
	renew    time.Duration // how often a lease is renewed
	giveUp   time.Duration // a lease that could not be renewed for that long is given up
	first    time.Duration // what the first tries of a call may take: another member may answer
	try      time.Duration // what one may take at most
	patience time.Duration // what a call may take, with all its tries
	pause    time.Duration // between two tries
	release  time.Duration // what giving a lease back may take; it ends by itself, too

	now func() time.Time // by its monotonic clock a lease is given up
}

// usual has a ttl that is the least of etcd, whose clusters extend it to one and a half of
// their election timeout, and a patience that bears the election of a leader. The first tries are
// short: training stands while a call goes to a member whose machine is gone, or to one that takes
// it to a leader whose machine is.
var usual = timing{
	ttl: 2 * time.Second, renew: 500 * time.Millisecond, giveUp: 90 * time.Second,
	first: 300 * time.Millisecond, try: 2 * time.Second, patience: 6 * time.Second,
	pause: 100 * time.Millisecond, release: time.Second, now: time.Now,
}

// may is what the next try may take after some that had no answer. There are two of each length: of three members
// one may be gone, and a slow registry is to answer at last.
func (t timing) may(unheard int) time.Duration {
	return min(t.first<<min(unheard/2, 16), t.try)
}

// lingers is when the lease of somebody who has died is surely over, also where leases are longer
// than usual or a leader is being elected.
const lingers = 10 * time.Second

// Limits of a transaction, well below those of a server that nobody has configured: 1.5 MiB and
// 128 operations.
const (
	mostTxnBytes = 1 << 20
	mostTxnOps   = 100
)

// Registry is a registry in etcd, seen by one client.
type Registry struct {
	shown    string // its address, in messages
	prefix   string // of its keys, with a slash at its end
	client   *clientv3.Client
	members  *members
	leases   pb.LeaseClient
	t        timing
	txnBytes int
	open     context.Context // ended by Close
	shut     func()
	renewals sync.WaitGroup

	mu    sync.Mutex // guards lease, and keeps Acquire and Close apart
	lease *lease     // the newest of this client; nil: it had none
}

// Open opens the registry at an address (see Parse). Nothing is asked of etcd yet, which may be away.
func Open(ctx context.Context, address string) (*Registry, error) {
	return openWith(ctx, address, usual)
}

func openWith(ctx context.Context, address string, t timing) (*Registry, error) {
	a, err := Parse(address)
	if err != nil {
		return nil, err
	}
	secure, err := a.tls()
	if err != nil {
		return nil, err
	}
	// A client looks for members that are away more often than is usual: a lease is short.
	again := grpc.ConnectParams{MinConnectTimeout: t.try, Backoff: backoff.Config{
		BaseDelay: 50 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 300 * time.Millisecond,
	}}
	hosts := shuffled(a.hosts)
	client, err := clientv3.New(clientv3.Config{
		Endpoints: hosts[:1], TLS: secure, Logger: zap.NewNop(),
		Context:         context.WithoutCancel(ctx), // Close ends it
		DialOptions:     []grpc.DialOption{grpc.WithConnectParams(again), grpc.WithChainUnaryInterceptor(atOnce)},
		MaxUnaryRetries: 1, // patiently tries again
		// A member that is frozen says nothing: its connection is to be noticed. So is, within the
		// timeout, one whose machine is gone: it acknowledges nothing.
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: time.Second,
	})
	if err != nil {
		return nil, fmt.Errorf("registry: %s: %w", a, err)
	}
	r := &Registry{
		shown: a.String(), prefix: a.prefix + "/", client: client,
		members: &members{client: client, hosts: hosts},
		leases:  pb.NewLeaseClient(client.ActiveConnection()), t: t, txnBytes: mostTxnBytes,
	}
	r.open, r.shut = context.WithCancel(context.Background())
	return r, nil
}

// atOnce has a call fail when no member can be reached. The client would wait until its time is over, and then
// not know why.
func atOnce(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, call grpc.UnaryInvoker,
	o ...grpc.CallOption,
) error {
	return call(ctx, method, req, reply, conn, append(o, grpc.WaitForReady(false))...)
}

// usable returns why the client cannot be used.
func (r *Registry) usable(ctx context.Context) error {
	if r.open.Err() != nil {
		return registry.ErrClosed
	}
	return ctx.Err()
}

// soon is a context that ends after a while, and when the registry is closed.
func (r *Registry) soon(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, d)
	stop := context.AfterFunc(r.open, cancel)
	return ctx, func() { stop(); cancel() }
}

// Load implements registry.Registry. It is one transaction: head and chunks are of one moment.
func (r *Registry) Load(ctx context.Context) (doc []byte, revision uint64, err error) {
	err = r.patiently(ctx, func(ctx context.Context) error {
		doc, revision, err = r.load(ctx)
		return err
	})
	return doc, revision, err
}

func (r *Registry) load(ctx context.Context) (doc []byte, revision uint64, err error) {
	found, err := r.client.Txn(ctx).Then(clientv3.OpGet(r.prefix+headKey),
		clientv3.OpGet(r.prefix+chunkKeys, clientv3.WithPrefix())).Commit()
	if err != nil {
		return nil, 0, err
	}
	heads := found.Responses[0].GetResponseRange().Kvs
	if len(heads) == 0 {
		return nil, 0, nil
	}
	chunks := map[string][]byte{}
	for _, kv := range found.Responses[1].GetResponseRange().Kvs {
		chunks[strings.TrimPrefix(string(kv.Key), r.prefix+chunkKeys)] = kv.Value
	}
	h, err := decodeHead(heads[0].Value)
	if err == nil {
		doc, err = h.document(chunks)
	}
	if err != nil {
		return nil, 0, broken{err}
	}
	return doc, uint64(heads[0].ModRevision), nil
}

// broken is why a document cannot be read, which no other try would change.
type broken struct{ error }

func (b broken) Unwrap() error { return b.error }

// patiently tries until it is done, decided, or was tried for long enough. A try may fail though
// what it asked for is done: it must be one that may be made again.
func (r *Registry) patiently(ctx context.Context, try func(ctx context.Context) error) error {
	until := time.Now().Add(r.t.patience)
	for unheard := 0; ; { // how many tries have had no answer
		if err := r.usable(ctx); err != nil {
			return err
		}
		turn := r.members.asked()
		one, cancel := r.soon(ctx, r.t.may(unheard))
		err := try(one)
		if one.Err() != nil {
			unheard++
		}
		cancel()
		if err == nil || errors.Is(err, errDecided) {
			return err
		}
		if unusable := r.usable(ctx); unusable != nil {
			return unusable
		}
		err, passes := r.explain(err)
		if !passes || time.Now().After(until) {
			return err
		}
		if errors.Is(err, errChanged) {
			continue // it is not away
		}
		r.members.failed(turn)
		select {
		case <-time.After(r.t.pause):
		case <-ctx.Done():
		case <-r.open.Done():
		}
	}
}

// explain makes one line of an error of etcd's client, and reports whether another try may help.
func (r *Registry) explain(err error) (explained error, passes bool) {
	var b broken
	if errors.As(err, &b) {
		return fmt.Errorf("registry: %s: %w", r.shown, b.error), false
	}
	if errors.Is(err, errChanged) {
		return fmt.Errorf("%w: %s: %w", registry.ErrAway, r.shown, err), true
	}
	code, text := status.Code(err), status.Convert(err).Message()
	var known rpctypes.EtcdError
	if errors.As(err, &known) {
		code, text = known.Code(), known.Error()
	}
	if errors.Is(err, context.DeadlineExceeded) { // as the client puts it, which then has no code
		code, text = codes.DeadlineExceeded, fmt.Sprintf("none within %v", r.t.try)
	}
	if _, quoted, found := strings.Cut(text, "connection error: desc = "); found {
		if reason, err := strconv.Unquote(quoted); err == nil {
			text = strings.TrimPrefix(reason, "transport: ")
		}
	}
	text = strings.Join(strings.Fields(text), " ")
	switch {
	case text == rpctypes.ErrNoSpace.Error():
		return fmt.Errorf("registry: %s: %w: %s", r.shown, syscall.ENOSPC, text), false
	case code == codes.Unavailable, code == codes.DeadlineExceeded, code == codes.Canceled, code == codes.Internal,
		code == codes.ResourceExhausted:
		return fmt.Errorf("%w: %s: %s", registry.ErrAway, r.shown, text), true
	}
	return fmt.Errorf("registry: %s: %s", r.shown, text), false
}

// Close implements registry.Registry.
func (r *Registry) Close() error {
	if r.open.Err() != nil {
		return nil
	}
	r.shut() // who waits for an answer waits no longer
	r.mu.Lock()
	defer r.mu.Unlock()
	var err error
	if r.lease != nil {
		err = r.lease.Release()
	}
	r.renewals.Wait()
	return errors.Join(err, r.client.Close())
}

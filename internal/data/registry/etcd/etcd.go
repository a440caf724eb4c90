// Package etcd implements a registry in etcd, for a coordinator whose machine may fail: a standby on another machine
// takes over the lease within seconds.
//
// Correctness depends on the comparisons in each etcd transaction that writes, and never on a clock: the holder's key
// must still be the one that this lease created, and the head must still be the one to be replaced. See
// docs/design/registry.md.
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

// timing holds timeouts. None of them affects the correctness of Save.
type timing struct {
	ttl           time.Duration // lifetime of a lease in whole seconds: a dead holder keeps it that long
	renew         time.Duration // interval between renewals
	renewDeadline time.Duration // a lease is given up if it could not be renewed for this long
	firstAttempt  time.Duration // timeout of a call's first attempts, after which another member may answer
	maxAttempt    time.Duration // maximum timeout of one attempt
	patience      time.Duration // timeout of a call, including retries
	pause         time.Duration // pause between attempts
	release       time.Duration // timeout of releasing a lease, which otherwise expires by itself

	now func() time.Time // clock whose monotonic reading decides when a lease is given up
}

// defaultTiming is the default timing. Its ttl is etcd's minimum, which clusters extend to one and a half of their
// election timeout. Its patience covers the election of a leader. The first attempts are short, because training stalls
// while a call goes to a member whose machine is gone, or to one that forwards it to such a leader.
var defaultTiming = timing{
	ttl: 2 * time.Second, renew: 500 * time.Millisecond, renewDeadline: 90 * time.Second,
	firstAttempt: 300 * time.Millisecond, maxAttempt: 2 * time.Second, patience: 6 * time.Second,
	pause: 100 * time.Millisecond, release: time.Second, now: time.Now,
}

// attemptTimeout returns the timeout of the next attempt after a number of attempts without an answer. Each timeout is
// used twice, because one of three members may be gone. It grows, so that a slow registry can eventually answer.
func (t timing) attemptTimeout(unheard int) time.Duration {
	return min(t.firstAttempt<<min(unheard/2, 16), t.maxAttempt)
}

// maxExpiry is the time after which the lease of a dead holder has certainly expired, even if leases are longer than
// usual or a leader is being elected.
const maxExpiry = 10 * time.Second

// Limits of a transaction, well below the server's default limits of 1.5 MiB and 128 operations.
const (
	maxTxnBytes = 1 << 20
	maxTxnOps   = 100
)

// Registry is one client of a registry in etcd.
type Registry struct {
	display  string // address for messages
	prefix   string // prefix of its keys, with a trailing slash
	client   *clientv3.Client
	members  *memberSelector
	leases   pb.LeaseClient
	t        timing
	txnBytes int
	ctx      context.Context // canceled by Close
	cancel   func()
	renewals sync.WaitGroup

	mu    sync.Mutex // guards lease, and serialises Acquire and Close
	lease *lease     // newest lease of this client; nil: none so far
}

// Open opens the registry at an address (see Parse). It does not contact etcd yet, so etcd may be unavailable.
func Open(ctx context.Context, address string) (*Registry, error) {
	return openWith(ctx, address, defaultTiming)
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
	// Reconnect faster than the default, because leases are short.
	again := grpc.ConnectParams{MinConnectTimeout: t.maxAttempt, Backoff: backoff.Config{
		BaseDelay: 50 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 300 * time.Millisecond,
	}}
	hosts := shuffled(a.hosts)
	client, err := clientv3.New(clientv3.Config{
		Endpoints: hosts[:1], TLS: secure, Logger: zap.NewNop(),
		Context:         context.WithoutCancel(ctx), // Close ends it
		DialOptions:     []grpc.DialOption{grpc.WithConnectParams(again), grpc.WithChainUnaryInterceptor(failFast)},
		MaxUnaryRetries: 1, // Registry.retry retries instead
		// Keepalives detect a stalled member, and, within the timeout, a member whose machine is gone.
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: time.Second,
	})
	if err != nil {
		return nil, fmt.Errorf("registry: %s: %w", a, err)
	}
	r := &Registry{
		display: a.String(), prefix: a.prefix + "/", client: client,
		members: &memberSelector{client: client, hosts: hosts},
		leases:  pb.NewLeaseClient(client.ActiveConnection()), t: t, txnBytes: maxTxnBytes,
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r, nil
}

// failFast makes a call fail immediately if no member can be reached. By default the client would wait until the
// timeout and lose the reason.
func failFast(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, call grpc.UnaryInvoker,
	o ...grpc.CallOption,
) error {
	return call(ctx, method, req, reply, conn, append(o, grpc.WaitForReady(false))...)
}

// checkOpen returns an error if the client cannot be used.
func (r *Registry) checkOpen(ctx context.Context) error {
	if r.ctx.Err() != nil {
		return registry.ErrClosed
	}
	return ctx.Err()
}

// withTimeout returns a context with a timeout that is also canceled when the registry is closed.
func (r *Registry) withTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, d)
	stop := context.AfterFunc(r.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// Load implements registry.Registry. It is a single transaction, so head and chunks are consistent.
func (r *Registry) Load(ctx context.Context) (doc []byte, revision uint64, err error) {
	err = r.retry(ctx, func(ctx context.Context) error {
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
		return nil, 0, corruptError{err}
	}
	return doc, uint64(heads[0].ModRevision), nil
}

// corruptError means that a document cannot be read, which a retry would not change.
type corruptError struct{ error }

func (b corruptError) Unwrap() error { return b.error }

// retry calls try until it succeeds, returns a decision, or patience is exceeded. An attempt may fail although it
// took effect, so try must be repeatable.
func (r *Registry) retry(ctx context.Context, try func(ctx context.Context) error) error {
	until := time.Now().Add(r.t.patience)
	for unheard := 0; ; { // number of attempts without an answer
		if err := r.checkOpen(ctx); err != nil {
			return err
		}
		turn := r.members.current()
		one, cancel := r.withTimeout(ctx, r.t.attemptTimeout(unheard))
		err := try(one)
		if one.Err() != nil {
			unheard++
		}
		cancel()
		if err == nil || errors.Is(err, errFinal) {
			return err
		}
		if unusable := r.checkOpen(ctx); unusable != nil {
			return unusable
		}
		err, passes := r.explainError(err)
		if !passes || time.Now().After(until) {
			return err
		}
		if errors.Is(err, errChanged) {
			continue // the registry is available
		}
		r.members.reportFailure(turn)
		select {
		case <-time.After(r.t.pause):
		case <-ctx.Done():
		case <-r.ctx.Done():
		}
	}
}

// explainError converts an error of etcd's client to one line, and reports whether a retry may help.
func (r *Registry) explainError(err error) (explained error, passes bool) {
	if b, is := errors.AsType[corruptError](err); is {
		return fmt.Errorf("registry: %s: %w", r.display, b.error), false
	}
	if errors.Is(err, errChanged) {
		return fmt.Errorf("%w: %s: %w", registry.ErrUnavailable, r.display, err), true
	}
	code, text := status.Code(err), status.Convert(err).Message()
	if known, is := errors.AsType[rpctypes.EtcdError](err); is {
		code, text = known.Code(), known.Error()
	}
	if errors.Is(err, context.DeadlineExceeded) { // the client's own error, which has no code
		code, text = codes.DeadlineExceeded, fmt.Sprintf("no answer within %v", r.t.maxAttempt)
	}
	if _, quoted, found := strings.Cut(text, "connection error: desc = "); found {
		if reason, err := strconv.Unquote(quoted); err == nil {
			text = strings.TrimPrefix(reason, "transport: ")
		}
	}
	text = strings.Join(strings.Fields(text), " ")
	switch {
	case text == rpctypes.ErrNoSpace.Error():
		return fmt.Errorf("registry: %s: %w: %s", r.display, syscall.ENOSPC, text), false
	case code == codes.Unavailable, code == codes.DeadlineExceeded, code == codes.Canceled, code == codes.Internal,
		code == codes.ResourceExhausted:
		return fmt.Errorf("%w: %s: %s", registry.ErrUnavailable, r.display, text), true
	}
	return fmt.Errorf("registry: %s: %s", r.display, text), false
}

// Close implements registry.Registry.
func (r *Registry) Close() error {
	if r.ctx.Err() != nil {
		return nil
	}
	r.cancel() // cancel waiting calls
	r.mu.Lock()
	defer r.mu.Unlock()
	var err error
	if r.lease != nil {
		err = r.lease.Release()
	}
	r.renewals.Wait()
	return errors.Join(err, r.client.Close())
}

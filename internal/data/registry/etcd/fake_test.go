package etcd

import (
	"bytes"
	"context"
	"crypto/tls"
	"maps"
	"net"
	"path"
	"slices"
	"sync"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
)

// fake is a server that answers what this package asks of etcd, from memory. It is reached by
// the real client, over a real connection. Its leases end only when a test says so.
type fake struct {
	pb.UnimplementedKVServer
	pb.UnimplementedLeaseServer
	addr string
	// proceed lets the one call go on that is late, proceeded is closed when it has.
	proceed, proceeded chan struct{}

	mu       sync.Mutex // guards what follows
	revision int64
	keys     map[string]*mvccpb.KeyValue
	leases   map[int64]bool
	granted  int64
	calls    map[string]int
	put      int                     // bytes
	strike   func(call string) fault // what becomes of the next call; nil: nothing
}

// fault is what may become of a call.
type fault int

const (
	none    fault = iota
	lost          // it never arrives
	unheard       // it takes effect, and its reply is lost
	late          // it takes effect when a test says so, though its caller may have gone
)

// newFake serves a new one, by TLS if there is a configuration.
func newFake(t testing.TB, secure *tls.Config) *fake {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{
		addr: l.Addr().String(), revision: 1, keys: map[string]*mvccpb.KeyValue{}, leases: map[int64]bool{},
		calls: map[string]int{}, proceed: make(chan struct{}), proceeded: make(chan struct{}),
	}
	o := []grpc.ServerOption{grpc.UnaryInterceptor(f.unary), grpc.StreamInterceptor(f.stream)}
	if secure != nil {
		o = append(o, grpc.Creds(credentials.NewTLS(secure)))
	}
	s := grpc.NewServer(o...)
	pb.RegisterKVServer(s, f)
	pb.RegisterLeaseServer(s, f)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-ended })
	return f
}

func (f *fake) fate(method string) fault {
	f.mu.Lock()
	call := path.Base(method)
	f.calls[call]++
	strike := f.strike
	f.mu.Unlock()
	if strike == nil {
		return none
	}
	return strike(call)
}

// strikes says what becomes of calls from now on.
func (f *fake) strikes(strike func(call string) fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.strike = strike
}

func (f *fake) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	fate := f.fate(info.FullMethod)
	switch fate {
	case lost:
		return nil, status.Error(codes.Unavailable, "lost on its way")
	case late:
		<-f.proceed
		defer close(f.proceeded)
	}
	resp, err := handle(ctx, req)
	if fate == unheard {
		return nil, status.Error(codes.Unavailable, "its reply was lost")
	}
	return resp, err
}

func (f *fake) stream(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	if f.fate(info.FullMethod) != none {
		return status.Error(codes.Unavailable, "lost on its way")
	}
	return handle(srv, s)
}

func (f *fake) header() *pb.ResponseHeader { return &pb.ResponseHeader{Revision: f.revision} }

func (f *fake) Range(_ context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.find(r), nil
}

func (f *fake) find(r *pb.RangeRequest) *pb.RangeResponse {
	resp := &pb.RangeResponse{Header: f.header()}
	for _, key := range slices.Sorted(maps.Keys(f.keys)) {
		if key != string(r.Key) && (len(r.RangeEnd) == 0 || key < string(r.Key) || key >= string(r.RangeEnd)) {
			continue
		}
		found := copyOf(f.keys[key])
		if r.KeysOnly {
			found.Value = nil
		}
		resp.Kvs = append(resp.Kvs, found)
	}
	return resp
}

func copyOf(kv *mvccpb.KeyValue) *mvccpb.KeyValue {
	return &mvccpb.KeyValue{
		Key: kv.Key, Value: kv.Value, CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision, Lease: kv.Lease,
	}
}

func (f *fake) holds(c *pb.Compare) bool {
	kv := f.keys[string(c.Key)]
	if kv == nil {
		kv = &mvccpb.KeyValue{}
	}
	switch c.Target {
	case pb.Compare_CREATE:
		return kv.CreateRevision == c.GetCreateRevision()
	case pb.Compare_VALUE:
		return kv.CreateRevision > 0 && bytes.Equal(kv.Value, c.GetValue())
	}
	return kv.ModRevision == c.GetModRevision()
}

func (f *fake) Txn(_ context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	resp, ops, size := &pb.TxnResponse{Succeeded: true}, r.Success, 0
	for _, c := range r.Compare {
		resp.Succeeded = resp.Succeeded && f.holds(c)
	}
	if !resp.Succeeded {
		ops = r.Failure
	}
	touched, writes := map[string]bool{}, false
	for _, op := range r.Success {
		key := string(op.GetRequestPut().GetKey()) + string(op.GetRequestDeleteRange().GetKey())
		size += len(op.GetRequestPut().GetValue()) + len(key)
		if key != "" && touched[key] {
			return nil, rpctypes.ErrGRPCDuplicateKey
		}
		touched[key] = true
	}
	switch { // as a server that nobody has configured
	case len(r.Success) > 128:
		return nil, rpctypes.ErrGRPCTooManyOps
	case size > 1536<<10:
		return nil, rpctypes.ErrGRPCRequestTooLarge
	}
	for _, op := range ops {
		one := &pb.ResponseOp{}
		if get := op.GetRequestRange(); get != nil {
			one.Response = &pb.ResponseOp_ResponseRange{ResponseRange: f.find(get)}
		} else {
			f.write(op)
			writes = true
		}
		resp.Responses = append(resp.Responses, one)
	}
	if writes {
		f.revision++
	}
	resp.Header = f.header()
	return resp, nil
}

func (f *fake) write(op *pb.RequestOp) {
	if del := op.GetRequestDeleteRange(); del != nil {
		for key := range f.keys {
			if key == string(del.Key) || len(del.RangeEnd) > 0 && key >= string(del.Key) && key < string(del.RangeEnd) {
				delete(f.keys, key)
			}
		}
		return
	}
	put := op.GetRequestPut()
	f.put += len(put.Value)
	kv := f.keys[string(put.Key)]
	if kv == nil {
		kv = &mvccpb.KeyValue{Key: put.Key, CreateRevision: f.revision + 1}
		f.keys[string(put.Key)] = kv
	}
	kv.Value, kv.Lease, kv.ModRevision = put.Value, put.Lease, f.revision+1
}

func (f *fake) LeaseGrant(_ context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.granted++
	f.leases[f.granted] = true
	return &pb.LeaseGrantResponse{Header: f.header(), ID: f.granted, TTL: r.TTL}, nil
}

func (f *fake) LeaseRevoke(_ context.Context, r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.leases[r.ID] {
		return nil, rpctypes.ErrGRPCLeaseNotFound
	}
	f.over(r.ID)
	return &pb.LeaseRevokeResponse{Header: f.header()}, nil
}

func (f *fake) over(lease int64) {
	delete(f.leases, lease)
	f.revision++
	maps.DeleteFunc(f.keys, func(_ string, kv *mvccpb.KeyValue) bool { return kv.Lease == lease })
}

// expire ends all leases.
func (f *fake) expire() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for lease := range f.leases {
		f.over(lease)
	}
}

func (f *fake) LeaseKeepAlive(s pb.Lease_LeaseKeepAliveServer) error {
	for {
		r, err := s.Recv()
		if err != nil {
			return nil // the client has gone
		}
		f.mu.Lock()
		resp := &pb.LeaseKeepAliveResponse{Header: f.header(), ID: r.ID}
		if f.leases[r.ID] {
			resp.TTL = 2
		}
		f.mu.Unlock()
		if err := s.Send(resp); err != nil {
			return nil
		}
	}
}

package registrytest

import (
	"context"
	"crypto/tls"
	"maps"
	"net"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
)

// EtcdServer is an in-memory etcd server. It answers the calls that package etcd makes over real connections, with
// etcd's limits. Leases end only when a test ends them.
type EtcdServer struct {
	pb.UnimplementedKVServer
	pb.UnimplementedLeaseServer
	Addr string
	// ResumeDelayed lets the single Delayed call continue; DelayedDone is closed when it has finished.
	ResumeDelayed, DelayedDone chan struct{}

	Mu       sync.Mutex // guards the fields below
	Keys     map[string]*mvccpb.KeyValue
	Leases   map[int64]bool
	Calls    map[string]int // number of calls by method
	Written  int            // bytes written
	revision int64
	granted  int64
	faultOf  func(call string) Fault // returns the fault of the next call; nil: no faults
}

// Fault is a fault of a call.
type Fault int

// The faults of a call.
const (
	NoFault     Fault = iota
	RequestLost       // the request is lost
	ReplyLost         // the call takes effect, but the reply is lost
	Delayed           // the call takes effect when the test says so, even if its caller is gone
)

// NewEtcd starts a server that listens until the test ends. It uses TLS if secure is not nil.
func NewEtcd(t testing.TB, secure *tls.Config) *EtcdServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &EtcdServer{
		Addr: l.Addr().String(), revision: 1, Keys: map[string]*mvccpb.KeyValue{}, Leases: map[int64]bool{},
		Calls: map[string]int{}, ResumeDelayed: make(chan struct{}), DelayedDone: make(chan struct{}),
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

func (f *EtcdServer) nextFault(method string) Fault {
	f.Mu.Lock()
	call := path.Base(method)
	f.Calls[call]++
	strike := f.faultOf
	f.Mu.Unlock()
	if strike == nil {
		return NoFault
	}
	return strike(call)
}

// InjectFaults sets the func that returns the faults of further calls; nil: no faults.
func (f *EtcdServer) InjectFaults(strike func(call string) Fault) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	f.faultOf = strike
}

func (f *EtcdServer) unary(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler,
) (any, error) {
	action := f.nextFault(info.FullMethod)
	switch action {
	case RequestLost:
		return nil, status.Error(codes.Unavailable, "the request was lost")
	case Delayed:
		<-f.ResumeDelayed
		defer close(f.DelayedDone)
	}
	resp, err := handle(ctx, req)
	if action == ReplyLost {
		return nil, status.Error(codes.Unavailable, "the reply was lost")
	}
	return resp, err
}

func (f *EtcdServer) stream(
	srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler,
) error {
	if f.nextFault(info.FullMethod) != NoFault {
		return status.Error(codes.Unavailable, "the request was lost")
	}
	return handle(srv, s)
}

func (f *EtcdServer) header() *pb.ResponseHeader { return &pb.ResponseHeader{Revision: f.revision} }

func (f *EtcdServer) Range(_ context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	return f.find(r), nil
}

func (f *EtcdServer) find(r *pb.RangeRequest) *pb.RangeResponse {
	resp := &pb.RangeResponse{Header: f.header()}
	for _, key := range slices.Sorted(maps.Keys(f.Keys)) {
		if key != string(r.Key) && (len(r.RangeEnd) == 0 || key < string(r.Key) || key >= string(r.RangeEnd)) {
			continue
		}
		found := Copy(f.Keys[key])
		if r.KeysOnly {
			found.Value = nil
		}
		resp.Kvs = append(resp.Kvs, found)
	}
	return resp
}

// Copy returns a copy of a key and its value.
func Copy(kv *mvccpb.KeyValue) *mvccpb.KeyValue {
	return &mvccpb.KeyValue{
		Key: kv.Key, Value: kv.Value, CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision, Lease: kv.Lease,
	}
}

func (f *EtcdServer) compare(c *pb.Compare) bool {
	kv := f.Keys[string(c.Key)]
	if kv == nil {
		kv = &mvccpb.KeyValue{}
	}
	if c.Target == pb.Compare_CREATE {
		return kv.CreateRevision == c.GetCreateRevision()
	}
	return kv.ModRevision == c.GetModRevision()
}

func (f *EtcdServer) Txn(_ context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	resp, ops, size := &pb.TxnResponse{Succeeded: true}, r.Success, 0
	for _, c := range r.Compare {
		resp.Succeeded = resp.Succeeded && f.compare(c)
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
	switch { // the limits of an etcd server with default settings
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

func (f *EtcdServer) write(op *pb.RequestOp) {
	if del := op.GetRequestDeleteRange(); del != nil {
		delete(f.Keys, string(del.Key))
		return
	}
	put := op.GetRequestPut()
	f.Written += len(put.Value)
	kv := f.Keys[string(put.Key)]
	if kv == nil {
		kv = &mvccpb.KeyValue{Key: put.Key, CreateRevision: f.revision + 1}
		f.Keys[string(put.Key)] = kv
	}
	kv.Value, kv.Lease, kv.ModRevision = put.Value, put.Lease, f.revision+1
}

func (f *EtcdServer) LeaseGrant(_ context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	f.granted++
	f.Leases[f.granted] = true
	return &pb.LeaseGrantResponse{Header: f.header(), ID: f.granted, TTL: r.TTL}, nil
}

func (f *EtcdServer) LeaseRevoke(_ context.Context, r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	if !f.Leases[r.ID] {
		return nil, rpctypes.ErrGRPCLeaseNotFound
	}
	f.expire(r.ID)
	return &pb.LeaseRevokeResponse{Header: f.header()}, nil
}

func (f *EtcdServer) expire(lease int64) {
	delete(f.Leases, lease)
	f.revision++
	maps.DeleteFunc(f.Keys, func(_ string, kv *mvccpb.KeyValue) bool { return kv.Lease == lease })
}

// Expire ends all leases.
func (f *EtcdServer) Expire() {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	for lease := range f.Leases {
		f.expire(lease)
	}
}

// ExpireBelow ends the leases of keys below a prefix.
func (f *EtcdServer) ExpireBelow(prefix string) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	for key, kv := range maps.Clone(f.Keys) {
		if strings.HasPrefix(key, prefix) && kv.Lease != 0 {
			f.expire(kv.Lease)
		}
	}
}

func (f *EtcdServer) LeaseKeepAlive(s pb.Lease_LeaseKeepAliveServer) error {
	for {
		r, err := s.Recv()
		if err != nil {
			return nil // the client has disconnected
		}
		f.Mu.Lock()
		resp := &pb.LeaseKeepAliveResponse{Header: f.header(), ID: r.ID}
		if f.Leases[r.ID] {
			resp.TTL = 2
		}
		f.Mu.Unlock()
		if err := s.Send(resp); err != nil {
			return nil
		}
	}
}

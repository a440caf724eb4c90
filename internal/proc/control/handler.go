package control

import (
	"context"
	"net/http"

	"connectrpc.com/connect"

	"github.com/perdure/perdure"
	controlv1 "github.com/perdure/perdure/internal/proc/control/v1"
)

// Limits on the size of one message, in bytes. The largest response is the view of 65536 shards.
const (
	maxRequestBytes  = 64 << 10
	maxResponseBytes = 64 << 20
)

// Path is the prefix of the paths that the handler of NewHandler serves.
const Path = "/" + controlv1.ControlName + "/"

// NewHandler returns a handler that serves a job's control API below Path. It answers other paths with 404, so it can
// be used alone or together with other handlers.
func NewHandler(b Backend) http.Handler {
	path, h := controlv1.NewControlHandler(&service{b}, connect.WithReadMaxBytes(maxRequestBytes),
		connect.WithCodec(strictJSON("json")), connect.WithCodec(strictJSON("json; charset=utf-8")))
	mux := http.NewServeMux()
	mux.Handle(path, h)
	return mux
}

// service adapts a Backend to the generated interface.
type service struct{ backend Backend }

func (s *service) Status(ctx context.Context, _ *controlv1.StatusRequest) (*controlv1.StatusResponse, error) {
	st, err := s.backend.Status(ctx)
	if err != nil {
		return nil, toConnect(err)
	}
	return convert[*controlv1.StatusResponse](st)
}

func (s *service) View(ctx context.Context, _ *controlv1.ViewRequest) (*controlv1.ViewResponse, error) {
	v, err := s.backend.View(ctx)
	if err != nil {
		return nil, toConnect(err)
	}
	return convert[*controlv1.ViewResponse](v)
}

func (s *service) Fault(ctx context.Context, r *controlv1.FaultRequest) (*controlv1.FaultResponse, error) {
	accepted, err := s.backend.Fault(ctx, r.GetSpec())
	if err != nil {
		return nil, toConnect(err)
	}
	return &controlv1.FaultResponse{Accepted: accepted}, nil
}

func (s *service) Scale(ctx context.Context, r *controlv1.ScaleRequest) (*controlv1.ScaleResponse, error) {
	change := Scale{Workers: int(r.GetWorkers()), At: perdure.Clock(r.GetAt())}
	for _, slot := range r.GetLeave() {
		change.Leave = append(change.Leave, perdure.Slot(slot))
	}
	if err := change.check(); err != nil {
		return nil, toConnect(err)
	}
	accepted, err := s.backend.Scale(ctx, change)
	if err != nil {
		return nil, toConnect(err)
	}
	return &controlv1.ScaleResponse{Accepted: accepted}, nil
}

func (s *service) Drain(ctx context.Context, r *controlv1.DrainRequest) (*controlv1.DrainResponse, error) {
	notice, err := parseNotice(r.GetNoticeMs())
	if err != nil {
		return nil, toConnect(err)
	}
	d, err := s.backend.Drain(ctx, Drain{Target: r.GetWho(), Notice: notice})
	if err != nil {
		return nil, toConnect(err)
	}
	return convert[*controlv1.DrainResponse](d)
}

func (s *service) Stop(ctx context.Context, _ *controlv1.StopRequest) (*controlv1.StopResponse, error) {
	if err := s.backend.Stop(ctx); err != nil {
		return nil, toConnect(err)
	}
	return &controlv1.StopResponse{}, nil
}

package control

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	controlv1 "github.com/perdure/perdure/internal/proc/control/v1"
	"github.com/perdure/perdure/internal/proc/keys"
)

// Client is a client of a job's control API. It implements Backend.
type Client struct {
	addr string
	ring *keys.Ring // nil: the job has no keys
	rpc  controlv1.ControlClient
}

// NewClient returns a client of the coordinator at addr, which is "host:port" or a URL that starts with http:// or
// https://. It presents the run's secret and, for a job with keys, the certificate in ring, which may be nil. It
// connects on first use. Each call ends when its context is done.
func NewClient(addr string, secret perdure.Secret, ring *keys.Ring) *Client {
	url, caller := addr, http.DefaultClient
	if !strings.Contains(addr, "://") {
		url = "http://" + addr
	}
	if ring != nil {
		url = "https://" + strings.TrimPrefix(strings.TrimPrefix(url, "http://"), "https://")
		caller = &http.Client{Transport: &http.Transport{
			TLSClientConfig:   ring.Client(keys.Coordinator),
			ForceAttemptHTTP2: true,
		}}
	}
	return &Client{addr, ring, controlv1.NewControlClient(caller, url,
		connect.WithReadMaxBytes(maxResponseBytes), connect.WithInterceptors(addSecret(secret)))}
}

var _ Backend = (*Client)(nil)

// addSecret adds the secret to each call.
func addSecret(secret perdure.Secret) connect.UnaryInterceptorFunc {
	return func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
			if secret != "" {
				r.Header().Set("Authorization", "Bearer "+secret.Reveal())
			}
			return next(ctx, r)
		}
	}
}

// StatusJSON returns Status as JSON, for programs.
func (c *Client) StatusJSON(ctx context.Context) ([]byte, error) {
	r, err := c.rpc.Status(ctx, &controlv1.StatusRequest{})
	if err != nil {
		return nil, c.failed(ctx, err)
	}
	return protojson.MarshalOptions{Multiline: true, EmitUnpopulated: true}.Marshal(r)
}

// Status implements Backend.
func (c *Client) Status(ctx context.Context) (Status, error) {
	r, err := c.rpc.Status(ctx, &controlv1.StatusRequest{})
	if err != nil {
		return Status{}, c.failed(ctx, err)
	}
	return convert[Status](r)
}

// View implements Backend.
func (c *Client) View(ctx context.Context) (protocol.View, error) {
	r, err := c.rpc.View(ctx, &controlv1.ViewRequest{})
	if err != nil {
		return protocol.View{}, c.failed(ctx, err)
	}
	return convert[protocol.View](r)
}

// Fault implements Backend.
func (c *Client) Fault(ctx context.Context, spec string) (string, error) {
	r, err := c.rpc.Fault(ctx, &controlv1.FaultRequest{Spec: spec})
	return r.GetAccepted(), c.failed(ctx, err)
}

// Scale implements Backend.
func (c *Client) Scale(ctx context.Context, s Scale) (string, error) {
	// An integer that does not fit into the message would be truncated.
	odd := func(n int) bool { return int(int32(n)) != n }
	if odd(s.Workers) || slices.ContainsFunc(s.Leave, func(slot perdure.Slot) bool { return odd(int(slot)) }) {
		return "", perdure.Usagef("the number of workers or a slot is out of range; a job has at most %d slots",
			perdure.MaxSlots)
	}
	req := &controlv1.ScaleRequest{Workers: int32(s.Workers), At: int64(s.At)}
	for _, slot := range s.Leave {
		req.Leave = append(req.Leave, int32(slot))
	}
	r, err := c.rpc.Scale(ctx, req)
	return r.GetAccepted(), c.failed(ctx, err)
}

// milliseconds rounds away from 0, because a notice of 0 means something else.
func milliseconds(d time.Duration) int64 {
	ms := d.Milliseconds()
	switch rest := d % time.Millisecond; {
	case rest > 0:
		ms++
	case rest < 0:
		ms--
	}
	return ms
}

// Drain implements Backend.
func (c *Client) Drain(ctx context.Context, d Drain) (DrainResult, error) {
	r, err := c.rpc.Drain(ctx, &controlv1.DrainRequest{Who: d.Target, NoticeMs: milliseconds(d.Notice)})
	if err != nil {
		return DrainResult{}, c.failed(ctx, err)
	}
	return convert[DrainResult](r)
}

// Stop implements Backend.
func (c *Client) Stop(ctx context.Context) error {
	_, err := c.rpc.Stop(ctx, &controlv1.StopRequest{})
	return c.failed(ctx, err)
}

package control

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/keys"
)

// kinds pairs the errors that keep their kind on the way with the Connect codes
// that carry it. Each code stands once: the client reads the table backwards.
var kinds = []struct {
	err  error
	code connect.Code
}{
	{perdure.ErrUsage, connect.CodeInvalidArgument},
	{perdure.ErrStopped, connect.CodeFailedPrecondition},
	{perdure.ErrFenced, connect.CodeAborted},
	{perdure.ErrRefused, connect.CodePermissionDenied},
	{perdure.ErrRefused, connect.CodeUnauthenticated}, // said by the Gate alone
	{context.Canceled, connect.CodeCanceled},
	{context.DeadlineExceeded, connect.CodeDeadlineExceeded},
}

// toConnect gives a backend's error the code that carries its kind.
func toConnect(err error) error {
	if err == nil {
		return nil
	}
	for _, k := range kinds {
		if errors.Is(err, k.err) {
			return connect.NewError(k.code, err)
		}
	}
	return connect.NewError(connect.CodeInternal, err)
}

// remoteError is a coordinator's error as its client sees it: the message of
// the one and the kind of the other.
type remoteError struct {
	message string
	kind    error
}

func (e *remoteError) Error() string { return e.message }
func (e *remoteError) Unwrap() error { return e.kind }

// spokePlain is what is left of the answer of a server that speaks TLS alone to a call that does not.
const spokePlain = "400 Bad Request"

// failed turns a call's error back into the backend's error. If the error did not come from a Backend, the
// coordinator has refused the connection, or none answers.
func (c *Client) failed(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("control: %s: %w", c.addr, ctx.Err())
	}
	var said *connect.Error
	if !errors.As(err, &said) {
		return fmt.Errorf("control: %s: %w", c.addr, err)
	}
	if strings.Contains(said.Message(), spokePlain) {
		return fmt.Errorf("%w: the job at %s has keys; name them with --keys", perdure.ErrUsage, c.addr)
	}
	if !connect.IsWireError(err) {
		if why := c.declined(ctx, err); why != nil {
			return why
		}
		return fmt.Errorf("%w at %s: %s", ErrUnreachable, c.addr, said.Message())
	}
	for _, k := range kinds {
		if said.Code() == k.code {
			return &remoteError{said.Message(), k.err}
		}
	}
	return fmt.Errorf("control: the coordinator at %s: %s", c.addr, said.Message())
}

// probePatience is how long a coordinator may take to say that it does not accept a certificate.
const probePatience = 2 * time.Second

// declined says which certificate is not accepted, if that is why a call with keys has failed; nil: it is not. In TLS
// 1.3 the other side says so only after the handshake, when a request may be on its way: then the connection breaks,
// and its reason is lost. So a second connection is opened, on which nothing is sent.
func (c *Client) declined(ctx context.Context, err error) error {
	var dial *net.OpError
	if c.ring == nil || errors.As(err, &dial) && dial.Op == "dial" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, probePatience)
	defer cancel()
	at := c.addr
	if _, after, is := strings.Cut(at, "://"); is {
		at = after
	}
	d := tls.Dialer{Config: c.ring.Client(keys.Coordinator)}
	conn, err := d.DialContext(ctx, "tcp", strings.TrimSuffix(at, "/"))
	if err == nil {
		defer conn.Close()
		end, _ := ctx.Deadline() // it has one
		_ = conn.SetReadDeadline(end)
		_, err = conn.Read(make([]byte, 1))
	}
	var plain tls.RecordHeaderError
	if errors.As(err, &plain) {
		return fmt.Errorf("%w: the job at %s has no keys; leave out --keys", perdure.ErrUsage, c.addr)
	}
	if why := c.ring.Declined(err); why != nil {
		return &remoteError{fmt.Sprintf("the coordinator at %s: %v", c.addr, why), perdure.ErrRefused}
	}
	return nil
}

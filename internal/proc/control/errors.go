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

// errorCodes maps the errors that keep their kind in transit to Connect codes. Each code occurs once, because the
// client uses the table in reverse.
var errorCodes = []struct {
	err  error
	code connect.Code
}{
	{perdure.ErrUsage, connect.CodeInvalidArgument},
	{perdure.ErrStopped, connect.CodeFailedPrecondition},
	{perdure.ErrFenced, connect.CodeAborted},
	{perdure.ErrRefused, connect.CodePermissionDenied},
	{perdure.ErrRefused, connect.CodeUnauthenticated}, // used only by the Authorizer
	{context.Canceled, connect.CodeCanceled},
	{context.DeadlineExceeded, connect.CodeDeadlineExceeded},
}

// toConnect wraps a backend's error with the code for its kind.
func toConnect(err error) error {
	if err == nil {
		return nil
	}
	for _, k := range errorCodes {
		if errors.Is(err, k.err) {
			return connect.NewError(k.code, err)
		}
	}
	return connect.NewError(connect.CodeInternal, err)
}

// remoteError is a coordinator's error at its client, with the original message and kind.
type remoteError struct {
	message string
	kind    error
}

func (e *remoteError) Error() string { return e.message }
func (e *remoteError) Unwrap() error { return e.kind }

// plainHTTP is part of the answer of a TLS server to a plain HTTP request.
const plainHTTP = "400 Bad Request"

// failed converts a call's error back to the backend's error. An error that does not come from a Backend means that the
// coordinator rejected the connection, or that no coordinator answers.
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
	if strings.Contains(said.Message(), plainHTTP) {
		return perdure.Usagef("the job at %s requires keys; specify them with --keys", c.addr)
	}
	if !connect.IsWireError(err) {
		if why := c.rejectedCertificate(ctx, err); why != nil {
			return why
		}
		return fmt.Errorf("%w at %s: %s", ErrUnreachable, c.addr, said.Message())
	}
	for _, k := range errorCodes {
		if said.Code() == k.code {
			return &remoteError{said.Message(), k.err}
		}
	}
	return fmt.Errorf("control: the coordinator at %s: %s", c.addr, said.Message())
}

// probeTimeout is how long a coordinator may take to reject a certificate.
const probeTimeout = 2 * time.Second

// rejectedCertificate returns which certificate was rejected if that is why a call with keys failed, and otherwise nil.
// In TLS 1.3, the server rejects a certificate only after the handshake, when a request may already be in flight. The
// connection then breaks and the reason is lost. So declined opens a second connection and sends nothing on it.
func (c *Client) rejectedCertificate(ctx context.Context, err error) error {
	var dial *net.OpError
	if c.ring == nil || errors.As(err, &dial) && dial.Op == "dial" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	at := c.addr
	if _, after, is := strings.Cut(at, "://"); is {
		at = after
	}
	d := tls.Dialer{Config: c.ring.Client(keys.Coordinator)}
	conn, err := d.DialContext(ctx, "tcp", strings.TrimSuffix(at, "/"))
	if err == nil {
		defer conn.Close()
		end, _ := ctx.Deadline() // always set
		_ = conn.SetReadDeadline(end)
		_, err = conn.Read(make([]byte, 1))
	}
	if _, is := errors.AsType[tls.RecordHeaderError](err); is {
		return perdure.Usagef("the job at %s does not use keys; remove --keys", c.addr)
	}
	if why := c.ring.RejectedCertificate(err); why != nil {
		return &remoteError{fmt.Sprintf("the coordinator at %s: %v", c.addr, why), perdure.ErrRefused}
	}
	return nil
}

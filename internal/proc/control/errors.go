package control

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect"

	"github.com/perdure/perdure"
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

// fromConnect turns what a call to addr returned back into the backend's error.
// What did not come from a Backend means that no coordinator answers at addr.
func fromConnect(ctx context.Context, addr string, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("control: %s: %w", addr, ctx.Err())
	}
	var c *connect.Error
	if !errors.As(err, &c) {
		return fmt.Errorf("control: %s: %w", addr, err)
	}
	if strings.Contains(c.Message(), spokePlain) {
		return fmt.Errorf("%w: the job at %s has keys; name them with --keys", perdure.ErrUsage, addr)
	}
	if !connect.IsWireError(err) {
		return fmt.Errorf("%w at %s: %s", ErrUnreachable, addr, c.Message())
	}
	for _, k := range kinds {
		if c.Code() == k.code {
			return &remoteError{c.Message(), k.err}
		}
	}
	return fmt.Errorf("control: the coordinator at %s: %s", addr, c.Message())
}

package s3

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// connectTimeout is the timeout for establishing a connection.
const connectTimeout = 5 * time.Second

// newTransport returns a transport whose connections fail when no data is transferred for the duration silence, so that
// a frozen server does not block. (A timeout of whole requests would depend on their size.)
func newTransport(silence time.Duration) *http.Transport {
	dialer := net.Dialer{Timeout: connectTimeout}
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dialer.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &deadlineConn{c, silence}, nil
		},
		TLSHandshakeTimeout: connectTimeout, MaxIdleConnsPerHost: 16,
		IdleConnTimeout: silence / 2, // do not reuse a connection that is about to time out
		WriteBufferSize: 64 << 10, ReadBufferSize: 64 << 10,
		DisableCompression: true, // lengths must equal those of the objects
	}
}

// deadlineConn is a connection that extends both deadlines whenever data is transferred.
type deadlineConn struct {
	net.Conn
	silence time.Duration
}

func (c *deadlineConn) Read(b []byte) (int, error) {
	if err := c.extendDeadlines(); err != nil {
		return 0, err
	}
	n, err := c.Conn.Read(b)
	return n, errors.Join(err, c.extendDeadlines())
}

// maxWriteBytes is the max size of one write: on a slow connection, a much larger one may take longer than silence.
const maxWriteBytes = 256 << 10

func (c *deadlineConn) Write(b []byte) (n int, err error) {
	for {
		if err := c.extendDeadlines(); err != nil {
			return n, err
		}
		m, err := c.Conn.Write(b[n:min(len(b), n+maxWriteBytes)])
		if n += m; err != nil || n == len(b) {
			return n, err
		}
	}
}

func (c *deadlineConn) extendDeadlines() error { return c.SetDeadline(time.Now().Add(c.silence)) }

// operation is the state of one call of a Store method.
type operation struct {
	silent atomic.Bool // the server has been silent for too long; requests are not retried
	cancel context.CancelCauseFunc
}

type operationKey struct{}

// errSilent ends an operation; its requests are not retried.
var errSilent = errors.New("the server does not answer")

// silenceTransport ends an operation when its server is silent. Otherwise the library would retry as often as after a
// rejection, which arrives immediately.
type silenceTransport struct{ http.RoundTripper }

func (q silenceTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	op, _ := r.Context().Value(operationKey{}).(*operation)
	if op != nil && op.silent.Load() {
		return nil, errSilent
	}
	res, err := q.RoundTripper.RoundTrip(r)
	if timeout := net.Error(nil); op != nil && errors.As(err, &timeout) && timeout.Timeout() &&
		r.Context().Err() == nil {
		op.silent.Store(true)
		op.cancel(errSilent)
	}
	return res, err
}

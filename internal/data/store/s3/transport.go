package s3

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// connectTime is how long it may take to be connected.
const connectTime = 5 * time.Second

// newTransport returns connections that end when nothing has come or gone for silence: a server that
// is frozen is not waited for. (Timeouts of whole requests would have to know how long those are.)
func newTransport(silence time.Duration) *http.Transport {
	dialer := net.Dialer{Timeout: connectTime}
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dialer.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &watched{c, silence}, nil
		},
		TLSHandshakeTimeout: connectTime, MaxIdleConnsPerHost: 16,
		IdleConnTimeout: silence / 2, // none is taken again whose end is near
		WriteBufferSize: 64 << 10, ReadBufferSize: 64 << 10,
		DisableCompression: true, // lengths must be those of the objects
	}
}

// watched is a connection. Whatever comes or goes puts the end of both off.
type watched struct {
	net.Conn
	silence time.Duration
}

func (c *watched) Read(b []byte) (int, error) {
	if err := c.alive(); err != nil {
		return 0, err
	}
	n, err := c.Conn.Read(b)
	return n, errors.Join(err, c.alive())
}

// writePiece is how much is written at once: on a slow way much more may take longer than silence.
const writePiece = 256 << 10

func (c *watched) Write(b []byte) (n int, err error) {
	for {
		if err := c.alive(); err != nil {
			return n, err
		}
		m, err := c.Conn.Write(b[n:min(len(b), n+writePiece)])
		if n += m; err != nil || n == len(b) {
			return n, err
		}
	}
}

func (c *watched) alive() error { return c.SetDeadline(time.Now().Add(c.silence)) }

// operation is what belongs to one call of a Store.
type operation struct {
	silent atomic.Bool // the server has not said anything for so long that there is no use in going on
	cancel context.CancelCauseFunc
}

type operationKey struct{}

// errSilent ends an operation. Its requests are not tried again.
var errSilent = errors.New("the server does not answer")

// quitter ends an operation whose server is silent. The library would try again, as often as it
// does after a refusal, which comes at once.
type quitter struct{ http.RoundTripper }

func (q quitter) RoundTrip(r *http.Request) (*http.Response, error) {
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

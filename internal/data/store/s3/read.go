package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/perdure/perdure/internal/data/store"
)

// Open implements store.Store. The content is requested at the first read.
func (s *Store) Open(name string) (store.Object, error) {
	var info minio.ObjectInfo
	err := s.do("open", name, func(ctx context.Context) (err error) {
		info, err = s.client.StatObject(ctx, s.addr.Bucket, s.key(name), minio.StatObjectOptions{})
		return err
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(s.ctx)
	return &object{s: s, name: name, size: info.Size, etag: info.ETag, ctx: ctx, cancel: cancel}, nil
}

// retryPauses are the pauses before a broken stream is requested again. Received data resets the sequence.
var retryPauses = []time.Duration{100 * time.Millisecond, 400 * time.Millisecond, time.Second}

// object is an object being read. If the stream breaks, it requests the remaining bytes.
type object struct {
	s      *Store
	name   string
	size   int64
	etag   string // the remaining bytes must belong to the same object
	ctx    context.Context
	cancel context.CancelFunc

	at       int64         // read so far
	body     io.ReadCloser // nil if not requested
	failures int           // failures since data was last received
}

func (o *object) Size() int64 { return o.size }

func (o *object) Read(b []byte) (int, error) {
	for {
		if o.at >= o.size || len(b) == 0 {
			if len(b) == 0 {
				return 0, nil
			}
			return 0, io.EOF
		}
		n, err := o.read(b[:min(int64(len(b)), o.size-o.at)])
		if n > 0 {
			o.at, o.failures = o.at+int64(n), 0
			return n, nil // an error recurs at the next read
		}
		if err = o.backOff(err); err != nil {
			return 0, err
		}
	}
}

// read reads from the stream and opens it if necessary.
func (o *object) read(b []byte) (n int, err error) {
	if o.body == nil {
		var opt minio.GetObjectOptions
		if o.etag != "" {
			err = opt.SetMatchETag(o.etag)
		}
		if o.at > 0 && err == nil {
			err = opt.SetRange(o.at, o.size-1)
		}
		if err == nil {
			o.body, _, _, err = o.s.client.GetObject(o.ctx, o.s.addr.Bucket, o.s.key(o.name), opt)
		}
		if err != nil {
			return 0, err
		}
	}
	n, err = o.body.Read(b)
	if n == 0 && err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// backOff closes the broken stream and waits before it is requested again. It returns an error if a retry is
// pointless.
func (o *object) backOff(err error) error {
	if err == nil {
		return nil
	}
	_ = o.closeBody() // the stream is broken anyway
	if answer := minio.ToErrorResponse(err); answer.StatusCode == http.StatusPreconditionFailed {
		return fmt.Errorf("store: read %s/%s: %w: it was replaced during the read", o.s, o.name, store.ErrCorrupt)
	}
	wrong := o.s.wrapError("read", o.name, err)
	if !errors.Is(wrong, store.ErrUnavailable) || o.failures >= len(retryPauses) {
		return wrong
	}
	select {
	case <-time.After(retryPauses[o.failures]):
		o.failures++
		return nil
	case <-o.ctx.Done():
		return wrong
	}
}

func (o *object) closeBody() (err error) {
	if o.body != nil {
		err, o.body = o.body.Close(), nil
	}
	return err
}

// Close ends the read and discards the unread bytes.
func (o *object) Close() error {
	o.cancel()
	_ = o.closeBody()
	return nil
}

// Package s3 implements store.Store in a bucket of Amazon S3 or of a server with the same protocol.
//
// An object of at most 8 MiB is stored by one request; a larger one by a multipart upload, in bounded memory. Either
// way the object exists completely or not at all. Failed uploads are aborted. A process that dies while it writes
// leaves an unfinished upload, which Unfinished lists and Delete aborts.
//
// Requests that are lost, or that the server rejects only for now, are retried with growing pauses. Requests to a
// server that has transferred no data for 15 s are not retried. If an operation fails for either reason, its error
// wraps store.ErrUnavailable, and the caller decides what to do.
//
// Credentials come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN), from
// AWS_SHARED_CREDENTIALS_FILE or ~/.aws/credentials (AWS_PROFILE), or, at AWS, from the machine's role. They occur in
// no address and in no error.
//
// All methods may be called concurrently.
package s3

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"golang.org/x/sync/errgroup"

	"github.com/perdure/perdure/internal/data/store"
)

const (
	// partBytes is the size of one part of an upload. An upload has at most 10,000 parts: 80 GB.
	partBytes = 8 << 20
	// concurrentParts is the number of concurrent parts per upload.
	concurrentParts = 2
	// concurrentUploads bounds memory: each upload needs concurrentParts+1 parts.
	concurrentUploads = 4
	concurrentDeletes = 8
	// maxAttempts is the max number of attempts per request; the pauses between them add up to 2 s.
	maxAttempts = 6
	// silenceTimeout is the time without any data transfer after which a server counts as unavailable.
	silenceTimeout = 15 * time.Second
)

// Options are for tests; all are optional.
type Options struct {
	// WrapTransport, if not nil, wraps the transport of all requests.
	WrapTransport func(http.RoundTripper) http.RoundTripper
	// SilenceTimeout is the time without any data transfer after which the server counts as unavailable; 0 means 15 s.
	SilenceTimeout time.Duration
}

// Store implements store.Store in a bucket.
type Store struct {
	addr   Address
	client *minio.Core
	ctx    context.Context
	// uploads holds reusable buffers for the first part of an upload: clearing a new one takes as long as sending it.
	uploads chan *bytes.Buffer
}

// Open returns the store at an address. It sends no request. All requests of the store end with ctx.
func Open(ctx context.Context, a Address, o Options) (*Store, error) {
	host, secure := a.host()
	var way http.RoundTripper = newTransport(cmp.Or(o.SilenceTimeout, silenceTimeout))
	if o.WrapTransport != nil {
		way = o.WrapTransport(way)
	}
	client, err := minio.NewCore(host, &minio.Options{
		Creds: credentials.New(newCredentialChain(a)), Secure: secure, Region: a.region(),
		Transport: silenceTransport{way}, MaxRetries: maxAttempts,
		TrailingHeaders: true, // without it, the library sends no checksums of parts
	})
	if err != nil {
		return nil, fmt.Errorf("store: %s: %w", a, err)
	}
	uploads := make(chan *bytes.Buffer, concurrentUploads)
	for range concurrentUploads {
		uploads <- &bytes.Buffer{}
	}
	return &Store{a, client, ctx, uploads}, nil
}

// credentialChain lists the providers of credentials, in order.
type credentialChain struct{ credentials.Chain }

// newCredentialChain returns the usual providers. It queries the machine's role only where one can exist; elsewhere the
// query would time out.
func newCredentialChain(a Address) *credentialChain {
	c := &credentialChain{}
	c.Providers = []credentials.Provider{&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}}
	if a.Endpoint == "" || os.Getenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") != "" ||
		os.Getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI") != "" || os.Getenv("AWS_WEB_IDENTITY_TOKEN_FILE") != "" {
		c.Providers = append(c.Providers, &credentials.IAM{})
	}
	return c
}

// errNoCredentials is returned if no credentials are found.
var errNoCredentials = store.WithKind(store.ErrDenied, errors.New("no credentials: set AWS_ACCESS_KEY_ID and "+
	"AWS_SECRET_ACCESS_KEY, or put them into ~/.aws/credentials"))

// RetrieveWithCredContext implements credentials.Provider. The library's own chain would continue with anonymous
// requests.
func (c *credentialChain) RetrieveWithCredContext(cc *credentials.CredContext) (credentials.Value, error) {
	v, err := c.Chain.RetrieveWithCredContext(cc)
	if err == nil && v.AccessKeyID == "" {
		err = errNoCredentials
	}
	return v, err
}

// String returns the store's address without endpoint and region.
func (s *Store) String() string { return s.addr.short() }

// key returns the key in the bucket of the object with that name.
func (s *Store) key(name string) string {
	if s.addr.Prefix == "" {
		return name
	}
	return s.addr.Prefix + "/" + name
}

// name is the inverse of key.
func (s *Store) name(key string) string { return strings.TrimPrefix(key, s.key("")) }

// do runs an operation on the server and cancels it when the server is silent.
func (s *Store) do(what, name string, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancelCause(s.ctx)
	defer cancel(nil)
	ctx = context.WithValue(ctx, operationKey{}, &operation{cancel: cancel})
	err := f(ctx)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return s.wrapError(what, name, err)
}

// Prepare checks that the bucket exists. It does not create one.
func (s *Store) Prepare() error {
	return s.do("open", "", func(ctx context.Context) error {
		there, err := s.client.BucketExists(ctx, s.addr.Bucket)
		if err == nil && !there {
			err = minio.ErrorResponse{Code: minio.NoSuchBucket, StatusCode: http.StatusNotFound}
		}
		return err
	})
}

// Put implements store.Store.
func (s *Store) Put(name string, write func(io.Writer) error) (err error) {
	if err := store.CheckName(name); err != nil {
		return err
	}
	var first *bytes.Buffer
	select {
	case first = <-s.uploads:
		defer func() {
			if err != nil {
				first = &bytes.Buffer{} // an abandoned request may still read the old buffer
			}
			s.uploads <- first
		}()
	case <-s.ctx.Done():
		return s.wrapError("put", name, context.Cause(s.ctx))
	}
	r, w := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := write(w)
		w.CloseWithError(err) // nil: the end
		written <- err
	}()
	err = s.do("put", name, func(ctx context.Context) error { return s.upload(ctx, name, r, first) })
	r.CloseWithError(cmp.Or(err, io.ErrClosedPipe)) // unblock write if it is still running
	if writeErr := <-written; writeErr != nil && !errors.Is(writeErr, err) {
		return writeErr
	}
	return err
}

// PutNew implements store.Store. If the server does not support conditional puts, it checks first whether the object
// exists.
func (s *Store) PutNew(name string, content []byte) error {
	if err := store.CheckName(name); err != nil {
		return err
	}
	return s.do("put", name, func(ctx context.Context) error {
		return s.putNew(ctx, name, content)
	})
}

func (s *Store) putNew(ctx context.Context, name string, content []byte) error {
	o := putOptions(content)
	o.SetMatchETagExcept("*")
	put := func(o minio.PutObjectOptions) error {
		_, err := s.client.Client.PutObject(ctx, s.addr.Bucket, s.key(name), bytes.NewReader(content),
			int64(len(content)), o)
		return err
	}
	err := put(o)
	if minio.ToErrorResponse(err).StatusCode != http.StatusNotImplemented {
		return err
	}
	_, err = s.client.StatObject(ctx, s.addr.Bucket, s.key(name), minio.StatObjectOptions{})
	if kind, _ := classifyError(err); !errors.Is(kind, fs.ErrNotExist) {
		return cmp.Or(err, store.WithKind(fs.ErrExist, errExists))
	}
	return put(putOptions(content))
}

var errExists = errors.New("the object already exists")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// upload uploads the content of r; first is the buffer for the first part.
func (s *Store) upload(ctx context.Context, name string, r io.Reader, first *bytes.Buffer) error {
	first.Reset()
	n, err := io.CopyN(first, r, partBytes)
	rest, size := io.Reader(bytes.NewReader(first.Bytes())), n
	switch {
	case err == nil: // there may be more data
		rest, size = io.MultiReader(rest, r), -1
	case !errors.Is(err, io.EOF):
		return err
	}
	o := putOptions(nil)
	if size >= 0 {
		o = putOptions(first.Bytes())
	}
	_, err = s.client.Client.PutObject(ctx, s.addr.Bucket, s.key(name), rest, size, o)
	return err
}

// putOptions returns the options for a put; whole is the content if one request carries all of it. The header contains
// a CRC-32C of the content, which the server verifies. A signed SHA-256 would cost several times as much; TLS protects
// against deliberate changes.
func putOptions(whole []byte) minio.PutObjectOptions {
	o := minio.PutObjectOptions{
		PartSize: partBytes, ConcurrentStreamParts: true, NumThreads: concurrentParts,
		ContentType: "application/octet-stream", DisableContentSha256: true,
	}
	if whole != nil {
		sum := binary.BigEndian.AppendUint32(nil, crc32.Checksum(whole, castagnoli))
		o.UserMetadata = map[string]string{minio.ChecksumCRC32C.Key(): base64.StdEncoding.EncodeToString(sum)}
	}
	return o
}

// List implements store.Store.
func (s *Store) List(prefix string) (all []store.Entry, err error) {
	err = s.do("list", prefix, func(ctx context.Context) error {
		for o := range s.client.ListObjectsIter(ctx, s.addr.Bucket, minio.ListObjectsOptions{Prefix: s.key(prefix)}) {
			if o.Err != nil {
				return o.Err
			}
			if name := s.name(o.Key); store.CheckName(name) == nil {
				all = append(all, store.Entry{Name: name, Bytes: o.Size})
			}
		}
		return nil
	})
	slices.SortFunc(all, func(a, b store.Entry) int { return cmp.Compare(a.Name, b.Name) })
	return all, err
}

// uploadMark separates an object's name from the id of an unfinished upload.
const uploadMark = store.UnfinishedMark + "uploadId="

// Unfinished returns the unfinished uploads.
func (s *Store) Unfinished() (all []store.Entry, err error) {
	err = s.do("list the uploads of", "", func(ctx context.Context) error {
		for key, upload, more := "", "", true; more; {
			page, err := s.client.ListMultipartUploads(ctx, s.addr.Bucket, s.key(""), key, upload, "", 1000)
			if kind, _ := classifyError(err); errors.Is(kind, fs.ErrNotExist) {
				return nil // some servers return this if there never was an upload
			}
			if err != nil {
				return err
			}
			for _, u := range page.Uploads {
				if name := s.name(u.Key); store.CheckName(name) == nil {
					all = append(all, store.Entry{Name: name + uploadMark + u.UploadID})
				}
			}
			key, upload, more = page.NextKeyMarker, page.NextUploadIDMarker, page.IsTruncated
		}
		return nil
	})
	return all, err
}

// Delete implements store.Store.
func (s *Store) Delete(names ...string) error {
	var all errgroup.Group
	all.SetLimit(concurrentDeletes)
	for _, name := range names {
		all.Go(func() error {
			err := s.do("delete", name, func(ctx context.Context) error {
				if of, upload, started := strings.Cut(name, uploadMark); started {
					return s.client.AbortMultipartUpload(ctx, s.addr.Bucket, s.key(of), upload)
				}
				return s.client.RemoveObject(ctx, s.addr.Bucket, s.key(name), minio.RemoveObjectOptions{})
			})
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		})
	}
	return all.Wait()
}

// Sync does nothing: visible objects are durable.
func (s *Store) Sync() error { return nil }

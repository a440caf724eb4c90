// Package s3 implements a store in an S3 bucket, or in a server that speaks its protocol.
//
// An object of at most 8 MiB is put by one request, a larger one as a multipart upload, in bounded
// memory: so it is there whole or not at all. What could not be ended is aborted; of a writer that dies
// over it an unfinished upload is left, which Begun lists and Delete aborts. Requests that are refused
// or lost are tried again with growing pauses; a server that is silent is left at once. Both end as
// store.ErrAway, and what is to come of it the caller says.
//
// Credentials come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN), from
// AWS_SHARED_CREDENTIALS_FILE or ~/.aws/credentials (AWS_PROFILE), or, at AWS, from the machine's role.
// They are in no address and in no error.
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
	// partBytes is how much is uploaded at once. An upload has at most 10,000 parts: 80 GB.
	partBytes = 8 << 20
	// partsAtOnce are how many parts of one upload are under way.
	partsAtOnce = 2
	// uploadsAtOnce bounds the memory: each has partsAtOnce+1 parts of it.
	uploadsAtOnce = 4
	deletesAtOnce = 8
	// triesOf is how often a request is made; the pauses between come to 2 s.
	triesOf = 6
	// silentAfter is how long nothing comes or goes until a server counts as away.
	silentAfter = 15 * time.Second
)

// Options are for tests; none is needed.
type Options struct {
	// Around, where there is one, has all requests go through what it returns.
	Around func(http.RoundTripper) http.RoundTripper
	// Silence is how long nothing comes or goes until the server counts as away; 0: 15 s.
	Silence time.Duration
}

// Store is one in a bucket.
type Store struct {
	addr    Address
	client  *minio.Core
	ctx     context.Context
	uploads chan *bytes.Buffer // what begins an upload: it is kept, since clearing a new one takes as long as sending
}

// Open returns the store at an address. Nothing is asked of it yet. All of its calls end with ctx.
func Open(ctx context.Context, a Address, o Options) (*Store, error) {
	host, secure := a.host()
	var way http.RoundTripper = newTransport(cmp.Or(o.Silence, silentAfter))
	if o.Around != nil {
		way = o.Around(way)
	}
	client, err := minio.NewCore(host, &minio.Options{
		Creds: credentials.New(newChain(a)), Secure: secure, Region: a.region(),
		Transport: quitter{way}, MaxRetries: triesOf,
		TrailingHeaders: true, // the library has no checksums of parts without
	})
	if err != nil {
		return nil, fmt.Errorf("store: %s: %w", a, err)
	}
	uploads := make(chan *bytes.Buffer, uploadsAtOnce)
	for range uploadsAtOnce {
		uploads <- &bytes.Buffer{}
	}
	return &Store{a, client, ctx, uploads}, nil
}

// chain is where credentials may be, in order.
type chain struct{ credentials.Chain }

// newChain returns the usual places. A role of the machine is asked for only where there can be one:
// elsewhere nobody answers.
func newChain(a Address) *chain {
	c := &chain{}
	c.Providers = []credentials.Provider{&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}}
	if a.Endpoint == "" || os.Getenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") != "" ||
		os.Getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI") != "" || os.Getenv("AWS_WEB_IDENTITY_TOKEN_FILE") != "" {
		c.Providers = append(c.Providers, &credentials.IAM{})
	}
	return c
}

// errNone says that there are no credentials.
var errNone = store.Kind(store.ErrDenied, errors.New("no credentials: set AWS_ACCESS_KEY_ID and "+
	"AWS_SECRET_ACCESS_KEY, or have them in ~/.aws/credentials"))

// RetrieveWithCredContext implements credentials.Provider. The library's own chain would go on in
// nobody's name.
func (c *chain) RetrieveWithCredContext(cc *credentials.CredContext) (credentials.Value, error) {
	v, err := c.Chain.RetrieveWithCredContext(cc)
	if err == nil && v.AccessKeyID == "" {
		err = errNone
	}
	return v, err
}

// String is where the store is, without the way to it.
func (s *Store) String() string { return s.addr.short() }

// key is an object's name in the bucket.
func (s *Store) key(name string) string {
	if s.addr.Prefix == "" {
		return name
	}
	return s.addr.Prefix + "/" + name
}

// name is what key has made a key of.
func (s *Store) name(key string) string { return strings.TrimPrefix(key, s.key("")) }

// do does something with the server, until it is silent.
func (s *Store) do(what, name string, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancelCause(s.ctx)
	defer cancel(nil)
	ctx = context.WithValue(ctx, operationKey{}, &operation{cancel: cancel})
	err := f(ctx)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return s.wrong(what, name, err)
}

// Prepare asks whether there is such a bucket. It is not made.
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
				first = &bytes.Buffer{} // a request that was given up may still read the old one
			}
			s.uploads <- first
		}()
	case <-s.ctx.Done():
		return s.wrong("put", name, context.Cause(s.ctx))
	}
	r, w := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := write(w)
		w.CloseWithError(err) // nil: the end
		written <- err
	}()
	err = s.do("put", name, func(ctx context.Context) error { return s.upload(ctx, name, r, first) })
	r.CloseWithError(cmp.Or(err, io.ErrClosedPipe)) // who writes still is not to wait
	if writeErr := <-written; writeErr != nil && !errors.Is(writeErr, err) {
		return writeErr
	}
	return err
}

// PutNew implements store.Store. Where the server knows no conditional put it looks first.
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
	if kind, _ := kindOf(err); !errors.Is(kind, fs.ErrNotExist) {
		return cmp.Or(err, store.Kind(fs.ErrExist, errThere))
	}
	return put(putOptions(content))
}

var errThere = errors.New("there is one already")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// upload uploads what there is to be read; first has room for what one request takes.
func (s *Store) upload(ctx context.Context, name string, r io.Reader, first *bytes.Buffer) error {
	first.Reset()
	n, err := io.CopyN(first, r, partBytes)
	rest, size := io.Reader(bytes.NewReader(first.Bytes())), n
	switch {
	case err == nil: // there may be more
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

// putOptions are those of an object; whole is its content where one request has all of it. What is sent
// has a CRC-32C in its head, which the server compares. A SHA-256 of it for the signature would cost
// several times as much, and TLS is there against whoever would change both.
func putOptions(whole []byte) minio.PutObjectOptions {
	o := minio.PutObjectOptions{
		PartSize: partBytes, ConcurrentStreamParts: true, NumThreads: partsAtOnce,
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

// uploadMark stands between the name of an object and the number of an upload that is to become it.
const uploadMark = store.BegunMark + "uploadId="

// Begun returns uploads that were not ended.
func (s *Store) Begun() (all []store.Entry, err error) {
	err = s.do("list the uploads of", "", func(ctx context.Context) error {
		for key, upload, more := "", "", true; more; {
			page, err := s.client.ListMultipartUploads(ctx, s.addr.Bucket, s.key(""), key, upload, "", 1000)
			if kind, _ := kindOf(err); errors.Is(kind, fs.ErrNotExist) {
				return nil // some say so where there never was one
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
	all.SetLimit(deletesAtOnce)
	for _, name := range names {
		all.Go(func() error {
			err := s.do("delete", name, func(ctx context.Context) error {
				if of, upload, begun := strings.Cut(name, uploadMark); begun {
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

// Sync has nothing to do: what is seen is durable.
func (s *Store) Sync() error { return nil }

package s3

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/minio/minio-go/v7"
)

var benchURL = flag.String("s3.url", "", "a store that benchmarks may write to: s3://BUCKET/PREFIX?endpoint=URL")

// BenchmarkPut stores objects as segments are stored, as a stream of unknown length. For comparison it stores them by
// one plain library request of known length, the most that the server can do.
func BenchmarkPut(b *testing.B) {
	s, plain := benchStore(b), minio.PutObjectOptions{DisableContentSha256: true, DisableMultipart: true}
	for _, mb := range []int{4, 64, 256} {
		data := randomBytes(mb << 20)
		for _, way := range []struct {
			name string
			put  func() error
		}{
			{"stream", func() error {
				return s.Put("bench-stream", func(w io.Writer) error {
					_, err := io.Copy(w, readerOnly{bytes.NewReader(data)})
					return err
				})
			}},
			{"plain", func() error {
				_, err := s.client.Client.PutObject(b.Context(), s.addr.Bucket, s.key("bench-plain"),
					bytes.NewReader(data), int64(len(data)), plain)
				return err
			}},
		} {
			b.Run(fmt.Sprintf("%d_MiB/%s", mb, way.name), func(b *testing.B) {
				b.SetBytes(int64(len(data)))
				for b.Loop() {
					if err := way.put(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
	_ = s.Delete("bench-stream", "bench-plain")
}

type readerOnly struct{ io.Reader }

func benchStore(b *testing.B) *Store {
	b.Helper()
	if *benchURL == "" {
		b.Skip("no -s3.url")
	}
	a, err := Parse(*benchURL)
	if err != nil {
		b.Fatal(err)
	}
	s, err := Open(b.Context(), a, Options{})
	if err != nil {
		b.Fatal(err)
	}
	if err := s.Prepare(); err != nil {
		b.Fatal(err)
	}
	return s
}

func randomBytes(n int) []byte {
	data := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{}).Read(data)
	return data
}

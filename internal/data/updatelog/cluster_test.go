package updatelog

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
)

// certify creates an authority and a certificate for both client and server, and returns their files.
func certify(t *testing.T) (ca, cert, key string) {
	dir := t.TempDir()
	file := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return path
	}
	secret, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	from, until := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotBefore: from, NotAfter: until,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	rootDER, err := x509.CreateCertificate(rand.Reader, root, root, secret.Public(), secret)
	must(t, err)
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "log"}, NotBefore: from, NotAfter: until,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, root, secret.Public(), secret)
	must(t, err)
	keyDER, err := x509.MarshalECPrivateKey(secret)
	must(t, err)
	return file("ca.pem", "CERTIFICATE", rootDER), file("cert.pem", "CERTIFICATE", leafDER),
		file("key.pem", "EC PRIVATE KEY", keyDER)
}

// TestTLS checks that a log that requires certificates accepts clients with a certificate and rejects others with one
// line.
func TestTLS(t *testing.T) {
	ca, cert, key := certify(t)
	pair, err := tls.LoadX509KeyPair(cert, key)
	must(t, err)
	authority, err := os.ReadFile(ca)
	must(t, err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority)
	url := runPlain(t, &server.Options{
		JetStream: true, StoreDir: t.TempDir(), TLS: true, TLSVerify: true, TLSTimeout: 5,
		TLSConfig: &tls.Config{
			Certificates: []tls.Certificate{pair}, ClientCAs: pool,
			ClientAuth: tls.RequireAndVerifyClientCert,
		},
	})
	o := DialOptions{Options: Options{Job: job, Shards: 2}, CA: ca, Cert: cert, Key: key}
	l, err := Dial(t.Context(), url, o)
	must(t, err)
	defer l.Close()
	put1(t, l, "a")
	wantTexts(t, l, Oldest, "a")
	i, err := Inspect(t.Context(), url, o)
	must(t, err)
	must(t, i.Close())
	for what, o := range map[string]DialOptions{
		"no certificate":    {Options: o.Options, CA: ca},
		"unknown authority": {Options: o.Options, Cert: cert, Key: key},
		"mismatched key":    {Options: o.Options, CA: ca, Cert: cert, Key: ca},
	} {
		_, err := Dial(t.Context(), url, o)
		wantError(t, what, err, ErrRefused, "")
		t.Log(err)
	}
}

// TestReplicas checks that streams with three replicas survive the loss of any one server, and that a single server
// rejects such streams.
func TestReplicas(t *testing.T) {
	_, err := Dial(t.Context(), runPlain(t, &server.Options{JetStream: true, StoreDir: t.TempDir()}),
		DialOptions{Options: Options{Job: job, Shards: 2}, Replicas: 3})
	wantError(t, "three replicas on one server", err, ErrRefused, "replicas")

	nodes, urls := runCluster(t)
	l, err := Dial(t.Context(), urls, DialOptions{Options: Options{Job: job, Shards: 2}, Replicas: 3})
	must(t, err)
	defer l.Close()
	put1(t, l, "a")
	used := nodes[l.(*log).store.(*client).nc.ConnectedServerName()]
	used.Shutdown()
	used.WaitForShutdown()
	put1(t, l, "b")
	wantTexts(t, l, Oldest, "a b")
}

// gone is a consumer whose server is gone: no message arrives, and no error.
type gone struct{ jetstream.MessagesContext }

func (gone) Next(...jetstream.NextOpt) (jetstream.Msg, error) { return nil, context.DeadlineExceeded }

// TestSilentConsumer checks that a consumer that does not deliver an existing record is replaced, and that one without
// newer records is not.
func TestSilentConsumer(t *testing.T) {
	url := runPlain(t, &server.Options{JetStream: true, StoreDir: t.TempDir()})
	l, err := Dial(t.Context(), url, DialOptions{Options: Options{Job: job, Shards: 2}})
	must(t, err)
	defer l.Close()
	at := put1(t, l, "a")
	c := l.(*log).store.(*client)
	r := &streamRead{client: c, shard: 1, next: at, end: at, reconnects: c.nc.Stats().Reconnects}
	if err := r.receive(t.Context(), gone{}); !errors.Is(err, errSilent) || r.failed != nil {
		t.Errorf("a record is not delivered: %v, %v", err, r.failed)
	}
	r.next = at + 1
	must(t, r.checkConsumer(t.Context()))
}

// runCluster runs a cluster of three NATS servers, and returns them by name.
func runCluster(t *testing.T) (nodes map[string]*server.Server, urls string) {
	nodes = map[string]*server.Server{}
	var routes []*url.URL
	for range 3 { // each needs the addresses of the others
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		routes = append(routes, &url.URL{Scheme: "nats", Host: l.Addr().String()})
		must(t, l.Close())
	}
	for _, r := range routes {
		port, _ := strconv.Atoi(r.Port())
		s, err := server.NewServer(&server.Options{
			ServerName: "node-" + r.Port(), Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true,
			JetStream: true, StoreDir: t.TempDir(),
			Cluster: server.ClusterOpts{Name: "c", Host: "127.0.0.1", Port: port}, Routes: routes,
		})
		must(t, err)
		s.Start()
		t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
		nodes[s.Name()] = s
	}
	var all []string
	for _, s := range nodes {
		if !s.ReadyForConnections(time.Minute) {
			t.Fatal("the server did not start")
		}
		all = append(all, s.ClientURL())
	}
	return nodes, strings.Join(all, ",")
}

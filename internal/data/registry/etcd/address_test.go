package etcd

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/registry"
	"github.com/perdure/perdure/internal/data/registry/registrytest"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"etcd://a:2379/job": "etcd://a:2379/job",
		"etcd://a:2379,b.example:1,[::1]:2379/perdure/job-1/": "etcd://a:2379,b.example:1,[::1]:2379/perdure/job-1",
		"etcd://10.0.0.1:65535/x?ca=/a&cert=b&key=c%20d":      "etcd://10.0.0.1:65535/x",
	} {
		a, err := Parse(text)
		if err != nil || a.String() != want {
			t.Errorf("Parse(%q) = %s, %v", text, a, err)
		}
	}
	for text, want := range map[string]string{
		"":                                   "does not start with etcd://",
		"a/registry":                         "does not start with etcd://",
		"http://a:2379/x":                    "does not start with etcd://",
		"etcd:///x":                          "has no host",
		"etcd://a/x":                         `"a" has no port`,
		"etcd://a:/x":                        `"a:" has no port`,
		"etcd://a:0/x":                       `"a:0" has no port`,
		"etcd://a:65536/x":                   `"a:65536" has no port`,
		"etcd://a:etcd/x":                    `"a:etcd" has no port`,
		"etcd://:2379/x":                     `invalid host ""`,
		"etcd://a b:2379/x":                  `invalid host "a b"`,
		"etcd://-a:2379/x":                   `invalid host "-a"`,
		"etcd://::1:2379/x":                  "in brackets",
		"etcd://[::1]/x":                     "has no port",
		"etcd://[a]:2379/x":                  `invalid host "a"`,
		"etcd://a:1,,b:1/x":                  "empty host",
		"etcd://a:1,/x":                      "empty host",
		"etcd://a:1,b:1,a:1/x":               "a:1 is listed twice",
		"etcd://a:1,etcd://b:1/x":            `"etcd:" has no port`,
		"etcd://a:1":                         "has no prefix",
		"etcd://a:1/":                        "has no prefix",
		"etcd://a:1?ca=x":                    "has no prefix",
		"etcd://a:1//x":                      "invalid prefix",
		"etcd://a:1/x//y":                    "invalid prefix",
		"etcd://a:1/x/../y":                  "invalid prefix",
		"etcd://a:1/x y":                     "invalid prefix",
		"etcd://a:1/x#y":                     "invalid prefix",
		"etcd://a:1/x?ca":                    "ca is empty",
		"etcd://a:1/x?ca=a&ca=b":             "ca is given twice",
		"etcd://a:1/x?cacert=a":              `unknown query parameter "cacert"`,
		"etcd://a:1/x?cert=a":                "cert and key belong together",
		"etcd://a:1/x?key=a":                 "cert and key belong together",
		"etcd://a:1/x?ca=%zz":                "the query must be",
		"etcd://me:hush@a:1/x":               "are not supported",
		"etcd://me:hu/sh@a:1/x":              "are not supported",
		"etcd://a:1,me:hush@b:1/x?ca=a":      "are not supported",
		"etcd://me:hush@a:1/x?password=hush": "are not supported",
	} {
		_, err := Parse(text)
		if !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), want) ||
			strings.ContainsAny(err.Error(), "\n") || strings.Contains(err.Error(), "hush") {
			t.Errorf("%q: error %v, want one line with %q", text, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("etcd://a:2379,[::1]:2379/x/y?ca=a&cert=b&key=c")
	f.Fuzz(func(t *testing.T, text string) {
		a, err := Parse(text)
		if err != nil {
			return
		}
		if again, err := Parse(a.String()); err != nil || again.String() != a.String() {
			t.Errorf("%q parsed as %s, then error %v", text, a, err)
		}
	})
}

// certificates writes a self-signed server certificate, which a client may present as well.
func certificates(t *testing.T) (cert, key string) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	must(t, err)
	secret, err := x509.MarshalECPrivateKey(private)
	must(t, err)
	cert, key = t.TempDir()+"/cert.pem", t.TempDir()+"/key.pem"
	must(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o666))
	must(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret}), 0o600))
	return cert, key
}

// TestTLS checks connections to a server that requires client certificates, and the errors for wrong credentials.
func TestTLS(t *testing.T) {
	cert, key := certificates(t)
	pair, err := tls.LoadX509KeyPair(cert, key)
	must(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(pair.Leaf)
	f := registrytest.NewEtcd(t, &tls.Config{
		Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
	})
	hasty := quick
	hasty.patience = 0
	hasty.maxAttempt = 300 * time.Millisecond // enough to be refused; under load a timeout is as good
	at := "etcd://" + f.Addr + "/a/job"
	r, err := openWith(t.Context(), at+"?ca="+cert+"&cert="+cert+"&key="+key, quick)
	must(t, err)
	save(t, acquire(t, r), []byte("one"), 0)
	must(t, r.Close())
	for query, want := range map[string]error{
		"":                                    registry.ErrUnavailable,
		"?ca=" + cert:                         registry.ErrUnavailable, // no client certificate
		"?ca=" + cert + "x":                   os.ErrNotExist,
		"?ca=" + key:                          perdure.ErrUsage,
		"?ca=" + t.TempDir():                  perdure.ErrUsage,
		"?cert=" + cert + "&key=" + cert:      perdure.ErrUsage,
		"?cert=" + cert + "&key=" + key:       registry.ErrUnavailable, // does not trust the server's certificate
		"?cert=" + cert + "&key=" + key + "x": os.ErrNotExist,
	} {
		r, err := openWith(t.Context(), at+query, hasty)
		if err == nil {
			_, _, err = r.Load(t.Context())
			must(t, r.Close())
		}
		wantError(t, "with "+query, err, want)
		t.Log(err)
	}
}

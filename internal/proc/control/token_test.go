package control

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/httpdebug"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/keys/authority"
)

// newAuthority creates the keys of a job, with a clock that is ahead of this machine's.
func newAuthority(t *testing.T, job string, ahead time.Duration) (a *authority.Authority, dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "keys")
	now := func() time.Time { return time.Now().Add(ahead) }
	_, err := authority.New(dir, job, time.Hour, time.Now)
	must(t, err)
	a, err = authority.Open(dir, now)
	must(t, err)
	return a, dir
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// issued returns a token from a job's authority.
func issued(t *testing.T, a *authority.Authority, role keys.Role) string {
	t.Helper()
	_, text, err := a.Token(role, "ci", time.Hour)
	must(t, err)
	return text
}

// keyOf reads a private key.
func keyOf(t *testing.T, path string) *ecdsa.PrivateKey {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	for {
		block, rest := pem.Decode(text)
		if block == nil {
			t.Fatalf("%s has no key", path)
		}
		if key, err := x509.ParsePKCS8PrivateKey(block.Bytes); err == nil {
			return key.(*ecdsa.PrivateKey)
		}
		text = rest
	}
}

// forged creates tokens that no authority issues.
type forged struct {
	ca, worker *ecdsa.PrivateKey
}

func claims() jwt.RegisteredClaims {
	return jwt.RegisteredClaims{
		Subject: "spiffe://job/operator/eve", Audience: jwt.ClaimStrings{"perdure control"},
		ID: keys.Serial(big.NewInt(1 << 62)), ExpiresAt: jwt.NewNumericDate(time.Now().Add(time.Hour)),
	}
}

func signed(t *testing.T, m jwt.SigningMethod, key any) string {
	t.Helper()
	text, err := jwt.NewWithClaims(m, claims()).SignedString(key)
	must(t, err)
	return "Bearer " + text
}

// but returns a signed token with one change.
func (f *forged) but(t *testing.T, change func(*jwt.RegisteredClaims)) string {
	t.Helper()
	c := claims()
	change(&c)
	text, err := jwt.NewWithClaims(jwt.SigningMethodES256, c).SignedString(f.ca)
	must(t, err)
	return "Bearer " + text
}

// damaged changes one part of a token.
func damaged(t *testing.T, text string, n int, change func([]byte)) string {
	t.Helper()
	parts := strings.Split(text, ".")
	b, err := base64.RawURLEncoding.DecodeString(parts[n])
	must(t, err)
	change(b)
	parts[n] = base64.RawURLEncoding.EncodeToString(b)
	return "Bearer " + strings.Join(parts, ".")
}

// shownCase is a call, the header that it presents, and the expected answer.
type shownCase struct {
	name, call, shows string
	status            int
	says              string
}

const (
	look, stop = "Status", "Stop"
	unsigned   = "not signed by a trusted certificate"
	badClaims  = "not for the control API"

	ok, unknown, forbidden = http.StatusOK, http.StatusUnauthorized, http.StatusForbidden
)

// cases returns calls with forged tokens.
func (f *forged) cases(t *testing.T, operator string) []shownCase {
	t.Helper()
	public, err := x509.MarshalPKIXPublicKey(f.ca.Public())
	must(t, err)
	but := func(change func(*jwt.RegisteredClaims)) string { return f.but(t, change) }
	return []shownCase{
		{"alg none", stop, signed(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType), unknown, unsigned},
		{"signed with what is public", stop, signed(t, jwt.SigningMethodHS256, public), unknown, unsigned},
		{"signed by a worker", stop, signed(t, jwt.SigningMethodES256, f.worker), unknown, unsigned},
		{
			"a damaged name", stop, damaged(t, operator, 1, func(b []byte) { b[bytes.Index(b, []byte("ci"))]++ }),
			unknown, unsigned,
		},
		{"a damaged signature", stop, damaged(t, operator, 2, func(b []byte) { b[0]++ }), unknown, unsigned},
		{
			"for another program", stop, but(func(c *jwt.RegisteredClaims) { c.Audience[0] = "x" }),
			unknown, badClaims,
		},
		{"without end", stop, but(func(c *jwt.RegisteredClaims) { c.ExpiresAt = nil }), unknown, badClaims},
		{"without number", stop, but(func(c *jwt.RegisteredClaims) { c.ID = "" }), unknown, "no serial number"},
		{
			"a server's", look, but(func(c *jwt.RegisteredClaims) { c.Subject = "spiffe://job/server/x" }),
			unknown, "choose viewer or operator",
		},
		{"nobody's", look, but(func(c *jwt.RegisteredClaims) { c.Subject = "me" }), unknown, "invalid identity"},
		{
			"of a job that shares the key", stop,
			but(func(c *jwt.RegisteredClaims) { c.Subject = "spiffe://next/operator/eve" }),
			unknown, "the token is for job next, not for job",
		},
		{"the unchanged token", stop, but(func(*jwt.RegisteredClaims) {}), ok, ""},
	}
}

// gated serves a control API that accepts tokens, and returns a func that calls it like a tool. said stops it and
// returns its log.
func gated(t *testing.T, job Backend, dir string, own *keys.Ring) (call func(shownCase, string) (int, string),
	addr string, said func() string,
) {
	t.Helper()
	var log bytes.Buffer
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	gate := Authorizer{Alive: isAlive, Ring: own, Log: slog.New(slog.NewTextHandler(&log, nil))}
	s := httpdebug.NewHTTPServer(gate.Guard(NewHandler(job)))
	served := make(chan struct{})
	go func() { _ = s.Serve(tls.NewListener(l, own.WebServer())); close(served) }() // said closes it
	ring, err := keys.OpenTrusted(filepath.Join(dir, "ca"), "job")
	must(t, err)
	tool := &http.Client{Transport: &http.Transport{TLSClientConfig: ring.Client(keys.Coordinator)}}
	call = func(c shownCase, kind string) (int, string) {
		r, err := http.NewRequest(http.MethodPost, "https://"+l.Addr().String()+Path+c.call, strings.NewReader("{}"))
		must(t, err)
		r.Header.Set("Content-Type", kind)
		if c.shows != "" {
			r.Header.Set("Authorization", c.shows)
		}
		answer, err := tool.Do(r)
		must(t, err)
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		must(t, err)
		return answer.StatusCode, strings.TrimSpace(string(body))
	}
	return call, l.Addr().String(), func() string {
		must(t, s.Close())
		<-served
		return log.String()
	}
}

// TestTokens checks that a caller with a token and no certificate can make the calls of its role, and that tokens
// without a trusted signature are rejected. Rejected calls have no effect. The log has the caller's name, but never the
// token.
func TestTokens(t *testing.T) {
	ours, dir := newAuthority(t, "job", 0)
	others, _ := newAuthority(t, "job", 0)
	at := func(ahead time.Duration) string {
		a, err := authority.Open(dir, func() time.Time { return time.Now().Add(ahead) })
		must(t, err)
		return "Bearer " + issued(t, a, keys.Viewer)
	}
	own, err := keys.Open(keys.RoleDir(dir, keys.Coordinator))
	must(t, err)
	gone, revoked, err := ours.Token(keys.Operator, "gone", time.Hour)
	must(t, err)
	_, err = ours.Revoke([]string{keys.Serial(gone.Serial)})
	must(t, err)
	must(t, own.Refresh())
	viewer, operator := issued(t, ours, keys.Viewer), issued(t, ours, keys.Operator)
	forged := forged{
		keyOf(t, filepath.Join(dir, "ca", "key.pem")), keyOf(t, filepath.Join(dir, "worker", keys.IdentityFile)),
	}
	var job fakeJob
	call, addr, said := gated(t, &job, dir, own)
	for _, c := range append([]shownCase{
		{"a viewer looks", look, "Bearer " + viewer, ok, ""},
		{"a viewer looks at the view", "View", "Bearer " + viewer, ok, ""},
		{"an operator looks", look, "Bearer " + operator, ok, ""},
		{"an operator stops", stop, "Bearer " + operator, ok, ""},
		{"a viewer stops", stop, "Bearer " + viewer, forbidden, "viewer/ci may view the job, but only an operator"},
		{"a viewer drains", "Drain", "Bearer " + viewer, forbidden, "may view the job"},
		{"no header", look, "", unknown, "requires a certificate or a token"},
		{"another scheme", look, "Basic " + viewer, unknown, "requires a certificate or a token"},
		{"no token", look, "Bearer open sesame", unknown, "invalid token"},
		{"an empty token", look, "Bearer ..", unknown, "invalid token"},
		{"half a token", look, "Bearer " + viewer[:len(viewer)/2], unknown, "invalid token"},
		{"another job's", stop, "Bearer " + issued(t, others, keys.Operator), unknown, unsigned},
		{"an expired token", look, at(-2 * time.Hour), unknown, "the token expired at"},
		{"a token that is not valid yet", look, at(time.Hour), unknown, "the clocks"},
		{"a revoked one", stop, "Bearer " + revoked, unknown, "is revoked"},
	}, forged.cases(t, operator)...) {
		stops := job.stops
		for _, kind := range []string{"application/json", "text/plain"} {
			if c.status == ok && kind == "text/plain" {
				continue
			}
			status, text := call(c, kind)
			if status != c.status || !strings.Contains(text, c.says) ||
				c.status != ok && (strings.Contains(text, "\n") || job.stops != stops) {
				t.Errorf("%s: %d %s", c.name, status, text)
			}
		}
	}
	ring, err := keys.OpenTrusted(filepath.Join(dir, "ca"), "job")
	must(t, err)
	_, err = NewClient(addr, perdure.Secret(revoked), ring).Status(t.Context())
	if !errors.Is(err, perdure.ErrRefused) || !strings.Contains(err.Error(), "revoked") || job.stops != 2 {
		t.Errorf("a client with a revoked token: %v; %d stops", err, job.stops)
	}
	log := said()
	for _, want := range []string{"who=\"operator/ci by token ", "who=\"viewer/ci by token ", "call=Stop who=some"} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %s:\n%s", want, log)
		}
	}
	for _, text := range []string{viewer, operator, revoked} {
		if strings.Contains(log, text[len(text)-20:]) {
			t.Error("the log contains a token")
		}
	}
}

// TestTokenOf checks the one-line errors for invalid roles and lifetimes of tokens.
func TestTokenOf(t *testing.T) {
	a, _ := newAuthority(t, "job", 0)
	for _, c := range []struct {
		role keys.Role
		name string
		good time.Duration
		says string
	}{
		{keys.Worker, "ci", time.Hour, "choose viewer or operator"},
		{"", "ci", time.Hour, "choose viewer or operator"},
		{keys.Viewer, "C I", time.Hour, `invalid name "C I"`},
		{keys.Viewer, "ci", 0, "choose 1s to"},
		{keys.Viewer, "ci", 366 * 24 * time.Hour, "choose 1s to"},
	} {
		_, text, err := a.Token(c.role, c.name, c.good)
		if text != "" || !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %q, %v", c, text, err)
		}
	}
	if job, err := authority.TokenJob(issued(t, a, keys.Viewer)); job != "job" || err != nil {
		t.Errorf("TokenJob returned %q, %v", job, err)
	}
	if _, err := authority.TokenJob("nonsense"); err == nil {
		t.Error("TokenJob accepted nonsense")
	}
}

package control

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	controlv1 "github.com/perdure/perdure/internal/proc/control/v1"
	"github.com/perdure/perdure/internal/proc/httpdebug"
)

// guardedJob serves a job's control API like a coordinator, and returns its address.
func guardedJob(t *testing.T, job Backend, alive func(context.Context) error) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addrs := []string{l.Addr().String(), "training.example:7"}
	gate := Authorizer{Secret: "open sesame", Addrs: addrs, Alive: alive}
	s := httpdebug.NewHTTPServer(gate.Guard(NewHandler(job)))
	go func() { _ = s.Serve(l) }() // returns at the end of the test
	t.Cleanup(func() { _ = s.Close() })
	return l.Addr().String()
}

func isAlive(context.Context) error { return nil }

// TestGuard checks that a call must present the secret and name this machine, and must not come from a page of another
// origin. Rejected calls have no effect.
func TestGuard(t *testing.T) {
	var job fakeJob
	addr := guardedJob(t, &job, isAlive)
	_, port, _ := net.SplitHostPort(addr)
	const bearer = "Bearer open sesame"
	for _, c := range []struct {
		host, origin, authorization string
		says                        string // "": allowed
	}{
		{addr, "", bearer, ""},
		{"localhost:9", "", bearer, ""},
		{"training.example:7", "", bearer, ""},
		{"training.example:8", "", bearer, "machine's address"},
		{"localhost", "", bearer, ""},
		{"[::1]:" + port, "", bearer, ""},
		{addr, "http://" + addr, bearer, ""},
		{addr, "", "", "the secret is missing"},
		{addr, "", "open sesame", "the secret is missing"},
		{addr, "", "Bearer ", "the secret is missing"}, // trailing space in a header is trimmed
		{addr, "", "Bearer open sesam", "the secret belongs to another run"},
		{addr, "", "Bearer open sesame!", "the secret belongs to another run"},
		{"evil.example", "", bearer, "machine's address"},
		{"evil.example:" + port, "", bearer, "machine's address"},
		{"localhost.evil.example", "", bearer, "machine's address"},
		{"10.1.2.3:" + port, "", bearer, "machine's address"},
		{addr, "http://evil.example", bearer, "web pages of other origins"},
		{addr, "http://localhost:" + port, bearer, "web pages of other origins"},
		{addr, "null", bearer, "web pages of other origins"},
	} {
		for _, kind := range []string{"application/json", "text/plain"} {
			stops := job.stops
			r, err := http.NewRequest(http.MethodPost, "http://"+addr+Path+"Stop", strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			r.Host = c.host
			r.Header.Set("Content-Type", kind)
			for name, value := range map[string]string{"Origin": c.origin, "Authorization": c.authorization} {
				if value != "" {
					r.Header.Set(name, value)
				}
			}
			answer, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(answer.Body)
			answer.Body.Close()
			switch {
			case c.says == "" && kind == "application/json" &&
				(answer.StatusCode != http.StatusOK || job.stops != stops+1):
				t.Errorf("%+v: %s %s", c, answer.Status, body)
			case c.says != "" && (answer.StatusCode != http.StatusForbidden ||
				!strings.Contains(string(body), c.says) || job.stops != stops ||
				strings.Contains(string(body), "sesame")):
				t.Errorf("%+v as %s: %s %s; stopped: %t", c, kind, answer.Status, body, job.stops != stops)
			}
		}
	}
	if _, err := NewClient(addr, "open sesame", nil).Status(t.Context()); err != nil {
		t.Errorf("a client with the secret: %v", err)
	}
	for _, secret := range []perdure.Secret{"", "guess"} {
		_, err := NewClient(addr, secret, nil).Status(t.Context())
		if !errors.Is(err, perdure.ErrRefused) || !strings.Contains(err.Error(), "the secret ") {
			t.Errorf("a client without the secret: %v", err)
		}
	}
}

// alive checks whether the job is alive, like its supervisor.
func alive(addr string) error {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err = io.WriteString(c, "HEAD "+AlivePath+" HTTP/1.0\r\n\r\n"); err != nil {
		return err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err == nil && !strings.Contains(line, " 200 ") {
		err = fmt.Errorf("unexpected answer %q", line)
	}
	return err
}

// TestSlowCallers checks that callers with far too many connections, which send almost nothing, garbage or too much,
// block neither the supervisor nor other calls.
func TestSlowCallers(t *testing.T) {
	addr := guardedJob(t, &fakeJob{}, isAlive)
	begins := []string{
		"", "P", "POST " + Path + "Stop HTTP/1.1\r\nHost: ",
		"POST " + Path + "Stop HTTP/1.1\r\nHost: " + addr + "\r\nContent-Length: 1000000000000\r\n\r\n{",
		"POST " + Path + "Scale HTTP/1.1\r\nHost: " + addr +
			"\r\nAuthorization: Bearer open sesame\r\nContent-Type: application/json\r\nContent-Length: " +
			"100\r\n\r\n{\"workers\":",
		"\x00\xff\xff garbage \r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "POST / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"POST " + Path + "Stop HTTP/1.1\r\nTransfer-Encoding: chunked\r\nHost: " + addr +
			"\r\n\r\nffffffffffffffff\r\n",
		"GET /?" + strings.Repeat("x", 2*httpdebug.MaxHeaderBytes) + " HTTP/1.1\r\n",
		"GET / HTTP/1.1\r\nX: " + strings.Repeat("x", 2*httpdebug.MaxHeaderBytes) + "\r\n\r\n",
	}
	for i := range 3 * httpdebug.MaxConnections {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = io.WriteString(c, begins[i%len(begins)]) // the connection may be closed already
		if i%16 == 0 {
			if err := alive(addr); err != nil {
				t.Fatalf("with %d slow callers: %v", i, err)
			}
		}
	}
	if err := alive(addr); err != nil {
		t.Errorf("with all slow callers: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := NewClient(addr, "open sesame", nil).Status(ctx); err != nil {
		t.Errorf("a call with all slow callers: %v", err)
	}
}

// TestRefusedCallsAreLogged checks that rejected calls go to their own log, and that the log never contains a path that
// a caller invented.
func TestRefusedCallsAreLogged(t *testing.T) {
	var all, refused strings.Builder
	gate := Authorizer{
		Secret: "open sesame", Addrs: []string{"training.example:7"}, Alive: isAlive,
		Log: slog.New(slog.NewTextHandler(&all, nil)), Refused: slog.New(slog.NewTextHandler(&refused, nil)),
	}
	h := gate.Guard(NewHandler(&fakeJob{}))
	for _, path := range []string{controlv1.ControlStopProcedure, Path + strings.Repeat("x", 5000), "/"} {
		r := httptest.NewRequest(http.MethodPost, "http://training.example:7"+path, nil)
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
	if said := refused.String(); strings.Count(said, "\n") != 3 || strings.Count(said, "call=Stop") != 1 ||
		strings.Count(said, "call=unknown") != 2 || len(said) > 3*400 || all.Len() > 0 {
		t.Errorf("log of rejected calls: %.2000s; other log: %s", said, &all)
	}
}

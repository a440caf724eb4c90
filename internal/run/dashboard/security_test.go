package dashboard

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/keys/authority"
)

// TestAuthentication tries each kind of request with valid and invalid cookies.
func TestAuthentication(t *testing.T) {
	p := newPlace(t)
	d := p.serve(t, &fakeJob{})
	other := newPlace(t)
	other.run.Job.ID = "11111111"
	must(t, other.WriteRun(other.run))
	foreign := other.serve(t, &fakeJob{})
	name := d.sessions.cookieName() + "="
	old := d.sessions.sign(keys.Operator, time.Now().Add(-time.Second))
	viewer := d.sessions.sign(keys.Viewer, time.Now().Add(time.Hour))
	for _, c := range []struct {
		name, cookie      string
		session, act, see int
	}{
		{"operator", cookie(d, keys.Operator), 204, 200, 200},
		{"viewer", name + viewer, 204, 403, 200},
		{"none", "", 401, 401, 401},
		{"empty", name, 401, 401, 401},
		{"expired", name + old, 401, 401, 401},
		{"of another job", name + foreign.sessions.sign(keys.Operator, time.Now().Add(time.Hour)), 401, 401, 401},
		{"a viewer as operator", name + strings.Replace(viewer, "viewer", "operator", 1), 401, 401, 401},
		{"a later expiry", name + strings.Replace(viewer, ".1", ".2", 1), 401, 401, 401},
		{"without a signature", name + fmt.Sprintf("operator.%d.", time.Now().Add(time.Hour).Unix()), 401, 401, 401},
		{"the link's token", name + d.sessions.unused().Reveal(), 401, 401, 401},
		{"another name", "session=" + d.sessions.sign(keys.Operator, time.Now().Add(time.Hour)), 401, 401, 401},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, r := range []struct {
				method, path, body string
				want               int
			}{
				{"GET", "/session", "", c.session},
				{"POST", "/act", `{"kind":"kill","target":"server:0"}`, c.act},
				{"GET", "/stream", "", c.see},
				{"GET", "/", "", 200}, // the page itself contains nothing about the job
			} {
				a := request(t, d, r.method, r.path, r.body, "Cookie: "+c.cookie, "X-Perdure: 1")
				if a.StatusCode != r.want {
					t.Errorf("%s %s: %s, want %d", r.method, r.path, a.Status, r.want)
				}
			}
		})
	}
}

// TestLink: a link admits one browser as operator, once. The directory then has another link, which only the owner may
// read.
func TestLink(t *testing.T) {
	p := newPlace(t)
	d := p.serve(t, &fakeJob{})
	file := filepath.Join(p.Path(), LinkFile)
	use := func(token string) *http.Response {
		return request(t, d, "POST", "/session", fmt.Sprintf(`{"token":%q}`, token), "X-Perdure: 1")
	}
	token := func() string {
		text, err := os.ReadFile(file)
		must(t, err)
		info, err := os.Stat(file)
		must(t, err)
		address, token, _ := strings.Cut(strings.TrimSpace(string(text)), "/#")
		if address != d.Address() || info.Mode().Perm() != 0o600 {
			t.Errorf("%s, mode %v", address, info.Mode())
		}
		return token
	}
	first := token()
	a := use(first)
	if a.StatusCode != http.StatusNoContent || len(a.Cookies()) != 1 {
		t.Fatalf("%s, cookies %v", a.Status, a.Cookies())
	}
	c := a.Cookies()[0]
	if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != "/" || c.MaxAge <= 0 ||
		strings.Contains(c.Value, first) {
		t.Errorf("cookie %v", c)
	}
	if a := request(t, d, "GET", "/session", "", "Cookie: "+c.Name+"="+c.Value); a.StatusCode != http.StatusNoContent {
		t.Errorf("the cookie is refused: %s", a.Status)
	}
	if second := token(); second == first {
		t.Error("the directory still has the used link")
	} else if a := use(second); a.StatusCode != http.StatusNoContent {
		t.Errorf("the next link is refused: %s", a.Status)
	}
	for _, bad := range []string{first, "", "x", strings.Repeat("0", 64)} {
		a := use(bad)
		text, err := io.ReadAll(a.Body)
		must(t, err)
		if a.StatusCode != http.StatusUnauthorized || len(a.Cookies()) > 0 || bad != "" && bad != "x" &&
			strings.Contains(string(text), bad) {
			t.Errorf("token %q: %s, %s", bad, a.Status, text)
		}
	}
	must(t, d.Close())
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a link is left: %v", err)
	}
	key, err := os.Stat(filepath.Join(p.Path(), KeyFile))
	if err != nil || key.Mode().Perm() != 0o600 {
		t.Errorf("key: %v, %v", key, err)
	}
}

// TestForeignPages: a page of another origin can neither act nor read, even with the browser's cookie.
func TestForeignPages(t *testing.T) {
	job := &fakeJob{}
	d := newPlace(t).serve(t, job)
	_, port, _ := strings.Cut(strings.TrimPrefix(d.Address(), "http://"), ":")
	own := "http://127.0.0.1:" + port
	const header = "X-Perdure: 1"
	for _, c := range []struct {
		name    string
		headers []string
		want    int
	}{
		{"the page", []string{header, "Origin: " + own, "Sec-Fetch-Site: same-origin"}, 200},
		{"a script", []string{header}, 200},
		{"through a tunnel", []string{header, "Host: localhost:8000", "Origin: http://localhost:8000"}, 200},
		{"IPv6", []string{header, "Host: [::1]:8000"}, 200},
		{"without the header", []string{"Origin: " + own}, 403},
		{"a form", []string{"Origin: http://evil.example", "Content-Type: text/plain"}, 403},
		{"another origin", []string{header, "Origin: http://evil.example"}, 403},
		{"another port", []string{header, "Origin: http://127.0.0.1:1"}, 403},
		{"another scheme", []string{header, "Origin: https://127.0.0.1:" + port}, 403},
		{"no origin", []string{header, "Origin: null"}, 403},
		{"another site", []string{header, "Sec-Fetch-Site: cross-site"}, 403},
		{"the same site", []string{header, "Sec-Fetch-Site: same-site"}, 403},
		{"a rebound name", []string{header, "Host: evil.example:" + port}, 403},
		{"a rebound name as origin", []string{header, "Host: evil.example", "Origin: http://evil.example"}, 403},
		{"another machine's address", []string{header, "Host: 10.0.0.5:" + port}, 403},
	} {
		t.Run(c.name, func(t *testing.T) {
			job.acts = nil
			a := request(t, d, "POST", "/act", `{"kind":"kill","target":"server:0"}`,
				append(c.headers, "Cookie: "+cookie(d, keys.Operator))...)
			if a.StatusCode != c.want || (len(job.acts) == 1) != (c.want == 200) {
				t.Errorf("%s, %v", a.Status, job.acts)
			}
		})
	}
	for _, headers := range [][]string{{"Origin: http://evil.example"}, {"Host: evil.example"}} {
		for _, path := range []string{"/", "/stream", "/session"} {
			a := request(t, d, "GET", path, "", append(headers, "Cookie: "+cookie(d, keys.Operator))...)
			if a.StatusCode != http.StatusForbidden {
				t.Errorf("GET %s with %s: %s", path, headers, a.Status)
			}
		}
	}
	a := request(t, d, "OPTIONS", "/act", "", "Origin: "+own, "Access-Control-Request-Headers: x-perdure")
	if allowed := a.Header.Get("Access-Control-Allow-Origin"); allowed != "" {
		t.Errorf("other origins are allowed: %s", allowed)
	}
}

// TestPolicy: the page runs no inline script, loads nothing from elsewhere, and cannot be embedded.
func TestPolicy(t *testing.T) {
	d := newPlace(t).serve(t, &fakeJob{})
	entries, err := pageFiles.ReadDir("page")
	must(t, err)
	for _, e := range entries {
		path := "/" + e.Name()
		if path == "/index.html" {
			path = "/"
		}
		a := request(t, d, "GET", path, "")
		text, err := io.ReadAll(a.Body)
		must(t, err)
		policy := a.Header.Get("Content-Security-Policy")
		if a.StatusCode != http.StatusOK || strings.Contains(policy, "unsafe") ||
			!strings.Contains(policy, "script-src 'self'") || !strings.Contains(policy, "'sha256-") ||
			!strings.Contains(policy, "frame-ancestors 'none'") ||
			a.Header.Get("X-Content-Type-Options") != "nosniff" || a.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %s, %v", path, a.Status, a.Header)
		}
		for _, bad := range []string{"https://", "innerHTML", "document.write", "eval(", "onclick=", "style=\""} {
			if strings.Contains(string(text), bad) {
				t.Errorf("%s contains %s", path, bad)
			}
		}
	}
}

// TestFramed: only with the setting, and only pages of this machine can embed the page.
func TestFramed(t *testing.T) {
	for framed, want := range map[bool]string{
		false: "'none'",
		true:  "http://127.0.0.1:* http://localhost:* https://127.0.0.1:* https://localhost:*",
	} {
		p := newPlace(t)
		l, err := Listen("127.0.0.1:0", nil)
		must(t, err)
		d, err := Open(l, Config{Dir: p.Path(), Run: &p.run, Job: &fakeJob{}, Framed: framed})
		must(t, err)
		t.Cleanup(func() { _ = d.Close() })
		policy := request(t, d, "GET", "/", "").Header.Get("Content-Security-Policy")
		if _, got, _ := strings.Cut(policy, "frame-ancestors "); got != want {
			t.Errorf("framed %v: %q may embed the page, want %q", framed, got, want)
		}
	}
}

// TestListen: without keys, other machines cannot reach the page.
func TestListen(t *testing.T) {
	for addr, want := range map[string]bool{
		"127.0.0.1:0": true, ":0": true, "[::1]:0": true, "localhost:0": true,
		"0.0.0.0:0": false, "[::]:0": false, "127.0.0.1": false, "": false, "127.0.0.1:99999": false,
	} {
		l, err := Listen(addr, nil)
		if err == nil {
			must(t, l.Close())
			must(t, l.Close()) // no effect
		} else if strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %q has several lines", addr, err)
		}
		if strings.HasPrefix(addr, "[::1]") && err != nil {
			continue // no IPv6 here
		}
		if (err == nil) != want {
			t.Errorf("%s: %v", addr, err)
		}
	}
	if _, err := Listen("0.0.0.0:0", nil); !errors.Is(err, perdure.ErrUsage) {
		t.Errorf("%v", err)
	}
}

// TestTokens: in a job with keys, a token admits its holder in its role until it is revoked.
func TestTokens(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	_, err := authority.New(dir, "job", time.Hour, time.Now)
	must(t, err)
	a, err := authority.Open(dir, time.Now)
	must(t, err)
	_, viewer, err := a.Token(keys.Viewer, "vera", time.Hour)
	must(t, err)
	revoked, operator, err := a.Token(keys.Operator, "otto", time.Hour)
	must(t, err)
	ring, err := keys.Open(keys.RoleDir(dir, keys.Coordinator))
	must(t, err)
	p := newPlace(t)
	l, err := Listen("127.0.0.1:0", ring)
	must(t, err)
	d, err := Open(l, Config{Dir: p.Path(), Run: &p.run, Job: &fakeJob{}})
	must(t, err)
	t.Cleanup(func() { _ = d.Close() })
	enter := func(token string) string {
		t.Helper()
		a := request(t, d, "POST", "/session", fmt.Sprintf(`{"token":%q}`, token), "X-Perdure: 1")
		if a.StatusCode != http.StatusNoContent {
			t.Fatalf("session: %s", a.Status)
		}
		return a.Cookies()[0].Name + "=" + a.Cookies()[0].Value
	}
	act := func(cookie string) int {
		t.Helper()
		return request(t, d, "POST", "/act", `{"kind":"add"}`, "X-Perdure: 1", "Cookie: "+cookie).StatusCode
	}
	v, o := enter(viewer), enter(operator)
	if v, o := act(v), act(o); v != http.StatusForbidden || o != http.StatusOK {
		t.Errorf("a viewer acts: %d, an operator: %d", v, o)
	}
	if _, err := a.Revoke([]string{keys.Serial(revoked.Serial)}); err != nil {
		t.Fatal(err)
	}
	must(t, ring.Refresh())
	if o := act(o); o != http.StatusUnauthorized {
		t.Errorf("a revoked token acts: %d", o)
	}
}

// TestNetwork: in a job with keys, other machines can reach the page over TLS only, under the names of this machine.
func TestNetwork(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	_, err := authority.New(dir, "job", time.Hour, time.Now)
	must(t, err)
	ring, err := keys.Open(keys.RoleDir(dir, keys.Coordinator))
	must(t, err)
	p := newPlace(t)
	l, err := Listen("0.0.0.0:0", ring)
	must(t, err)
	d, err := Open(l, Config{Dir: p.Path(), Run: &p.run, Job: &fakeJob{}})
	must(t, err)
	t.Cleanup(func() { _ = d.Close() })
	if !strings.HasPrefix(d.Address(), "https://") {
		t.Errorf("address %s", d.Address())
	}
	at := l.Addr().String()
	_, port, err := net.SplitHostPort(at)
	must(t, err)
	trusting := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // browsers do not know the job's authority
	}}
	t.Cleanup(trusting.CloseIdleConnections)
	machine, err := os.Hostname()
	must(t, err)
	for host, want := range map[string]int{
		"127.0.0.1:" + port: 200, "10.0.0.5:" + port: 200, machine + ":" + port: 200, "evil.example:" + port: 403,
		strings.ToUpper(machine) + ":" + port: 200, strings.ToLower(machine) + ":" + port: 200,
	} {
		r, err := http.NewRequestWithContext(t.Context(), "GET", "https://127.0.0.1:"+port+"/", nil)
		must(t, err)
		r.Host = host
		a, err := trusting.Do(r)
		must(t, err)
		must(t, a.Body.Close())
		if a.StatusCode != want {
			t.Errorf("host %s: %s, want %d", host, a.Status, want)
		}
	}
	body := fmt.Sprintf(`{"token":%q}`, d.sessions.unused().Reveal())
	r, err := http.NewRequestWithContext(t.Context(), "POST", "https://127.0.0.1:"+port+"/session",
		strings.NewReader(body))
	must(t, err)
	r.Header.Set("X-Perdure", "1")
	a, err := trusting.Do(r)
	must(t, err)
	must(t, a.Body.Close())
	if len(a.Cookies()) != 1 || !a.Cookies()[0].Secure {
		t.Errorf("%s, cookies %v", a.Status, a.Cookies())
	}
	if a, err := http.Get("http://127.0.0.1:" + port + "/"); err == nil {
		must(t, a.Body.Close())
		if a.StatusCode == http.StatusOK {
			t.Error("the page is served without TLS")
		}
	}
}

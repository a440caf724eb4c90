package control

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/keys/authority"
)

// caller is one kind of caller.
type caller struct {
	name   string // of its row in the table
	who    string // name in the log; "": never reaches the gate
	ring   *keys.Ring
	shows  string
	addr   string
	host   string
	origin string
	then   func() // run after connecting; may be nil
}

// client returns an HTTP client and a base URL for the caller; end closes its connections.
func (c *caller) client() (tool *http.Client, url string, end func()) {
	t := &http.Transport{}
	url = "http://" + c.addr
	if c.ring != nil {
		t.TLSClientConfig, t.ForceAttemptHTTP2, url = c.ring.Client(keys.Coordinator), true, "https://"+c.addr
	}
	return &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		r = r.Clone(r.Context())
		r.Host = c.host
		for name, value := range map[string]string{"Origin": c.origin, "Authorization": c.shows} {
			if value != "" {
				r.Header.Set(name, value)
			}
		}
		return t.RoundTrip(r)
	})}, url, t.CloseIdleConnections
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// crossing makes every call with every kind of caller.
type crossing struct {
	*testing.T
	heardJob
	dir     string // directory of the job's keys
	ours    *authority.Authority
	own     *keys.Ring // the coordinator's keys
	keyed   string     // address of the job with keys
	plain   string     // address of the job without keys
	rights  map[string]map[string]string
	callers []*caller
}

const secret = "Bearer open sesame"

func newCrossing(t *testing.T) *crossing {
	c := &crossing{T: t}
	c.ours, c.dir = newAuthority(t, "job", 0)
	c.own = c.ring(keys.RoleDir(c.dir, keys.Coordinator))
	c.keyed = c.serve(t, Authorizer{Secret: "open sesame", Ring: c.own})
	c.plain = c.serve(t, Authorizer{Secret: "open sesame"})
	return c
}

func (c *crossing) ring(dir string) *keys.Ring {
	c.Helper()
	r, err := keys.Open(dir)
	must(c.T, err)
	return r
}

// at returns the authority with a clock that is ahead of this machine's.
func (c *crossing) at(ahead time.Duration) *authority.Authority {
	c.Helper()
	a, err := authority.Open(c.dir, func() time.Time { return time.Now().Add(ahead) })
	must(c.T, err)
	return a
}

// add adds a caller of the job with keys.
func (c *crossing) add(name, who string, ring *keys.Ring, shows string) *caller {
	added := &caller{name: name, who: who, ring: ring, shows: shows, addr: c.keyed, host: c.keyed}
	c.callers = append(c.callers, added)
	return added
}

// certificates adds the callers with certificates.
func (c *crossing) certificates() {
	rings := map[keys.Role]*keys.Ring{}
	for _, role := range keys.Roles {
		rings[role] = c.ring(keys.RoleDir(c.dir, role))
		c.add(articled("certificate of", role), fmt.Sprintf("%s/%[1]s", role), rings[role], "")
	}
	c.add("certificate of a worker, token of an operator", "worker/worker", rings[keys.Worker],
		"Bearer "+issued(c.T, c.ours, keys.Operator))
	c.add("certificate of a viewer, the run's secret", "viewer/viewer", rings[keys.Viewer], secret)
	c.add("certificate of an operator, from a page elsewhere", "a page", rings[keys.Operator],
		"").origin = "https://evil.example"
	c.add("certificate of an operator, who has connected and is revoked since", "operator/revoked",
		c.operator(c.ours, "revoked"), "").then = func() { c.revoke("operator-revoked") }
	revoked := c.operator(c.ours, "gone")
	c.revoke("operator-gone")
	c.add("certificate of an operator, revoked", "", revoked, "")
	c.add("certificate of an operator, which has run out", "", c.operator(c.at(-2*time.Hour), "late"), "")
	_, others := newAuthority(c.T, "job", 0)
	c.add("certificate of an operator of another job", "", c.ring(keys.RoleDir(others, keys.Operator)), "")
}

// operator issues keys for an operator.
func (c *crossing) operator(a *authority.Authority, name string) *keys.Ring {
	c.Helper()
	h, err := a.Issue(keys.Operator, name, time.Hour)
	must(c.T, err)
	return c.ring(h.Dir)
}

// revoke revokes a name or serial number. The coordinator knows about it when revoke returns.
func (c *crossing) revoke(name string) {
	c.Helper()
	_, err := c.ours.Revoke([]string{name})
	must(c.T, err)
	must(c.T, c.own.Refresh())
}

// tokens adds the callers with tokens and no certificate.
func (c *crossing) tokens() {
	bare, err := keys.OpenTrusted(filepath.Join(c.dir, "ca"), "job")
	must(c.T, err)
	for _, role := range authority.TokenRoles {
		made, text, err := c.ours.Token(role, "ci", time.Hour)
		must(c.T, err)
		c.add(articled("token of", role), made.String(), bare, "Bearer "+text)
	}
	gone, text, err := c.ours.Token(keys.Operator, "gone", time.Hour)
	must(c.T, err)
	c.revoke(keys.Serial(gone.Serial))
	c.add("token of an operator, revoked", "somebody", bare, "Bearer "+text)
	others, _ := newAuthority(c.T, "job", 0)
	for name, a := range map[string]*authority.Authority{
		", which has run out": c.at(-2 * time.Hour), ", of tomorrow": c.at(24 * time.Hour), " of another job": others,
	} {
		c.add("token of an operator"+name, "somebody", bare, "Bearer "+issued(c.T, a, keys.Operator))
	}
	c.add("the run's secret", "somebody", bare, secret)
	c.add("nothing", "somebody", bare, "")
	c.add("nothing, and without TLS", "", nil, "")
}

// secrets adds the callers of the job without keys.
func (c *crossing) secrets() {
	for _, x := range []struct{ name, who, shows string }{
		{"the run's secret", "a holder of the run's secret", secret},
		{"the run's secret, by another name of the machine", "somebody", secret},
		{"the run's secret, from a page elsewhere", "a page", secret},
		{"another secret", "somebody", secret + "!"},
		{"token of an operator", "somebody", "Bearer " + issued(c.T, c.ours, keys.Operator)},
		{"nothing", "somebody", ""},
	} {
		added := c.add("without keys: "+x.name, x.who, nil, x.shows)
		added.addr, added.host = c.plain, c.plain
		switch {
		case strings.HasSuffix(x.name, "name of the machine"):
			added.host = "evil.example"
		case strings.HasSuffix(x.name, "page elsewhere"):
			added.origin = "http://evil.example"
		}
	}
}

// articled appends a role with its article, as in "token of an operator".
func articled(what string, role keys.Role) string {
	if role == keys.Operator {
		return what + " an " + string(role)
	}
	return what + " a " + string(role)
}

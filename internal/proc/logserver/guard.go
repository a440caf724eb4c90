package logserver

import (
	"cmp"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"net"
	"slices"
	"sync"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/logauth"
)

// isolated are the rights of roles that get an account of their own (see connGuard.isolatedAccount).
const isolated = updatelog.MayInspect | updatelog.MayList | updatelog.MayAppend

// subjects lists the subjects that each right allows its holder to publish to.
var subjects = map[updatelog.Rights][]string{
	updatelog.MayInspect: {"$JS.API.INFO", "$JS.API.STREAM.INFO.*", "$JS.API.STREAM.MSG.GET.*", "$JS.API.DIRECT.GET.*"},
	updatelog.MayList:    {"$JS.API.STREAM.LIST", "$JS.API.CONSUMER.LIST.*"},
	updatelog.MayAppend:  {"perdure.*.*"},
	updatelog.MayRead: {
		"$JS.API.CONSUMER.CREATE.*.*", "$JS.API.CONSUMER.CREATE.*.*.>", "$JS.API.CONSUMER.INFO.*.*",
		"$JS.API.CONSUMER.DELETE.*.*", "$JS.API.CONSUMER.MSG.NEXT.*.*",
	},
	updatelog.MayTrim:   {"$JS.API.STREAM.PURGE.*"},
	updatelog.MayCreate: {"$JS.API.STREAM.CREATE.*", "$JS.API.STREAM.UPDATE.*"},
	updatelog.MayRemove: {"$JS.API.STREAM.DELETE.*"},
}

// Guard makes a log require client certificates. It maps certificates to rights, so that the log itself does not depend
// on roles. Its functions must be safe for concurrent use.
type Guard struct {
	// TLS requests a client certificate and rejects invalid ones.
	TLS *tls.Config
	// Admit returns the rights of a certificate's holder (0: the connection is rejected) and its kind. Clients of one
	// kind cannot see the log's answers to clients of another kind.
	Admit func(*x509.Certificate) (kind string, may updatelog.Rights)
	// Revoked reports whether the certificate is revoked.
	Revoked func(*x509.Certificate) bool
	// MaxConnsPerPeer is the maximum number of concurrent connections per certificate and machine; 0: 4,096. A process
	// needs one connection, and a job at most one per process on the machine.
	MaxConnsPerPeer int
}

// NewGuard returns the guard of a log that requires the keys of a job. ofRun reports whether the log belongs to a
// single run, whose processes alone start it.
func NewGuard(ring *keys.Ring, ofRun bool) *Guard {
	if ring == nil {
		return nil
	}
	return &Guard{
		TLS: ring.Server(),
		Admit: func(c *x509.Certificate) (string, updatelog.Rights) {
			who, err := keys.IdentityOf(c)
			if err != nil {
				return "", 0
			}
			return string(who.Role), logauth.RightsOf(who.Role, ofRun)
		},
		Revoked: ring.Revoked,
	}
}

// defaultMaxConnsPerPeer is the default of Guard.MaxConnsPerPeer.
const defaultMaxConnsPerPeer = 4096

// permissions returns the publish and subscribe permissions that the server enforces for a connection.
func permissions(kind string, may updatelog.Rights) *server.Permissions {
	p := &server.Permissions{
		Publish:   &server.SubjectPermission{Allow: []string{}},
		Subscribe: &server.SubjectPermission{Allow: []string{updatelog.Inbox(kind) + ".>"}},
	}
	for right, to := range subjects {
		if may&right != 0 {
			p.Publish.Allow = append(p.Publish.Allow, to...)
		}
	}
	slices.Sort(p.Publish.Allow)
	return p
}

// connGuard authenticates connections to a log that has a guard. It is safe for concurrent use.
type connGuard struct {
	nats       *server.Server
	guard      *Guard
	token      string // additionally required; "": none
	maxPerPeer int    // Guard.MaxConnsPerPeer

	mu    sync.Mutex        // guards conns
	conns map[uint64]client // by connection ID
}

type client struct {
	certificates []*x509.Certificate
	peer         string // certificate serial and machine
}

// newConnGuard returns the connGuard of a log. It also requires the token unless that is "".
func newConnGuard(g *Guard, token string) *connGuard {
	return &connGuard{
		guard: g, token: token, maxPerPeer: cmp.Or(g.MaxConnsPerPeer, defaultMaxConnsPerPeer),
		conns: map[uint64]client{},
	}
}

// SetServer sets the server that the connGuard protects. It must be called before the server starts.
func (d *connGuard) SetServer(n *server.Server) { d.nats = n }

// Check implements server.Authentication. The server calls it after the TLS handshake and the client's CONNECT message.
func (d *connGuard) Check(c server.ClientAuthentication) bool {
	s := c.GetTLSConnectionState()
	if s == nil || len(s.PeerCertificates) == 0 {
		return false
	}
	if d.token != "" && subtle.ConstantTimeCompare([]byte(c.GetOpts().Token), []byte(d.token)) != 1 {
		return false
	}
	leaf := s.PeerCertificates[0]
	kind, may := d.guard.Admit(leaf)
	if may == 0 {
		return false
	}
	machine, _, err := net.SplitHostPort(c.RemoteAddress().String())
	if err != nil {
		machine = "" // an address without a port; all of these count as one machine
	}
	v := client{certificates: s.PeerCertificates, peer: leaf.SerialNumber.Text(16) + "@" + machine}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.countLocked(v.peer) >= d.maxPerPeer {
		return false
	}
	account, err := d.isolatedAccount(kind, may)
	if err != nil {
		d.nats.Errorf("cannot admit a %s: %v", kind, err)
		return false
	}
	d.conns[c.GetID()] = v
	c.RegisterUser(&server.User{Username: kind, Account: account, Permissions: permissions(kind, may)})
	return true
}

// isolatedAccount returns the account of a kind whose rights are all in isolated, and nil for other kinds, which use
// the log's own account.
//
// Publish permissions alone are not sufficient. A client chooses the subject to which the log sends its answer. If that
// is a subject that the client must not publish to itself, the log's own account would purge or delete a stream on the
// client's behalf. An account of its own contains only the requests that the client may send, and answers stay in that
// account.
func (d *connGuard) isolatedAccount(kind string, may updatelog.Rights) (*server.Account, error) {
	if may&^isolated != 0 {
		return nil, nil
	}
	a, isNew := d.nats.LookupOrRegisterAccount("perdure-" + kind)
	if !isNew {
		return a, nil
	}
	own := d.nats.GlobalAccount()
	for _, to := range permissions(kind, may).Publish.Allow {
		if err := own.AddServiceExport(to, nil); err != nil {
			return nil, err
		}
		if err := a.AddServiceImport(own, to, to); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// countLocked returns the number of open connections of a peer. The caller must hold d.mu.
func (d *connGuard) countLocked(peer string) (n int) {
	for id, v := range d.conns {
		if v.peer == peer && d.nats.GetClient(id) != nil {
			n++
		}
	}
	return n
}

// sweep forgets closed connections, and returns those whose certificate is revoked.
func (d *connGuard) sweep() (out []uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, v := range d.conns {
		switch {
		case d.nats.GetClient(id) == nil:
			delete(d.conns, id)
		case slices.ContainsFunc(v.certificates, d.guard.Revoked):
			out = append(out, id)
		}
	}
	return out
}

// Evict closes connections whose certificates are revoked, and returns their IDs.
func (d *connGuard) Evict() (ended []uint64) {
	if d == nil {
		return nil
	}
	for _, id := range d.sweep() {
		if d.nats.DisconnectClientByID(id) == nil { // an error means that it just closed
			ended = append(ended, id)
		}
	}
	return ended
}

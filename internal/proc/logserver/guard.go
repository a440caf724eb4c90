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
	"github.com/perdure/perdure/internal/proc/logkeys"
)

// harmless are the rights of those who are kept apart (see Door.apart).
const harmless = updatelog.MayLook | updatelog.MayList | updatelog.MayAppend

// subjects are what a right lets its holder send messages to.
var subjects = map[updatelog.Rights][]string{
	updatelog.MayLook:   {"$JS.API.INFO", "$JS.API.STREAM.INFO.*", "$JS.API.STREAM.MSG.GET.*", "$JS.API.DIRECT.GET.*"},
	updatelog.MayList:   {"$JS.API.STREAM.LIST", "$JS.API.CONSUMER.LIST.*"},
	updatelog.MayAppend: {"perdure.*.*"},
	updatelog.MayRead: {
		"$JS.API.CONSUMER.CREATE.*.*", "$JS.API.CONSUMER.CREATE.*.*.>", "$JS.API.CONSUMER.INFO.*.*",
		"$JS.API.CONSUMER.DELETE.*.*", "$JS.API.CONSUMER.MSG.NEXT.*.*",
	},
	updatelog.MayTrim:   {"$JS.API.STREAM.PURGE.*"},
	updatelog.MayMake:   {"$JS.API.STREAM.CREATE.*", "$JS.API.STREAM.UPDATE.*"},
	updatelog.MayRemove: {"$JS.API.STREAM.DELETE.*"},
}

// Guard has a log ask whoever connects for a certificate. It knows who may do what; the log knows nothing of roles. Its
// functions are called by several goroutines.
type Guard struct {
	// TLS asks for a certificate, and refuses those that are good for nothing.
	TLS *tls.Config
	// Admit says what the holder of a certificate may do (0: he is not let in), and whom he is one of: who is of
	// another kind cannot see what the log answers him.
	Admit func(*x509.Certificate) (kind string, may updatelog.Rights)
	// Revoked reports whether nobody takes a certificate any more.
	Revoked func(*x509.Certificate) bool
	// MostOfOne is how many connections there may be at once by one certificate on one machine: a process has one, and
	// a job at most as many processes on a machine. 0: 4,096.
	MostOfOne int
}

// NewGuard is how a log asks for the keys of a job; ofRun: it is that of one run, whose processes alone start it.
func NewGuard(ring *keys.Ring, ofRun bool) *Guard {
	if ring == nil {
		return nil
	}
	return &Guard{
		TLS: ring.Server(),
		Admit: func(c *x509.Certificate) (string, updatelog.Rights) {
			who, err := keys.Of(c)
			if err != nil {
				return "", 0
			}
			return string(who.Role), logkeys.Of(who.Role, ofRun)
		},
		Revoked: ring.Revoked,
	}
}

// defaultMostOfOne is Guard.MostOfOne where that is 0.
const defaultMostOfOne = 4096

// permissions are what the server checks for each message and each subscription of a connection.
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

// Door lets connections in at a log that has a guard. It is safe for concurrent use.
type connGuard struct {
	nats  *server.Server
	guard *Guard
	token string // that is asked for, too; "": none is
	most  int    // Guard.MostOfOne

	mu     sync.Mutex         // guards what follows
	inside map[uint64]visitor // by the number of the connection
}

type visitor struct {
	shown []*x509.Certificate
	peer  string // the certificate, and the machine
}

// newConnGuard makes the door of a log that also asks for a token, unless that is "".
func newConnGuard(g *Guard, token string) *connGuard {
	return &connGuard{guard: g, token: token, most: cmp.Or(g.MostOfOne, defaultMostOfOne), inside: map[uint64]visitor{}}
}

// Of says whose door it is, before that is opened.
func (d *connGuard) Of(n *server.Server) { d.nats = n }

// Check implements server.Authentication: the handshake is over, and the peer has said what it wants.
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
		machine = "" // it has no port, and all such are one
	}
	v := visitor{shown: s.PeerCertificates, peer: leaf.SerialNumber.Text(16) + "@" + machine}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.has(v.peer) >= d.most {
		return false
	}
	account, err := d.apart(kind, may)
	if err != nil {
		d.nats.Errorf("The log cannot let in a %s: %v", kind, err)
		return false
	}
	d.inside[c.GetID()] = v
	c.RegisterUser(&server.User{Username: kind, Account: account, Permissions: permissions(kind, may)})
	return true
}

// apart is the account of a kind whose rights are harmless; nil: the log's own. What somebody may send says little
// alone: he also says where the log is to send its answer, and may name what he may not send to himself, so that the
// log, in its own account, would purge or delete a stream in his place. In an account of his own there is nothing of
// the log but the requests that he may make, and answers go nowhere else.
func (d *connGuard) apart(kind string, may updatelog.Rights) (*server.Account, error) {
	if may&^harmless != 0 {
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

// has counts the connections of a peer that have not ended. It needs the lock.
func (d *connGuard) has(peer string) (n int) {
	for id, v := range d.inside {
		if v.peer == peer && d.nats.GetClient(id) != nil {
			n++
		}
	}
	return n
}

// sweep forgets connections that have ended, and returns those whose certificate was revoked.
func (d *connGuard) sweep() (out []uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, v := range d.inside {
		switch {
		case d.nats.GetClient(id) == nil:
			delete(d.inside, id)
		case slices.ContainsFunc(v.shown, d.guard.Revoked):
			out = append(out, id)
		}
	}
	return out
}

// Evict ends the connections of those whose certificates were revoked, and returns their numbers.
func (d *connGuard) Evict() (ended []uint64) {
	if d == nil {
		return nil
	}
	for _, id := range d.sweep() {
		if d.nats.DisconnectClientByID(id) == nil { // else it has just ended
			ended = append(ended, id)
		}
	}
	return ended
}

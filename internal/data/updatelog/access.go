package updatelog

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/nats-io/nats.go"
)

// KeysScheme is how the address of a log begins that asks for certificates, and shows one: perdure://HOST:PORT. A NATS
// server that others run has nats:// or tls://.
const KeysScheme = "perdure"

// AsksForKeys reports whether the log at an address asks for certificates.
func AsksForKeys(address string) bool { return strings.HasPrefix(address, KeysScheme+"://") }

// dialled is a log's address as the NATS client knows it.
func dialled(address string) string {
	if !AsksForKeys(address) {
		return address
	}
	return strings.ReplaceAll(address, KeysScheme+"://", "tls://")
}

// Access is what a client shows to a log whose address begins with KeysScheme. Where it is nil nothing is shown but
// what the address itself has.
type Access struct {
	TLS  *tls.Config
	Kind string // as the log's Guard has it
	Who  string // as people read it
	// Token is shown, too, where the address has none; "": nothing is.
	Token string
	// OneByOne says that it only looks at records, one by one: the log keeps no reader's place for it.
	OneByOne bool
	// Explain says what an error of a handshake means, and whether it will be the same the next time; nil: it says
	// nothing of keys.
	Explain func(error) (why error, forGood bool)
}

// To is the access that the log at an address asks for; nil: it asks for none.
func (a *Access) To(address string) *Access {
	if AsksForKeys(address) {
		return a
	}
	return nil
}

// Options are how a NATS client shows who it is.
func (a *Access) Options() []nats.Option {
	return []nats.Option{
		nats.Secure(a.TLS), nats.TLSHandshakeFirst(), nats.CustomInboxPrefix(Inbox(a.Kind)), nats.Token(a.Token),
	}
}

// Shown is what was shown, for messages.
func (a *Access) Shown() string {
	if a == nil {
		return "these credentials"
	}
	return "the keys of " + a.Who
}

// Explained says what an error of a connection means, and whether it will be the same the next time, which is known of
// those that have nothing to do with keys.
func (a *Access) Explained(err error, transient bool) (why error, forGood bool) {
	var silent *net.OpError // it takes connections, and says nothing
	switch {
	case a != nil && a.Explain != nil:
		if why, forGood = a.Explain(err); why != nil {
			return why, forGood
		}
	case errors.As(err, &silent) && silent.Op == "read" && silent.Timeout():
		err = fmt.Errorf("%w (if it is served with keys, its address begins with %s://)", err, KeysScheme)
	}
	return err, !transient
}

// ReadsOneByOne reports whether the log keeps no reader's place for it.
func (a *Access) ReadsOneByOne() bool { return a != nil && a.OneByOne }

// Rights are what somebody may do at a log.
type Rights uint

// The rights that there are. All go by the subjects of messages, as NATS knows them: which of a job's shards, and what
// is in a record, nobody looks at.
const (
	MayLook   Rights = 1 << iota // at streams that he names, and at records, one by one
	MayList                      // all streams, and who reads them
	MayAppend                    // records
	MayRead                      // streams as they grow, for which the log keeps a reader's place
	MayTrim                      // streams
	MayMake                      // streams
	MayRemove                    // streams
)

// Inbox is where a log that asks for keys answers those of a kind.
func Inbox(kind string) string { return "_INBOX." + kind }

package updatelog

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/nats-io/nats.go"
)

// KeysScheme is the URL scheme of a log that requires client certificates and presents its own: perdure://HOST:PORT.
// Externally managed NATS servers use nats:// or tls://.
const KeysScheme = "perdure"

// RequiresKeys reports whether the log at an address requires certificates.
func RequiresKeys(address string) bool { return strings.HasPrefix(address, KeysScheme+"://") }

// natsURL returns a log's address in the form that the NATS client accepts.
func natsURL(address string) string {
	if !RequiresKeys(address) {
		return address
	}
	return strings.ReplaceAll(address, KeysScheme+"://", "tls://")
}

// Access holds the credentials that a client presents to a log whose address starts with KeysScheme. With nil, the
// client presents only the credentials in the address itself.
type Access struct {
	TLS  *tls.Config
	Kind string // as returned by the log's Guard
	Name string // for messages
	// Token is presented in addition if the address has none; "": none.
	Token string
	// WithoutConsumer reports whether the client reads records one at a time, so that the log keeps no consumer for it.
	WithoutConsumer bool
	// Explain returns the explanation of a handshake error, and whether the error is permanent. It returns nil if the
	// error is unrelated to keys.
	Explain func(error) (why error, forGood bool)
}

// For returns the access that the log at an address requires, or nil if it requires none.
func (a *Access) For(address string) *Access {
	if RequiresKeys(address) {
		return a
	}
	return nil
}

// Options returns the NATS client options that present the credentials.
func (a *Access) Options() []nats.Option {
	return []nats.Option{
		nats.Secure(a.TLS), nats.TLSHandshakeFirst(), nats.CustomInboxPrefix(Inbox(a.Kind)), nats.Token(a.Token),
	}
}

// Describe names the presented credentials, for messages.
func (a *Access) Describe() string {
	if a == nil {
		return "these credentials"
	}
	return "the keys of " + a.Name
}

// ExplainError explains a connection error and reports whether it is permanent. For errors that are unrelated to keys,
// the caller passes whether they are transient.
func (a *Access) ExplainError(err error, transient bool) (why error, forGood bool) {
	var silent *net.OpError // accepts connections but sends nothing
	switch {
	case a != nil && a.Explain != nil:
		if why, forGood = a.Explain(err); why != nil {
			return why, forGood
		}
	case errors.As(err, &silent) && silent.Op == "read" && silent.Timeout():
		err = fmt.Errorf("%w (if the log is served with keys, its address must start with %s://)", err, KeysScheme)
	}
	return err, !transient
}

// ReadsWithoutConsumer reports whether the client reads records one at a time, without a consumer.
func (a *Access) ReadsWithoutConsumer() bool { return a != nil && a.WithoutConsumer }

// Rights is a set of operations that a client may perform on a log.
type Rights uint

// The rights. The server enforces them by message subject, as NATS does. It does not check which shards of the job a
// client uses, or the contents of records.
const (
	MayInspect Rights = 1 << iota // read the state of named streams, and single records
	MayList                       // list all streams and their consumers
	MayAppend                     // append records
	MayRead                       // follow streams with a consumer
	MayTrim                       // trim streams
	MayCreate                     // create streams
	MayRemove                     // remove streams
)

// Inbox returns the subject prefix under which a log that requires keys answers clients of a kind.
func Inbox(kind string) string { return "_INBOX." + kind }

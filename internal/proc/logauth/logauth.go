// Package logauth authorizes clients of an update log that requires job keys: it defines the rights of each role
// ([RightsOf]) and opens such a log as a client. The log itself presents a server's keys. Package updatelog defines the
// rights; this package maps roles to them.
//
//	logserver.Serve(dir, logserver.ServeOptions{Guard: logserver.NewGuard(ring, false)})
//	updatelog.Dial(ctx, "perdure://10.0.0.5:4222", updatelog.DialOptions{Access: logauth.NewAccess(ring)})
//
// A nil ring means a job without keys, for which both return nil.
package logauth

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/proc/keys"
)

// ServerRole is the role whose keys a log presents. Servers build rows from the log and may append and trim, so a
// holder of a server's keys gains nothing by impersonating the log. Therefore the log has no role of its own.
const ServerRole = keys.Server

// rights lists the rights of each role. A role that is missing is rejected.
var rights = map[keys.Role]updatelog.Rights{
	keys.Coordinator: updatelog.MayInspect | updatelog.MayList | updatelog.MayRead | updatelog.MayCreate |
		updatelog.MayRemove,
	keys.Server:   updatelog.MayInspect | updatelog.MayRead | updatelog.MayAppend | updatelog.MayTrim,
	keys.Worker:   updatelog.MayInspect | updatelog.MayAppend,
	keys.Operator: updatelog.MayInspect | updatelog.MayList,
}

// RightsOf returns the rights of a role. If the log belongs to a single run, the run's servers may also create the
// streams, which they do as they start.
func RightsOf(role keys.Role, ofRun bool) updatelog.Rights {
	may := rights[role]
	if ofRun && role == keys.Server {
		may |= updatelog.MayCreate
	}
	return may
}

// NewAccess returns the credentials and rights of a process that connects to a log.
func NewAccess(ring *keys.Ring) *updatelog.Access {
	if ring == nil {
		return nil
	}
	who := ring.Identity()
	return &updatelog.Access{
		TLS: ring.Client(ServerRole), Kind: string(who.Role), Name: who.String(),
		WithoutConsumer: rights[who.Role]&updatelog.MayRead == 0,
		Explain:         func(err error) (error, bool) { return explain(ring, err) },
	}
}

// explain returns a handshake error with an explanation of what to do, and whether the error is permanent: the log is
// not one of this job, or never accepts this certificate. If a certificate ran out, the log's or ours, the error is
// temporary, because new files may be installed. It returns nil if the error is unrelated to keys.
func explain(ring *keys.Ring, err error) (why error, forGood bool) {
	var alert *net.OpError
	var record tls.RecordHeaderError
	switch {
	case errors.As(err, &record):
		return errors.New("the log's server does not use TLS: it was started without keys"), true
	case errors.As(err, &alert) && alert.Op == "remote error" && ring.Now().After(ring.Expiry()):
		return fmt.Errorf("our own certificate, in %s, expired at %s; renew it with perdure keys renew", ring.Dir(),
			ring.Expiry().UTC().Format(time.RFC3339)), false
	case errors.As(err, &alert) && alert.Op == "remote error":
		return fmt.Errorf("it rejects %w", ring.ExplainRejection(err)), true
	case errors.Is(err, nats.ErrTLS):
		return err, keys.IsPermanent(err)
	}
	return nil, false
}

// Open returns the access of a role whose keys are in dir or in the role's subdirectory of dir, for tools that inspect
// a log or create and remove streams. It returns nil if dir is "". If a secret is stored with the keys, it is presented
// as well, because the log of a single run may require it.
func Open(dir string, role keys.Role) (*updatelog.Access, error) {
	if dir == "" {
		return nil, nil
	}
	ring, err := keys.Open(keys.RoleDir(dir, role))
	if err != nil {
		return nil, err
	}
	a := NewAccess(ring)
	if beside := ring.SecretFile(); beside != "" {
		secret, err := keys.ReadSecret(beside)
		if err != nil {
			return nil, err
		}
		a.Token = secret.Reveal()
	}
	return a, nil
}

// OpenForAppend returns a function that opens a job's log for appending only. Its only credentials are those of the
// ring, and the log's streams must already exist.
func OpenForAppend(ring *keys.Ring) func(context.Context, string, updatelog.Options) (updatelog.Log, error) {
	return func(ctx context.Context, addr string, o updatelog.Options) (updatelog.Log, error) {
		return updatelog.Dial(ctx, addr, updatelog.DialOptions{Options: o, ReadOnly: true, Access: NewAccess(ring)})
	}
}

// Package logkeys says what each role may do at an update log that asks for the keys of a job ([Of]), and opens such a
// log as a client. The log shows a server's keys. Package updatelog knows of rights, and this one of whose they are.
//
//	logserver.Serve(dir, logserver.ServeOptions{Guard: logserver.NewGuard(ring, false)})
//	updatelog.Dial(ctx, "perdure://10.0.0.5:4222", updatelog.DialOptions{Access: logkeys.Access(ring)})
//
// A nil ring is a job's without keys, and has neither.
package logkeys

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

// Shows is the role whose keys a log shows. Servers make rows of what is in it, and may append and trim: who has their
// keys has nothing to win by being the log, too, so that it has no role of its own.
const Shows = keys.Server

// rights are what each role may do. Who is not here is not let in.
var rights = map[keys.Role]updatelog.Rights{
	keys.Coordinator: updatelog.MayLook | updatelog.MayList | updatelog.MayRead | updatelog.MayMake |
		updatelog.MayRemove,
	keys.Server:   updatelog.MayLook | updatelog.MayRead | updatelog.MayAppend | updatelog.MayTrim,
	keys.Worker:   updatelog.MayLook | updatelog.MayAppend,
	keys.Operator: updatelog.MayLook | updatelog.MayList,
}

// Of is what a role may do at a log. In that of one run alone the run's servers make the streams, as they start.
func Of(role keys.Role, ofRun bool) updatelog.Rights {
	may := rights[role]
	if ofRun && role == keys.Server {
		may |= updatelog.MayMake
	}
	return may
}

// Access is what a process shows to a log.
func Access(ring *keys.Ring) *updatelog.Access {
	if ring == nil {
		return nil
	}
	who := ring.Identity()
	return &updatelog.Access{
		TLS: ring.Client(Shows), Kind: string(who.Role), Who: who.String(),
		OneByOne: rights[who.Role]&updatelog.MayRead == 0,
		Explain:  func(err error) (error, bool) { return explain(ring, err) },
	}
}

// explain says what an error of a handshake means for who wants to know what to do, and whether it is for good: the log
// will never be one of ours, or never takes what we show. New files may come for a certificate that has run out, the
// log's or ours. nil: it says nothing of keys.
func explain(ring *keys.Ring, err error) (why error, forGood bool) {
	var alert *net.OpError
	var record tls.RecordHeaderError
	switch {
	case errors.As(err, &record):
		return errors.New("it does not speak TLS: it is served without keys"), true
	case errors.As(err, &alert) && alert.Op == "remote error" && ring.Now().After(ring.Until()):
		return fmt.Errorf("our own certificate, in %s, ran out at %s: perdure keys renew makes a new one", ring.Dir(),
			ring.Until().UTC().Format(time.RFC3339)), false
	case errors.As(err, &alert) && alert.Op == "remote error":
		return fmt.Errorf("it does not take our certificate, in %s; its own log says why (%w)", ring.Dir(), err), true
	case errors.Is(err, nats.ErrTLS):
		return err, keys.Foreign(err)
	}
	return nil, false
}

// Open opens the keys of a role, in a folder or in the role's folder there, for somebody who looks into a log, or makes
// and removes streams; nil without a folder. The secret that lies beside the keys is shown, too: a run's own log may
// ask for it.
func Open(dir string, role keys.Role) (*updatelog.Access, error) {
	if dir == "" {
		return nil, nil
	}
	ring, err := keys.Open(keys.Folder(dir, role))
	if err != nil {
		return nil, err
	}
	a := Access(ring)
	if beside := ring.SecretFile(); beside != "" {
		secret, err := keys.ReadSecret(beside)
		if err != nil {
			return nil, err
		}
		a.Token = secret.Reveal()
	}
	return a, nil
}

// Appends opens a job's log for who only appends, without credentials but a ring's: its streams are there already.
func Appends(ring *keys.Ring) func(context.Context, string, updatelog.Options) (updatelog.Log, error) {
	return func(ctx context.Context, addr string, o updatelog.Options) (updatelog.Log, error) {
		return updatelog.Dial(ctx, addr, updatelog.DialOptions{Options: o, ReadOnly: true, Access: Access(ring)})
	}
}

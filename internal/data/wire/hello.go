package wire

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/perdure/perdure"
)

// Keys are the secrets of a run. Workers, observers and callers of the control API present Job. Servers and the
// supervisor present Servers, which no worker knows. If both are empty, as in tests inside one process, no secret is
// required.
type Keys struct{ Job, Servers perdure.Secret }

// For returns the secret that a process with that role presents.
func (k *Keys) For(role Role) perdure.Secret {
	if role == RoleWorker || role == RoleObserver {
		return k.Job
	}
	return k.Servers
}

// Check rejects a process that does not present the secret of its role.
func (k *Keys) Check(h *Hello) error {
	if k.For(h.Role).Matches(h.Secret) {
		return nil
	}
	what := "is missing"
	if h.Secret != "" {
		what = "belongs to another run"
	}
	how := "set PERDURE_SECRET_FILE to the path of the run's secret file"
	if h.Role != RoleWorker && h.Role != RoleObserver {
		how = "it is in the file secret.servers in the run's directory"
	}
	return fmt.Errorf("the secret of this %s %s; %s", h.Role.Printable(), what, how)
}

// Printable returns the role in a form that is safe to print: a peer may send any string as its role.
func (r Role) Printable() Role {
	switch r {
	case RoleCoordinator, RoleServer, RoleWorker, RoleObserver, RoleSupervisor:
		return r
	}
	return "process of an unknown role"
}

// Ticket returns the proof that a process speaks for a slot. The coordinator issues it to that process, and servers
// require it. It cannot be made without the servers' secret.
func (k *Keys) Ticket(job string, slot perdure.Slot, incarnation perdure.Incarnation, process string) perdure.Secret {
	if k.Servers == "" {
		return ""
	}
	sum := hmac.New(sha256.New, []byte(k.Servers.Reveal()))
	fmt.Fprintf(sum, "%q %d %d %q", job, slot, incarnation, process)
	return perdure.Secret(hex.EncodeToString(sum.Sum(nil)))
}

// LogToken returns the secret that the job's update log requires; "" if it does not require one of the run.
func (k *Keys) LogToken(job *perdure.JobSpec) string {
	if !job.LogSecret {
		return ""
	}
	return k.Job.Reveal()
}

// Bounds on a Hello.
const (
	MaxHelloBytes = 16 << 10 // bytes of the frame's payload
	maxTextBytes  = 512      // bytes of each of its texts
)

// Validate returns an error if a Hello is malformed, whatever its sender.
func (h *Hello) Validate() error {
	for _, word := range []string{h.Job, h.Process, h.Addr, h.Zone, h.Version, string(h.Role)} {
		if len(word) > maxTextBytes {
			return fmt.Errorf("%w: the hello contains a string of %d bytes; the limit is %d",
				ErrPayload, len(word), maxTextBytes)
		}
	}
	if h.Index < -1 {
		return fmt.Errorf("%w: the hello has an invalid index %d; use -1 for any", ErrPayload, h.Index)
	}
	if h.PID < 0 {
		return fmt.Errorf("%w: the hello has an invalid process id %d", ErrPayload, h.PID)
	}
	return nil
}

// Name returns the process's unique name. It is derived from the nonce, which no other process knows, so no other
// process can claim it.
func (h *Hello) Name() string {
	if h.Nonce == "" {
		return h.Process
	}
	sum := sha256.Sum256([]byte(h.Nonce.Reveal()))
	return h.Process + "+" + hex.EncodeToString(sum[:8])
}

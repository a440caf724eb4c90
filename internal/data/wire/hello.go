package wire

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/perdure/perdure"
)

// Keys are the secrets of a run. Job is what workers, observers and callers of the control
// API show, Servers what servers and the supervisor show, which no worker knows. Without
// them, as in tests inside one process, nothing is asked for.
type Keys struct{ Job, Servers perdure.Secret }

// For returns what a process of a role shows.
func (k *Keys) For(role Role) perdure.Secret {
	if role == RoleWorker || role == RoleObserver {
		return k.Job
	}
	return k.Servers
}

// Check turns away a process that does not show the secret of its role.
func (k *Keys) Check(h *Hello) error {
	if k.For(h.Role).Admits(h.Secret) {
		return nil
	}
	what := "missing"
	if h.Secret != "" {
		what = "not this run's"
	}
	file := "the file that PERDURE_SECRET_FILE names, secret in the run's folder"
	if h.Role != RoleWorker && h.Role != RoleObserver {
		file = "secret.servers in the run's folder"
	}
	return fmt.Errorf("the secret of a %s is %s; it is in %s", h.Role.Known(), what, file)
}

// Known is a role as it is put in a line: peers may call themselves anything.
func (r Role) Known() Role {
	switch r {
	case RoleCoordinator, RoleServer, RoleWorker, RoleObserver, RoleSupervisor:
		return r
	}
	return "process of an unknown role"
}

// Ticket is what the coordinator gives to the process that it lets speak for a slot, and
// what servers ask of one that would. Only those who know the servers' secret can make it.
func (k *Keys) Ticket(job string, slot perdure.Slot, incarnation perdure.Incarnation, process string) perdure.Secret {
	if k.Servers == "" {
		return ""
	}
	sum := hmac.New(sha256.New, []byte(k.Servers.Reveal()))
	fmt.Fprintf(sum, "%q %d %d %q", job, slot, incarnation, process)
	return perdure.Secret(hex.EncodeToString(sum.Sum(nil)))
}

// LogToken is what the job's update log asks for, "" if it asks for nothing of the run's.
func (k *Keys) LogToken(job *perdure.JobSpec) string {
	if !job.LogSecret {
		return ""
	}
	return k.Job.Reveal()
}

// Bounds on a Hello.
const (
	MaxHello = 16 << 10 // bytes of the frame's payload
	maxName  = 512      // bytes of each of its words
)

// Validate reports what is wrong with a Hello whoever it is from, if anything.
func (h *Hello) Validate() error {
	for _, word := range []string{h.Job, h.Process, h.Addr, h.Zone, string(h.Role)} {
		if len(word) > maxName {
			return fmt.Errorf("%w: a hello with a word of %d bytes; at most %d are taken",
				ErrPayload, len(word), maxName)
		}
	}
	if h.Index < -1 {
		return fmt.Errorf("%w: a hello for number %d; -1 asks for any", ErrPayload, h.Index)
	}
	if h.PID < 0 {
		return fmt.Errorf("%w: a hello of process %d", ErrPayload, h.PID)
	}
	return nil
}

// Name is the process's name, of no other process: nobody else knows what it was drawn
// from, whatever it calls itself.
func (h *Hello) Name() string {
	if h.Nonce == "" {
		return h.Process
	}
	sum := sha256.Sum256([]byte(h.Nonce.Reveal()))
	return h.Process + "+" + hex.EncodeToString(sum[:8])
}

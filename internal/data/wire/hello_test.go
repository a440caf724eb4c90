package wire

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/perdure/perdure"
)

// TestKeys: each role must present its own secret; the workers' secret does not admit servers.
func TestKeys(t *testing.T) {
	k := Keys{Job: "job", Servers: "servers"}
	for _, c := range []struct {
		role   Role
		secret perdure.Secret
		says   string // "": accepted
	}{
		{RoleWorker, "job", ""},
		{RoleObserver, "job", ""},
		{RoleServer, "servers", ""},
		{RoleSupervisor, "servers", ""},
		{RoleWorker, "", "the secret of this worker is missing; set PERDURE_SECRET_FILE"},
		{RoleWorker, "jo", "another run"},
		{RoleWorker, "job2", "another run"},
		{RoleWorker, "servers", "another run"},
		{RoleObserver, "", "missing"},
		{RoleServer, "job", "the secret of this server belongs to another run; it is in the file secret.servers"},
		{RoleSupervisor, "job", "the secret of this supervisor belongs to another run"},
		{RoleSupervisor, "", "missing"},
		{RoleCoordinator, "job", "another run"},
		{"king\n", "job", "the secret of this process of an unknown role belongs"},
	} {
		err := k.Check(&Hello{Role: c.role, Secret: c.secret})
		if (err == nil) != (c.says == "") || err != nil &&
			(!strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("a %q with %q: %v; want %q", c.role, c.secret.Reveal(), err, c.says)
		}
	}
	var none Keys
	if err := none.Check(&Hello{Role: RoleSupervisor}); err != nil {
		t.Errorf("without required secrets: %v", err)
	}
}

// TestTicket: a ticket belongs to one process for one slot, incarnation and job, and is made with the servers' secret.
func TestTicket(t *testing.T) {
	k := Keys{Job: "job", Servers: "servers"}
	seen := map[perdure.Secret]bool{}
	for _, ticket := range []perdure.Secret{
		k.Ticket("a", 1, 1, "p"), k.Ticket("b", 1, 1, "p"), k.Ticket("a", 2, 1, "p"), k.Ticket("a", 1, 2, "p"),
		k.Ticket("a", 1, 1, "q"),
		(&Keys{Job: "job", Servers: "others"}).Ticket("a", 1, 1, "p"),
	} {
		if ticket == "" || seen[ticket] {
			t.Errorf("the ticket %q was accepted", ticket.Reveal())
		}
		seen[ticket] = true
	}
	if !k.Ticket("a", 1, 1, "p").Matches(k.Ticket("a", 1, 1, "p")) {
		t.Error("a valid ticket was rejected")
	}
}

// TestSecretIsNotPrinted: no way of printing a hello reveals a secret; the encoding contains it.
func TestSecretIsNotPrinted(t *testing.T) {
	h := Hello{Role: RoleWorker, Secret: "hush-1", Nonce: "hush-2", Ticket: "hush-3"}
	k := Keys{Job: "hush-4", Servers: "hush-5"}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("hello", "hello", h, "secret", h.Secret, "keys", k, "pointer", &h)
	for _, v := range []any{h, &h, k, &k, h.Secret, []perdure.Secret{h.Secret}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			fmt.Fprintf(&log, verb, v)
		}
	}
	if strings.Contains(log.String(), "hush") || strings.Contains(log.String(), "687573682d") {
		t.Errorf("printed: %s", log.String())
	}
	b, err := json.Marshal(h)
	var back Hello
	if err != nil || json.Unmarshal(b, &back) != nil || back != h {
		t.Errorf("%s decodes to a different hello: %v", b, err)
	}
}

func TestHelloBounds(t *testing.T) {
	long := strings.Repeat("x", maxTextBytes+1)
	for _, h := range []Hello{
		{Index: -2},
		{Index: -1 << 62},
		{PID: -1},
		{Process: long},
		{Addr: long},
		{Zone: long},
		{Job: long},
		{Role: Role(long)},
	} {
		if h.Validate() == nil {
			t.Errorf("%.100v was accepted", h)
		}
	}
	h := Hello{Role: RoleWorker, Index: -1, Process: "own-4711", Nonce: "n"}
	if err := h.Validate(); err != nil {
		t.Error(err)
	}
	other := h
	if other.Nonce = "m"; h.Name() == other.Name() || h.Name() == h.Process ||
		!strings.HasPrefix(h.Name(), "own-4711+") {
		t.Errorf("named %s and %s", h.Name(), other.Name())
	}
}

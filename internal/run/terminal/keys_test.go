package terminal_test

import (
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/keys/authority"
	"github.com/perdure/perdure/internal/run/terminal"
)

// TestHolders checks that the list distinguishes certificates in directories, replaced ones and tokens, and marks
// revoked ones.
func TestHolders(t *testing.T) {
	who := keys.Identity{Domain: "job", Role: keys.Worker, Name: "alice"}
	until := time.Now().Add(time.Hour)
	list := []authority.Holder{
		{Identity: who, Dir: "keys/worker-alice", Serial: big.NewInt(1), Until: until},
		{Identity: who, Serial: big.NewInt(2), Until: until, Revoked: true},
		{Identity: who, Serial: big.NewInt(3), Until: until, Token: true},
		{Identity: who, Dir: "keys/worker", Serial: big.NewInt(4), Until: until.Add(-2 * time.Hour)},
	}
	var out strings.Builder
	if err := terminal.PrintHolders(&out, list, false); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")[1:]
	for i, want := range []string{"", "revoked, replaced, or its directory was removed", "token", "expired"} {
		_, note, _ := strings.Cut(lines[i], " "+keys.Serial(list[i].Serial)+" ")
		if note = strings.TrimSpace(note); note != want {
			t.Errorf("line %d ends in %q, want %q", i, note, want)
		}
	}
	out.Reset()
	terminal.PrintRevoked(&out, append(list[1:3], authority.Holder{Serial: big.NewInt(5)}))
	if said := out.String(); strings.Count(said, "\n") != 3 || !strings.Contains(said, "the token of worker/alice") ||
		!strings.Contains(said, "the serial number 5") {
		t.Errorf("revoked certificates: %q", said)
	}
	out.Reset()
	if terminal.PrintIncomplete(&out, authority.Completeness{}); out.Len() > 0 {
		t.Errorf("warning for a complete record: %q", out.String())
	}
}

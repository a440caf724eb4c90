package supervisor

import (
	"crypto/tls"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/keys/authority"
)

// TestCallLogKeys checks that a log that requires keys, and so sends nothing before the handshake, counts as alive.
func TestCallLogKeys(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	_, err := authority.New(dir, "mine", time.Hour, time.Now)
	must(t, err)
	log, err := keys.Open(keys.RoleDir(dir, keys.Server))
	must(t, err)
	mine, err := keys.Open(keys.RoleDir(dir, keys.Operator))
	must(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	j := newTestJob(t, JobConfig{LogAddr: l.Addr().String(), Ring: mine})
	j.probeInterval = patience
	go greetAll(tls.NewListener(l, log.Server()))
	if got := j.probe(j.probeTargets()[0]); got != stateAlive {
		t.Errorf("probing a log with keys: %s", got)
	}
}

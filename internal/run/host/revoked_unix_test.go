//go:build unix

package host

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/keys/authority"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/run/locate"
	"github.com/perdure/perdure/internal/run/settings"
)

// lines receives the lines of a log.
type lines chan string

func (l lines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}

// TestRevoked checks that a host whose keys are revoked logs that in one line, and neither that it hands anything over
// nor that the coordinator is unavailable. Without the new revocation list in its directory it is not certain.
func TestRevoked(t *testing.T) {
	for name, listed := range map[string]bool{"with the list": true, "without the list": false} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "keys")
			_, err := authority.New(dir, "job", time.Hour, time.Now)
			must(t, err)
			own := keys.RoleDir(dir, keys.Worker)
			if !listed {
				own = filepath.Join(t.TempDir(), "worker")
				must(t, os.CopyFS(own, os.DirFS(keys.RoleDir(dir, keys.Worker))))
				for _, file := range []string{keys.IdentityFile, keys.SecretFile} {
					must(t, os.Chmod(filepath.Join(own, file), 0o600))
				}
			}
			ring, addr := coordinate(t, dir)
			log := make(lines, 100)
			h := &Host{
				Join: addr, KeysDir: own, Workers: 1, Command: []string{"sleep", "1000"}, Dir: t.TempDir(),
				Called: "a", Log: slog.New(slog.NewTextHandler(log, nil)),
			}
			ended := make(chan error, 1)
			go func() { ended <- h.Run(t.Context(), t.Context()) }()
			for !strings.Contains(<-log, "this host keeps") {
			}
			a, err := authority.Open(dir, time.Now)
			must(t, err)
			_, err = a.Revoke([]string{"worker"})
			must(t, err)
			must(t, ring.Refresh())
			if err := <-ended; !errors.Is(err, perdure.ErrRefused) || errors.Is(err, keys.ErrRevoked) != listed ||
				!strings.Contains(err.Error(), "perdure keys renew KEYS worker") {
				t.Errorf("the host ends with %v", err)
			}
			text := ""
			for len(log) > 0 {
				text += <-log
			}
			want := "this host's keys, which are probably revoked"
			if listed {
				want = "this host's keys are revoked"
			}
			if strings.Count(text, want) != 1 || strings.Contains(text, "hand over") ||
				strings.Contains(text, "unavailable") {
				t.Errorf("the log is\n%swant one line with %q", text, want)
			}
		})
	}
}

// coordinate answers hellos as a coordinator with the keys in dir does. It returns the coordinator's ring.
func coordinate(t *testing.T, dir string) (ring *keys.Ring, addr string) {
	t.Helper()
	ring, err := keys.Open(keys.RoleDir(dir, keys.Coordinator))
	must(t, err)
	secrets, err := locate.ReadSecrets(ring.SecretFile(), "", wire.RoleServer)
	must(t, err)
	l, err := transport.TCP{Keys: ring}.Listen("127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		_ = transport.AcceptAll(context.Background(), l, quiet(), func(c transport.Conn) {
			go func() {
				defer c.Close()
				if _, err := transport.ReceiveHello(c, time.Minute, secrets); err != nil {
					return
				}
				if c.Send(wire.Control(wire.KindWelcome, wire.Welcome{Job: perdure.JobSpec{
					ID: "job", Workload: settings.OwnWorkload, Consistency: perdure.Consistency{Kind: perdure.BSP},
					Recovery: perdure.Recovery{Kind: perdure.RecoverCheckpoint, Every: 1},
				}})) == nil {
					_ = c.Recv(new(wire.Frame))
				}
			}()
		})
	}()
	return ring, l.Addr()
}

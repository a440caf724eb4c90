package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/run/locate"
	"github.com/perdure/perdure/worker"
)

// secretsOf returns a run's secrets. Only the run's user may be able to read them.
func secretsOf(t *testing.T, dir string) (all []string) {
	t.Helper()
	for _, name := range []string{locate.SecretFile, locate.SecretFile + locate.ServersExt} {
		path := filepath.Join(dir, name)
		info, err := os.Stat(path)
		must(t, err)
		secret, err := keys.ReadSecret(path)
		must(t, err)
		if info.Mode() != 0o600 || len(secret) != 64 {
			t.Errorf("%s: mode %v, %d digits, want 0600 and 64", path, info.Mode(), len(secret))
		}
		all = append(all, secret.Reveal())
	}
	return all
}

// TestSecretIsKept: no file that other users can read contains a run's secrets, nor does any process's command line or
// environment. Clients without the secrets are rejected. A resumed run has secrets of its own.
func TestSecretIsKept(t *testing.T) {
	t.Parallel()
	dir := newFolder(t)
	job := start(t, joinable(dir, "slow*2:worker:0@1h", "--recovery", "stateless")...)
	status := awaitStatus(t, dir, `join it at (\S+)\n(?s:.*)worker:2 +pid (\d+) .* live `)
	drawn := secretsOf(t, dir)
	if drawn[0] == drawn[1] {
		t.Error("both secrets are equal")
	}
	reveals := func(path string) bool {
		text, _ := os.ReadFile(path) // what cannot be read reveals nothing
		return strings.Contains(string(text), drawn[0]) || strings.Contains(string(text), drawn[1])
	}
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil // files that disappear do not count
		}
		if info, err := d.Info(); err == nil && info.Mode().Perm()&0o077 != 0 && reveals(path) {
			t.Errorf("%s, mode %v, contains a secret", path, info.Mode())
		}
		return nil
	}))
	for _, file := range []string{"cmdline", "environ"} {
		if reveals(filepath.Join("/proc", status[2], file)) {
			t.Errorf("a worker's %s contains a secret", file)
		}
	}
	address, other := controlOf(t, dir), filepath.Join(t.TempDir(), "other")
	must(t, os.WriteFile(other, []byte(keys.NewSecret().Reveal()+"\n"), 0o600))
	open := filepath.Join(t.TempDir(), "open")
	must(t, os.WriteFile(open, []byte(drawn[0]+"\n"), 0o644))
	for args, want := range map[string]string{
		"status --address " + address:                            "the run requires its secret",
		"stop --address " + address + " --secret-file " + other:  "the secret belongs to another run",
		"stop --address " + address + " --secret-file " + open:   "chmod 600",
		"stop --address " + address + " --secret-file /dev/zero": "does not contain a run's secret",
		"worker --join " + status[1] + " --secret-file " +
			other: "the secret of this .* belongs to another run",
		"fault kill:worker:99@0s --run " + dir:                                         "there is no worker:99",
		"fault kill:server:99@0s --run " + dir:                                         "there is no server:99",
		"server --join " + status[1] + " --secret-file " + other + " --run " + dir:     "secret",
		"status --address " + address + " --secret-file " + filepath.Join(dir, "none"): "no such file",
	} {
		p := start(t, strings.Fields(args)...)
		code, _, _ := p.Wait()
		p.refused(max(code, 1), want)
	}
	wantOut(t, 0, []string{"status", "--address", address, "--secret-file", secretOf(dir)})
	c, err := worker.Dial(t.Context(), worker.Config{Coordinator: status[1], Slot: -5})
	if err == nil || !strings.Contains(err.Error(), "slot -5") {
		t.Errorf("slot -5: %v, %v", c, err)
	}
	job.Stop()
}

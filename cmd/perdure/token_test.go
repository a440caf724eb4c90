package main

import (
	"crypto/tls"
	"crypto/x509"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/proc/keys"
)

// tokenOf writes a token into a directory and returns the token and its number.
func tokenOf(t *testing.T, ring, dir, role, name string, mode os.FileMode) (text, number string) {
	t.Helper()
	code, out, errs := invoke(t, "keys", "token", ring, "--role", role, "--for", "24h", "--name", name)
	words := strings.Fields(errs)
	if code != 0 || strings.Count(out, "\n") != 1 || !strings.Contains(errs, role+"/"+name+" is valid until") {
		t.Fatalf("keys token ended with code %d: %s", code, errs)
	}
	must(t, os.WriteFile(filepath.Join(dir, name), []byte(out), mode))
	return strings.TrimSpace(out), words[len(words)-1]
}

// callAs requests a job's status, like a tool that trusts a CA file and expects a coordinator's name.
func callAs(t *testing.T, addr, ca, text string) (status int) {
	t.Helper()
	trusted := x509.NewCertPool()
	if !trusted.AppendCertsFromPEM([]byte(fileOf(t, ca))) {
		t.Fatal("the CA file has no certificate")
	}
	tool := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: trusted, ServerName: string(keys.Coordinator)}, DisableKeepAlives: true,
	}}
	r, err := http.NewRequest(http.MethodPost, "https://"+addr+"/perdure.control.v1.Control/Status",
		strings.NewReader("{}"))
	must(t, err)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+text)
	answer, err := tool.Do(r)
	must(t, err)
	must(t, answer.Body.Close())
	return answer.StatusCode
}

// TestTokenFile: a client with a token and no keys can call a job as its role permits, with perdure or any other tool.
// The token's file must be private to its owner. The job's files contain nothing of the token.
func TestTokenFile(t *testing.T) {
	t.Parallel()
	ring, dir, ci := newKeys(t), newFolder(t), t.TempDir()
	look, number := tokenOf(t, ring, ci, "viewer", "ci", 0o600)
	steer, _ := tokenOf(t, ring, ci, "operator", "robot", 0o600)
	_, _ = tokenOf(t, ring, ci, "viewer", "all", 0o644)
	wantRefused(t, exitUsage, `invalid token role "worker"`, "keys", "token", ring, "--role", "worker", "--for", "1h")

	job := start(t, joinable(dir, "kill:worker:1@clock:20+1h", "--keys", ring)...)
	awaitStatus(t, dir, `server:1 .* live `)
	api := []string{"--address", controlOf(t, dir)}
	with := func(command, name string) []string {
		return append([]string{command, "--token-file", filepath.Join(ci, name)}, api...)
	}
	wantRefused(t, exitUsage, `ca.pem: .*; copy the file ca/ca.pem of the job's keys next to the token`,
		with("status", "ci")...)
	must(t, os.WriteFile(filepath.Join(ci, keys.CAFile), []byte(fileOf(t, ring, "ca", keys.CAFile)), 0o600))
	wantOut(t, 0, with("status", "ci"), "server:1")
	wantOut(t, 0, []string{"status", "--run", dir, "--token-file", filepath.Join(ci, "ci")}, "server:1")
	wantOut(t, 0, append(with("status", "ci"), "--keys", ring), "server:1")
	start(t, with("stop", "ci")...).refused(exitError,
		"viewer/ci may view the job, but only an operator may change it")
	start(t, with("status", "all")...).refused(exitUsage, "is accessible to other users .*; run chmod 600")

	call := func(text string) int { return callAs(t, controlOf(t, dir), filepath.Join(ci, keys.CAFile), text) }
	if is := call(look); is != http.StatusOK {
		t.Errorf("a tool receives status %d", is)
	}
	wantOut(t, 0, []string{"keys", "revoke", ring, number}, "revoked.pem")
	await(t, func() bool { return call(look) == http.StatusUnauthorized },
		func() string { return "the revoked token is still accepted" })
	start(t, with("status", "ci")...).refused(exitError, "the token "+number+" is revoked")
	wantOut(t, 0, with("stop", "robot"))
	job.Wait()
	checkRaces(t, dir)

	if log := fileOf(t, dir, "logs", "coordinator.log"); !strings.Contains(log, "operator/robot by token ") {
		t.Errorf("the log does not name the token that stopped the job:\n%s", log)
	}
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		for _, s := range []string{look, steer} {
			if strings.Contains(string(text), s[len(s)-40:]) {
				t.Errorf("%s contains a token", path)
			}
		}
		return err
	}))
}

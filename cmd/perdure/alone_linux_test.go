package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/keys/authority"
	"github.com/perdure/perdure/internal/testcluster"
	"github.com/perdure/perdure/worker"
)

// aloneProgram is the name of a program like a user's: it uses package worker and no other package of Perdure.
const aloneProgram = "alone"

func init() { wholePrograms[aloneProgram], wholePrograms[attackerProgram] = runAlone, runAttacker }

// runAlone is the program's main function. It adds 1 in each clock, and fails if it reads anything but the sum.
func runAlone([]string) int {
	cfg := worker.Config{Slot: perdure.NoSlot, JoinTimeout: time.Second}
	err := worker.Run(context.Background(), cfg, func(ctx context.Context, c *worker.Client) (worker.Step, error) {
		table, err := c.Table(ctx, perdure.TableSpec{
			Name: "t", Rows: 4, Dim: 1, Rule: perdure.Rule{Kind: perdure.RuleAdd},
		})
		return func(ctx context.Context, clock perdure.Clock) error {
			var got [4]float32
			if err := table.GetRun(ctx, 0, got[:]); err != nil {
				return err
			}
			if got != [4]float32{float32(clock), float32(clock), float32(clock), float32(clock)} {
				return fmt.Errorf("the table is %v at clock %d", got, clock)
			}
			return table.IncRun(0, []float32{1, 1, 1, 1})
		}, err
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "train:", err)
		return exitError
	}
	return 0
}

// alone starts that program on a host.
func (a *apart) alone(host int, keys string) *process {
	a.Helper()
	p := command(a)
	p.Env = append(os.Environ(), asProgram+"="+aloneProgram, worker.EnvCoordinator+"="+a.coordinator(),
		worker.EnvKeys+"="+keys)
	return a.run(host, "program with "+keys, p)
}

// coordinator returns the address of the first coordinator.
func (a *apart) coordinator() string { return fmt.Sprintf("%s:7000", testcluster.LANAddr(0)) }

// expired creates a worker's keys that have expired.
func expired(t *testing.T, ring string) string {
	t.Helper()
	a, err := authority.Open(ring, func() time.Time { return time.Now().Add(-time.Hour) })
	must(t, err)
	h, err := a.Issue(keys.Worker, "late", time.Minute)
	must(t, err)
	return h.Dir
}

// posing creates a directory of keys in which another role's certificate takes the place of a worker's, with a worker's
// secret.
func posing(t *testing.T, ring string, role keys.Role) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), string(role))
	must(t, os.CopyFS(dir, os.DirFS(filepath.Join(ring, string(role)))))
	must(t, os.Chmod(filepath.Join(dir, keys.IdentityFile), 0o600))
	secret, err := os.ReadFile(filepath.Join(ring, string(keys.Worker), keys.SecretFile))
	must(t, err)
	path := filepath.Join(dir, keys.SecretFile)
	must(t, os.WriteFile(path, secret, 0o600))
	must(t, os.Chmod(path, 0o600))
	return dir
}

// TestAloneApart: a program that uses only package worker trains from another host with a worker's keys. With any other
// keys it receives a one-line error.
func TestAloneApart(t *testing.T) {
	t.Parallel()
	a := hostsApart(t, 3, 1)
	a.write("workload: own\nconsistency: bsp\nrecovery: checkpoint:20\nclocks: 60\nworkers: 1\nservers: 1\n" +
		"shards: 2\nstore: file://" + filepath.Join(a.work, "store") + "\n")
	wantOut(t, 0, []string{"keys", "issue", a.keys, "worker", "gone"}, "worker-gone")
	wantOut(t, 0, []string{"keys", "revoke", a.keys, "worker-gone"}, "revoked.pem")
	a.lead(0)
	a.processes["coordinator 0"].Says("the coordinator of job ")
	a.run(1, "server", command(a, "server", "--join", a.coordinator(), "--keys", a.keys, "--listen",
		fmt.Sprintf("%s:0", testcluster.LANAddr(1))))
	wrong := map[string]*process{}
	for keys, want := range map[string]string{
		"":                                   "the job requires keys",
		expired(t, a.keys):                   "expired",
		filepath.Join(a.keys, "worker-gone"): "rejects our certificate",
		newKeys(t):                           "another job's keys",
		posing(t, a.keys, "server"):          "server/server",
		posing(t, a.keys, "coordinator"):     "coordinator/coordinator",
		posing(t, a.keys, "operator"):        "operator/operator",
		posing(t, a.keys, "viewer"):          "viewer/viewer",
	} {
		wrong[want] = a.alone(2, keys)
	}
	for want, p := range wrong {
		p.refused(exitError, want)
	}
	right := a.alone(2, a.keys)
	if code, _, errs := right.Wait(); code != 0 {
		t.Errorf("with valid keys the program ended with code %d: %s\n%s", code, errs, a.all())
	}
	await(t, a.over, a.all)
	if s := summary(t, a.dir(0)); *s.UpdatesLost != 0 {
		t.Errorf("%d updates lost", *s.UpdatesLost)
	}
}

package main

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	perdurelib "github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/proc/control"
	"github.com/perdure/perdure/internal/run/locate"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
)

// runFolder returns the directory of a run that has just started.
func runFolder(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	b, err := rundir.EncodeRun(settings.Run{Job: perdurelib.JobSpec{
		ID: "job", Workload: settings.OwnWorkload, Servers: 1, Slots: 1, Shards: 1, Clocks: 10,
		Consistency: perdurelib.Consistency{Kind: perdurelib.BSP},
		Recovery:    perdurelib.Recovery{Kind: perdurelib.RecoverNone},
	}})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "run.json"), b, 0o666))
	return dir
}

// lone is a coordinator process without a supervisor.
type lone struct {
	*process
	control string // address
	secret  perdurelib.Secret
}

func coordinate(t testing.TB, dir string) lone {
	t.Helper()
	c := lone{process: command(t, "coordinator", "--run", dir)}
	secrets, err := locate.WriteSecrets(t.TempDir(), locate.NewKeys())
	must(t, err)
	defer secrets.Close()
	c.secret = secrets.Job
	for range 2 { // for frames and the control API
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		f, err := l.(*net.TCPListener).File()
		must(t, err)
		defer f.Close()
		c.control = l.Addr().String()
		must(t, l.Close())
		c.ExtraFiles = append(c.ExtraFiles, f)
	}
	c.ExtraFiles = append(c.ExtraFiles, secrets.Files...)
	c.Start()
	return c
}

// serves checks that the coordinator answers.
func (c lone) serves(t testing.TB) {
	t.Helper()
	s, err := control.NewClient(c.control, c.secret, nil).Status(t.Context())
	if err != nil || s.Processes[0].PID != c.Process.Pid {
		t.Fatalf("the coordinator does not serve: %v, %s", err, c.stderr)
	}
}

// TestManyCoordinators: of several coordinators that start at the same time, one serves.
func TestManyCoordinators(t *testing.T) {
	t.Parallel()
	dir := runFolder(t)
	all := make([]lone, 4)
	for i := range all {
		all[i] = coordinate(t, dir)
	}
	serving := slices.DeleteFunc(slices.Clone(all), func(c lone) bool {
		_, err := control.NewClient(c.control, c.secret, nil).Status(t.Context())
		return err != nil
	})
	if len(serving) != 1 {
		t.Fatalf("%d coordinators serve, want 1", len(serving))
	}
	for _, c := range all {
		if c != serving[0] {
			c.refused(exitError, `in use by another process: (pid \d+ on|an unknown process)`)
		}
	}
	serving[0].Kill()
}

// TestLostLease: a coordinator whose lock file is removed exits by itself and reports that it lost the lease.
func TestLostLease(t *testing.T) {
	dir := runFolder(t)
	c := coordinate(t, dir)
	c.serves(t)
	must(t, os.Remove(filepath.Join(dir, "registry", "facts.lock")))
	c.refused(exitFenced, `this process no longer has the lease`)
	next := coordinate(t, dir)
	next.serves(t)
	next.Kill()
}

// TestUnusableRegistry: a registry that cannot be read or written yields a one-line error and stays unchanged.
func TestUnusableRegistry(t *testing.T) {
	dir := runFolder(t)
	folder := filepath.Join(dir, "registry")
	record := filepath.Join(folder, "facts")
	c := coordinate(t, dir)
	c.serves(t)
	c.Kill()
	good, err := os.ReadFile(record)
	must(t, err)
	at := regexp.QuoteMeta(record) + ": "
	for what, bad := range map[string]struct {
		content []byte
		want    string
	}{
		"empty":     {nil, at + "damaged: it does not begin with"},
		"truncated": {good[:len(good)-1], at + "damaged: truncated"},
		"changed":   {bytes.Replace(good, []byte(`"job"`), []byte(`"jab"`), 1), at + "damaged: checksum mismatch"},
		"another version": {
			disk.Seal("REGISTRY", 2, nil),
			at + `written by another version of Perdure \(format 2, this one reads format 1\); use the version that`,
		},
		"strange": {disk.Seal("REGISTRY", 1, []byte("revision 1\nwords")), "job record in the registry: "},
	} {
		t.Run(what, func(t *testing.T) {
			must(t, os.WriteFile(record, bad.content, 0o666))
			coordinate(t, dir).refused(exitError, bad.want)
			if b, err := os.ReadFile(record); err != nil || !bytes.Equal(b, bad.content) {
				t.Errorf("the file is now %q (%v)", b, err)
			}
		})
	}
	t.Run("no folder", func(t *testing.T) {
		must(t, os.RemoveAll(folder))
		must(t, os.WriteFile(folder, nil, 0o666))
		coordinate(t, dir).refused(exitError, regexp.QuoteMeta(folder)+": not a directory")
	})
	t.Run("not writable", func(t *testing.T) {
		if os.Getuid() == 0 {
			t.Skip("the superuser can write anywhere")
		}
		must(t, os.RemoveAll(folder))
		must(t, os.Mkdir(folder, 0o555))
		coordinate(t, dir).refused(exitError, regexp.QuoteMeta(record)+`\.lock: permission denied`)
	})
}

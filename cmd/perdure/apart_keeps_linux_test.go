package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/testcluster"
)

var apartS3 = flag.String("apart.s3", "", "the versitygw program: jobs on separate hosts keep their checkpoints "+
	"on it and their update logs on NATS, on a host of its own")

// keeper is the host that stores a job's checkpoints or update log.
const keeper = apartHosts

// TestApartKeeps: jobs whose update log is on NATS, or whose checkpoints are on S3, go through storms and end with the
// model of an undisturbed job on one machine. The keeper is also disconnected, disappears and dies.
func TestApartKeeps(t *testing.T) {
	t.Parallel()
	if *apartS3 == "" {
		t.Skip("needs an S3 server: set -apart.s3, or run make check-hosts")
	}
	const clocks, troubles = 240, 6
	seed := *apartSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano()) % 1_000_000
	}
	for i := range uint64(*apartStorms) {
		for recovery, start := range map[string]func(a *apart) (keeps string, again func()){
			"stateless": (*apart).startNATS, "checkpoint:20": (*apart).startS3,
		} {
			t.Run(fmt.Sprintf("%s/seed %d", recovery, seed+i), func(t *testing.T) {
				a := hostsApart(t, apartHosts+1, seed+i)
				keeps, again := start(a)
				a.ask(recovery, clocks, keeps)
				a.plan(again)
				got := a.storm(clocks, troubles)
				want := one(t, "--clocks", strconv.Itoa(clocks), "--workers", "4", "--servers", "4", "--shards", "8")
				if got != want {
					t.Errorf("model %s; want %s\n%s", got, want, a.all())
				}
			})
		}
	}
}

// plan makes the keeper fail in three ways.
func (a *apart) plan(again func()) {
	die := func() { kill(a.processes["keeper"]) }
	a.planned = []func() (string, func()){
		func() (string, func()) {
			a.lan.Disconnect(keeper)
			return "the keeper is unreachable", func() { a.lan.Reconnect(keeper) }
		},
		func() (string, func()) {
			die()
			return "the keeper's process is killed", again
		},
		func() (string, func()) {
			a.lan.Disconnect(keeper) // no process is notified of its death
			die()
			return "the keeper's host disappears", func() { a.lan.Reconnect(keeper); again() }
		},
	}
}

// startNATS serves an update log that requires the job's keys.
func (a *apart) startNATS() (keeps string, again func()) {
	a.Helper()
	dir := filepath.Join(a.work, "log")
	again = func() {
		a.run(keeper, "keeper", command(a, "log", "serve", "--dir", dir, "--listen",
			fmt.Sprintf("%s:4222", testcluster.LANAddr(keeper)), "--mb", "600", "--keys", a.keys))
		a.answers(4222)
	}
	again()
	var url string
	await(a, func() bool {
		var err error
		url, err = updatelog.ReadURL(dir)
		return err == nil
	}, a.all)
	return "log: " + url + "?mb=300", again
}

// startS3 serves a bucket.
func (a *apart) startS3() (keeps string, again func()) {
	a.Helper()
	dir := filepath.Join(a.work, "s3")
	must(a, os.MkdirAll(filepath.Join(dir, "bucket"), 0o777))
	at := fmt.Sprintf("%s:7070", testcluster.LANAddr(keeper))
	a.env = []string{"AWS_ACCESS_KEY_ID=test", "AWS_SECRET_ACCESS_KEY=" + storeSecret}
	again = func() {
		p := command(a)
		p.Cmd = exec.CommandContext(a.Context(), *apartS3, "--port", at, "--access", "test", "--secret", storeSecret,
			"--quiet", "posix", dir)
		p.Stdout, p.Stderr = p.stdout, p.stderr
		a.run(keeper, "keeper", p)
		a.answers(7070)
	}
	again()
	return "store: s3://bucket/a?endpoint=http://" + at, again
}

// answers waits until the keeper listens.
func (a *apart) answers(port int) {
	a.Helper()
	await(a, func() bool {
		c, err := a.lan.Host(keeper).Dial(fmt.Sprintf("%s:%d", testcluster.LANAddr(keeper), port), time.Second)
		return err == nil && c.Close() == nil
	}, a.all)
}

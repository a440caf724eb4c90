//go:build unix

package main

import (
	"flag"
	"os/exec"
	"syscall"
	"testing"
)

var upgradeFrom = flag.String("upgrade.from", "", "an older program of Perdure, from which jobs are upgraded; "+
	"\"\": this one, so that they are only started again")

// ofBefore has a process be one of the older version.
func ofBefore(t *testing.T, p *process) *process {
	t.Helper()
	if *upgradeFrom != "" {
		path, err := exec.LookPath(*upgradeFrom)
		must(t, err)
		p.Path, p.Args[0] = path, path
	}
	return p
}

// begins is an upgraded job's first coordinator and hosts, of the older version. Each host has a server and a worker.
func (h *hosted) begins(dirs []string) (hosts []*process) {
	h.Helper()
	h.leader = ofBefore(h.T, command(h, h.args()...))
	h.leader.Start()
	h.leader.Says("the coordinator of job ")
	for _, dir := range dirs {
		hosts = append(hosts, h.hostOf(ofBefore, dir))
	}
	return hosts
}

// hostOf starts a host of a version.
func (h *hosted) hostOf(version func(*testing.T, *process) *process, dir string) *process {
	h.Helper()
	p := version(h.T, command(h, "host", "--join", h.join, "--secret-file", secretOf(h.dir), "--dir", dir,
		"--servers", "1", "--workers", "1"))
	p.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.Start()
	h.Cleanup(func() { kill(p) })
	return p
}

func ofNow(_ *testing.T, p *process) *process { return p }

// TestUpgradeRolling: host after host is told to end and started again with the newer version, and then the
// coordinator. Training goes on meanwhile; no update is lost, no clock is done again, and the model is that of a job
// that was left alone. Both versions must speak the same version of the frames.
func TestUpgradeRolling(t *testing.T) {
	t.Parallel()
	const clocks = "300"
	h := newHosted(t, "127.0.0.1", map[string]string{
		"clocks": clocks, "compute-ms": "15", "recovery": "chain:2", "servers": "3",
	})
	dirs := []string{newFolder(t), newFolder(t), newFolder(t)}
	hosts := h.begins(dirs)
	for i, dir := range dirs {
		h.clock(20 + 40*i)
		hosts[i].Signal(syscall.SIGTERM)
		if code, out, errs := hosts[i].Wait(); code != 0 {
			t.Fatalf("a host that was told to end ended with code %d: %s%s", code, out, errs)
		}
		hosts[i] = h.hostOf(ofNow, dir)
	}
	h.clock(150)
	h.leader.Signal(syscall.SIGTERM)
	h.leader.Wait()
	h.lead()
	s := h.done()
	want := one(t, "--clocks", clocks, "--servers", "3")
	if *s.ModelSHA256 != want || *s.UpdatesLost != 0 || *s.ClocksRedone != 0 {
		t.Errorf("model %s, %d updates lost, %d clocks redone; want %s\n%s", *s.ModelSHA256, *s.UpdatesLost,
			*s.ClocksRedone, want, h.all())
	}
	for i := range hosts {
		h.ends(dirs[i], hosts[i])
	}
}

// TestUpgradeAtOnce: everything is ended, and started again with the newer version, which may have other frames. The
// job goes on from what is durable, to the same model.
func TestUpgradeAtOnce(t *testing.T) {
	t.Parallel()
	const clocks = "100"
	strategies := []string{"resend:10", "checkpoint:10"}
	if *upgradeFrom == "" { // TestHostsAllDie has more
		strategies = strategies[:1]
	}
	for _, recovery := range strategies {
		t.Run(recovery, func(t *testing.T) {
			t.Parallel()
			h := newHosted(t, "127.0.0.1", map[string]string{
				"clocks": clocks, "compute-ms": "15", "recovery": recovery, "servers": "3",
			})
			dirs := []string{newFolder(t), newFolder(t), newFolder(t)}
			hosts := h.begins(dirs)
			h.clock(25)
			must(t, h.leader.Process.Kill())
			h.leader.Wait()
			for i := range hosts {
				kill(hosts[i])
				hosts[i] = h.hostOf(ofNow, dirs[i])
			}
			h.lead()
			s := h.done()
			if want := one(t, "--clocks", clocks, "--servers", "3"); *s.ModelSHA256 != want || *s.UpdatesLost != 0 {
				t.Errorf("model %s, %d updates lost; want %s\n%s", *s.ModelSHA256, *s.UpdatesLost, want, h.all())
			}
			for i := range hosts {
				h.ends(dirs[i], hosts[i])
			}
		})
	}
}

//go:build unix

package main

import (
	"flag"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

var upgradeFrom = flag.String("upgrade.from", "", "an older Perdure program, from which jobs are upgraded; "+
	"\"\": this program, so that processes are only restarted")

// ofBefore makes a process run the older version.
func ofBefore(t *testing.T, p *process) *process {
	t.Helper()
	if *upgradeFrom != "" {
		path, err := exec.LookPath(*upgradeFrom)
		must(t, err)
		p.Path, p.Args[0] = path, path
	}
	return p
}

// begins starts the coordinator and one host for each directory, all in the older version. Each host has a server and a
// worker.
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

// hostOf starts a host that keeps its files in dir. version selects the program: ofBefore or ofNow.
func (h *hosted) hostOf(version func(*testing.T, *process) *process, dir string) *process {
	h.Helper()
	p := version(h.T, command(h, "host", "--join", h.join, "--secret-file", secretOf(h.dir), "--dir", dir,
		"--servers", "1", "--workers", "1"))
	p.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.Start()
	h.Cleanup(func() { kill(p) })
	return p
}

// newVersion is the version that upgraded hosts report.
const newVersion = "newer"

func ofNow(_ *testing.T, p *process) *process {
	p.Env = append(os.Environ(), asVersion+"="+newVersion)
	return p
}

// TestUpgradeRolling upgrades the processes of a job one after another, from the program -upgrade.from to this one.
// Each host, and finally the coordinator, is ended and restarted in the newer version while the others continue to
// train. No update may be lost, no clock repeated, and the model must be that of an undisturbed job. Both versions must
// have the same frame version.
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
			t.Fatalf("a host that received SIGTERM ended with code %d: %s%s", code, out, errs)
		}
		hosts[i] = h.hostOf(ofNow, dir)
		if *upgradeFrom == "" { // an older coordinator may ignore versions
			awaitStatus(t, h.dir, `coordinator .*, version `+version+`\n(?s:.*)server:\d .*, version `+newVersion)
		}
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

// TestUpgradeAtOnce kills all processes of a job and restarts them in the newer version, which may have another frame
// version. The job must resume from its durable state and end with the model of an undisturbed job.
func TestUpgradeAtOnce(t *testing.T) {
	t.Parallel()
	const clocks = "100"
	strategies := []string{"resend:10", "checkpoint:10"}
	if *upgradeFrom == "" { // TestHostsAllDie covers the others
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

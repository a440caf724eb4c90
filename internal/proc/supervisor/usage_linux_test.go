package supervisor

import (
	"os"
	"os/exec"
	"testing"
	"time"
)

// TestWantsToRun checks running, sleeping and stopped processes.
func TestWantsToRun(t *testing.T) {
	if !wantsToRun(os.Getpid()) {
		t.Error("this process is running, but wantsToRun is false")
	}
	busy, idle := exec.Command("sh", "-c", "while :; do :; done"), exec.Command("sleep", "60")
	for _, c := range []*exec.Cmd{busy, idle} {
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Process.Kill(); _ = c.Wait() }()
	}
	until := func(what string, c *exec.Cmd, want bool) {
		t.Helper()
		for began := time.Now(); wantsToRun(c.Process.Pid) != want; {
			if time.Since(began) > 10*time.Second {
				t.Fatalf("%s: wantsToRun is %v", what, !want)
			}
		}
	}
	until("a loop", busy, true)
	until("a sleeping process", idle, false)
	if err := busy.Process.Signal(signalStop); err != nil {
		t.Fatal(err)
	}
	until("a stopped loop", busy, false)
}

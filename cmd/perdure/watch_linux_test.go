package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/run/agent"
	"github.com/perdure/perdure/worker"
)

// TestAgentIsWatched: the agent of a program in another language serves the worker's metrics at the address in the
// program's environment, like the agents of perdure up --exec.
func TestAgentIsWatched(t *testing.T) {
	t.Parallel()
	dir := newFolder(t)
	_, coordinator := up(t, dir, "--workers", "1", "--servers", "1", "--clocks", "20", "--recovery", "none")
	addr, hold, err := transport.Reserve("127.0.0.1")
	must(t, err)
	defer hold.Close()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	here, there := os.NewFile(uintptr(fds[0]), "program"), os.NewFile(uintptr(fds[1]), "agent")
	defer here.Close()
	p := command(t, "agent")
	p.ExtraFiles = []*os.File{there}
	p.Env = append(os.Environ(), "PERDURE_METRICS="+addr, worker.EnvCoordinator+"="+coordinator,
		worker.EnvSecretFile+"="+secretOf(dir), worker.EnvSlot+"=0")
	p.Start()
	must(t, there.Close())
	awaitReady(t, dir, addr, false)
	hello := make([]byte, 40) // call 1 and its numeric arguments
	binary.LittleEndian.PutUint16(hello, 1)
	_, err = here.Write(fmt.Appendf(hello, `{"protocol":%d}`, agent.Protocol))
	must(t, err)
	answer := make([]byte, 64<<10)
	n, err := here.Read(answer)
	if err != nil && err != io.EOF {
		t.Fatal(err)
	}
	awaitReady(t, dir, addr, true)
	if got := values(t, addr); got["perdure_worker_clock"] != 0 || got["perdure_ready"] != 1 {
		t.Errorf("after the answer %s the metrics are %v", answer[40:n], got)
	}
	if code, body := look(t, addr, "/readyz", patience); code != http.StatusOK ||
		body != "it is worker:0, at clock 0\n" {
		t.Errorf("%d %s", code, body)
	}
}

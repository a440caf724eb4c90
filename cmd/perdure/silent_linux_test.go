package main

import (
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/perdure/perdure/control"
)

// TestCoordinatorAwaitsDisk: a coordinator whose disk does not answer, from its first
// file on, says so much as that it lives; who asks for more waits.
func TestCoordinatorAwaitsDisk(t *testing.T) {
	dir := t.TempDir()
	must(t, syscall.Mkfifo(filepath.Join(dir, "run.json"), 0o600)) // nobody writes to it
	co := coordinate(t, dir)
	defer func() {
		must(t, co.Process.Kill())
		_ = co.Wait() // it was killed
	}()
	ask := func(path string, patience time.Duration) (int, error) {
		c, err := net.Dial("tcp", co.control)
		must(t, err)
		defer c.Close()
		must(t, c.SetDeadline(time.Now().Add(patience)))
		_, err = c.Write([]byte("HEAD " + path + " HTTP/1.0\r\n\r\n"))
		must(t, err)
		return c.Read(make([]byte, 4096))
	}
	if n, err := ask("/", patience); n == 0 {
		t.Errorf("it does not answer: %v\n%s", err, co.stderr)
	}
	if n, err := ask(control.Path+"Status", 100*time.Millisecond); n > 0 || !os.IsTimeout(err) {
		t.Errorf("without its disk it says %d bytes of how the job is: %v", n, err)
	}
}

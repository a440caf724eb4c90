//go:build unix

package server_test

import (
	"net"
	"runtime"
	"syscall"
	"testing"
)

// TestManySilentPeers checks that each silent connection costs a server little memory and one goroutine, and does not
// keep it from serving others.
func TestManySilentPeers(t *testing.T) {
	s := start(t, overSockets)
	s.goesOn("nothing")
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	n := min(10_000, int(limit.Cur-500)/2) // both ends are in this process
	memory := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapInuse + m.StackInuse)
	}
	before, goroutines := memory(), runtime.NumGoroutine()
	conns := make([]net.Conn, n)
	for i := range conns {
		c, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns[i] = c
	}
	s.goesOn("silent peers")
	each, running := (memory()-before)/int64(n), runtime.NumGoroutine()-goroutines
	t.Logf("%d connections: %d bytes and %.2f goroutines each", n, each, float64(running)/float64(n))
	if running > n+20 || each > 16<<10 {
		t.Errorf("%d silent connections take %d goroutines, and %d bytes each", n, running, each)
	}
	for _, c := range conns {
		c.Close()
	}
	s.log.wait(s.ctx, n-1)
	s.goesOn("silent peers that left")
}

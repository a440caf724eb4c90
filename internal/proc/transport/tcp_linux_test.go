package transport

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestTCPSocketOptions(t *testing.T) {
	c, _ := rawPair(t, TCP{})
	raw, err := c.(*socketConn).sock.SyscallConn()
	must(t, err)
	for _, o := range []struct {
		name               string
		level, opt, expect int
	}{
		{"TCP_NODELAY", unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
		{"SO_KEEPALIVE", unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{"TCP_KEEPIDLE", unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 15},
		{"TCP_KEEPINTVL", unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 5},
		{"TCP_KEEPCNT", unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 3},
	} {
		var got int
		var optErr error
		must(t, raw.Control(func(fd uintptr) { got, optErr = unix.GetsockoptInt(int(fd), o.level, o.opt) }))
		must(t, optErr)
		if got != o.expect {
			t.Errorf("%s is %d, want %d", o.name, got, o.expect)
		}
	}
}

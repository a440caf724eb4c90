package localrun

import (
	"fmt"
	"net"
	"os"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/humanize"
)

// socket is a listening socket that outlives the process that serves it.
type socket struct {
	addr string
	file *os.File
}

// AnyPort is any free port of this machine's loopback address.
const AnyPort = "127.0.0.1:0"

func listen(addr string) (s socket, err error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return s, perdure.Usagef("invalid --listen %s: write HOST:PORT, for example 127.0.0.1:7000", addr)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		return s, perdure.Usagef("invalid --listen %s: specify the address at which workers reach this machine", addr)
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return s, fmt.Errorf("cannot listen on %s: %w; choose another address for --listen", addr, humanize.Cause(err))
	}
	defer l.Close()
	s.addr = l.Addr().String()
	s.file, err = l.(*net.TCPListener).File()
	return s, err
}

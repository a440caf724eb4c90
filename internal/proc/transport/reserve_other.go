//go:build !linux

package transport

import (
	"fmt"
	"io"
	"net"
)

// Reserve finds a free port of an address of this machine for a process that is to listen
// there later. Here nothing keeps the system from giving it to others meanwhile.
func Reserve(host string) (addr string, hold io.Closer, err error) {
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return "", nil, fmt.Errorf("transport: %w", err)
	}
	if err := l.Close(); err != nil {
		return "", nil, fmt.Errorf("transport: %w", err)
	}
	return l.Addr().String(), io.NopCloser(nil), nil
}

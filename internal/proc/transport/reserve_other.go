//go:build !linux

package transport

import (
	"fmt"
	"io"
	"net"
)

// Reserve finds a free port of an address of this machine for a process that will listen there later. On this system,
// other processes may be assigned the port in the meantime.
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

package transport

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
)

// Reserve finds a free port of an address of this machine for a process that will listen there later, and again after
// each restart. Until hold is closed, the system does not assign the port to processes that listen or dial on any free
// port. Processes that name the port can still use it.
//
// The port belongs to a socket that is bound but never listens. A second socket can be bound to it and listen, because
// both permit that, as listeners of this package and of package net do.
func Reserve(host string) (addr string, hold io.Closer, err error) {
	at, err := net.ResolveTCPAddr("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return "", nil, fmt.Errorf("transport: %w", err)
	}
	fd, err := syscall.Socket(familyOf(at), syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", nil, fmt.Errorf("transport: %w", os.NewSyscallError("socket", err))
	}
	f := os.NewFile(uintptr(fd), "reserved port")
	if at.Port, err = bindAny(fd, at); err != nil {
		return "", nil, errors.Join(fmt.Errorf("transport: %w", err), f.Close())
	}
	return at.String(), f, nil
}

func familyOf(at *net.TCPAddr) int {
	if at.IP.To4() != nil {
		return syscall.AF_INET
	}
	return syscall.AF_INET6
}

// bindAny binds a socket to a free port of an address.
func bindAny(fd int, at *net.TCPAddr) (port int, err error) {
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return 0, os.NewSyscallError("setsockopt", err)
	}
	var sa syscall.Sockaddr
	if ip := at.IP.To4(); ip != nil {
		sa = &syscall.SockaddrInet4{Addr: [4]byte(ip)}
	} else {
		six := &syscall.SockaddrInet6{Addr: [16]byte(at.IP)}
		if zone, err := net.InterfaceByName(at.Zone); err == nil {
			six.ZoneId = uint32(zone.Index)
		}
		sa = six
	}
	if err := syscall.Bind(fd, sa); err != nil {
		return 0, os.NewSyscallError("bind", err)
	}
	switch bound, err := syscall.Getsockname(fd); bound := bound.(type) {
	case *syscall.SockaddrInet4:
		return bound.Port, nil
	case *syscall.SockaddrInet6:
		return bound.Port, nil
	default:
		return 0, os.NewSyscallError("getsockname", err)
	}
}

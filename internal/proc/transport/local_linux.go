package transport

import (
	"context"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
)

// localName returns the abstract Unix socket for a TCP address.
func localName(at netip.AddrPort) string {
	return "@perdure/" + netip.AddrPortFrom(at.Addr().Unmap(), at.Port()).String()
}

// listenLocal listens on the Unix socket for a TCP address.
func listenLocal(at netip.AddrPort) (net.Listener, error) {
	return net.Listen("unix", localName(at))
}

// localNames returns the possible Unix sockets for an address, or none if the address does not belong to this machine.
func localNames(ctx context.Context, addr string) (names []string) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil // dialling it over TCP reports the error
	}
	number, err := net.DefaultResolver.LookupPort(ctx, "tcp", port)
	if err != nil {
		return nil
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host) // for a numeric address: itself
	if err != nil {
		return nil
	}
	for _, ip := range ips {
		if ip = ip.Unmap(); !isLocal(ip) {
			continue
		}
		at := []netip.Addr{ip, netip.IPv6Unspecified()}
		if ip.Is4() {
			at = append(at, netip.IPv4Unspecified())
		}
		for _, a := range at { // a listener may serve all addresses
			names = append(names, localName(netip.AddrPortFrom(a, uint16(number))))
		}
	}
	return names
}

// isLocal reports whether an address belongs to this machine.
func isLocal(ip netip.Addr) bool {
	if ip.IsLoopback() {
		return true
	}
	own, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(own, func(a net.Addr) bool {
		prefix, err := netip.ParsePrefix(a.String())
		return err == nil && prefix.Addr() == ip.WithZone("")
	})
}

// samePeer returns the process at the other end of a Unix socket and reports whether it belongs to the same user.
func samePeer(sock *net.UnixConn) (pid int, ok bool) {
	raw, err := sock.SyscallConn()
	if err != nil {
		return 0, false
	}
	var cred *syscall.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if err != nil || credErr != nil {
		return 0, false
	}
	return int(cred.Pid), int(cred.Uid) == os.Geteuid()
}

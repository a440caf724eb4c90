package testcluster

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// cardAddress is struct ifreq with a hardware address, which unix.Ifreq cannot set.
type cardAddress struct {
	name   [unix.IFNAMSIZ]byte
	family uint16
	addr   [6]byte
	_      [16]byte
}

// setCard sets the hardware address of the card in this thread's namespace.
func setCard(socket, host int) error {
	r := cardAddress{family: unix.ARPHRD_ETHER, addr: cardOf(host)}
	copy(r.name[:], "eth0")
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(socket), unix.SIOCSIFHWADDR, uintptr(unsafe.Pointer(&r)))
	if errno != 0 {
		return errno
	}
	return nil
}

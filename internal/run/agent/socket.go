//go:build linux

package agent

import (
	"errors"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Socket is an inherited packet socket. A goroutine that receives blocks in the system call and is woken by the kernel:
// with the runtime's poller a call would take half as long again.
type Socket struct {
	fd int

	mu     sync.Mutex
	closed bool
}

// Open takes over a file that is such a socket.
func Open(fd int) (*Socket, error) {
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return nil, usageErrorf("file descriptor %d is not a socket: %v", fd, err)
	}
	of, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil || of != unix.AF_UNIX || kind != unix.SOCK_SEQPACKET {
		return nil, usageErrorf("file descriptor %d is not a Unix packet socket", fd)
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		return nil, err
	}
	unix.CloseOnExec(fd)
	return &Socket{fd: fd}, nil
}

// spinFor is how long receive polls for a packet before it blocks. Waking a blocked thread takes about as long if its
// core sleeps, and a program that calls often calls again soon.
const spinFor = 50 * time.Microsecond

// receive waits for a packet and the files that arrive with it. An empty packet is the end of the socket.
func (s *Socket) receive(into []byte) (text []byte, files []int, err error) {
	control := make([]byte, unix.CmsgSpace(4))
	flags := unix.MSG_CMSG_CLOEXEC | unix.MSG_DONTWAIT
	for until := time.Now().Add(spinFor); ; {
		n, nc, _, _, err := unix.Recvmsg(s.fd, into, control, flags)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if errors.Is(err, unix.EAGAIN) {
			if time.Now().After(until) {
				flags &^= unix.MSG_DONTWAIT
			}
			continue
		}
		if errors.Is(err, unix.ECONNRESET) {
			return nil, nil, nil
		}
		if err != nil {
			return nil, nil, err
		}
		return into[:n], filesIn(control[:nc]), nil
	}
}

// send sends a packet.
func (s *Socket) send(b []byte) error {
	for {
		err := unix.Sendto(s.fd, b, unix.MSG_NOSIGNAL, nil)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// dup returns the same socket with a file descriptor of its own.
func (s *Socket) dup() (*Socket, error) {
	fd, err := unix.FcntlInt(uintptr(s.fd), unix.F_DUPFD_CLOEXEC, 0)
	return &Socket{fd: fd}, err
}

// awaitEnd waits until all holders of the other end have closed it, or until this end hangs up.
func (s *Socket) awaitEnd() {
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLRDHUP}}, -1)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// HangUp makes receive and awaitEnd return.
func (s *Socket) HangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		_ = unix.Shutdown(s.fd, unix.SHUT_RDWR)
	}
}

// Close closes the file.
func (s *Socket) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.closed = true
		_ = unix.Close(s.fd)
	}
}

// filesIn returns the files that arrived with a packet.
func filesIn(control []byte) (files []int) {
	if len(control) == 0 {
		return nil
	}
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil
	}
	for i := range messages {
		if fds, err := unix.ParseUnixRights(&messages[i]); err == nil {
			files = append(files, fds...)
		}
	}
	return files
}

func closeAll(files []int) {
	for _, fd := range files {
		_ = unix.Close(fd)
	}
}

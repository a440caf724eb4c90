//go:build unix

package transport

import (
	"io"
	"os"
	"syscall"
)

// fill waits for bytes and buffers them. It holds no buffer while it waits.
func (in *incoming) fill() error {
	in.err = nil
	if err := in.raw.Read(in.look); err != nil {
		return err
	}
	return in.err
}

// readNow buffers what has come. False means that nothing has.
func (in *incoming) readNow(fd uintptr) bool {
	if in.buffer == nil {
		in.buffer = readBuffers.Get().(*[readBuffer]byte)
	}
	in.from, in.to = 0, 0
	for {
		n, err := syscall.Read(int(fd), in.room())
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
			in.drained()
			return false
		case err != nil:
			in.err = os.NewSyscallError("read", err)
		case n == 0:
			in.err = io.EOF
		}
		in.to = max(n, 0)
		return true
	}
}

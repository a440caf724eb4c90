//go:build unix

package transport

import (
	"io"
	"os"
	"syscall"
)

// readInto reads at least one byte into dst, waiting if necessary.
func (in *incoming) readInto(dst []byte) (int, error) {
	in.err, in.dst = nil, dst
	err := in.raw.Read(in.readFn)
	in.dst = nil
	if err != nil {
		return 0, err
	}
	return in.nRead, in.err
}

// takeNow reads into in.into. It returns false if no data is available.
func (in *incoming) takeNow(fd uintptr) (ok bool) {
	if in.nRead, ok = in.readSome(fd, in.dst); !ok {
		in.notifyWait()
	}
	return ok
}

// fill waits for data and buffers it. It holds no buffer while it waits.
func (in *incoming) fill() error {
	in.err = nil
	if err := in.raw.Read(in.fillFn); err != nil {
		return err
	}
	return in.err
}

// fillNow buffers available data. It returns false if there is none.
func (in *incoming) fillNow(fd uintptr) (ok bool) {
	if in.buffer == nil {
		in.buffer = readBuffers.Get().(*[readBuffer]byte)
	}
	in.from, in.to = 0, 0
	if in.to, ok = in.readSome(fd, in.freeBuffer()); !ok {
		in.releaseBuffer()
		in.notifyWait()
	}
	return ok
}

// readSome reads available data into dst, and sets in.err if the connection has ended. ok is false if no data is
// available.
func (in *incoming) readSome(fd uintptr, dst []byte) (n int, ok bool) {
	for {
		n, err := readNow(fd, dst)
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
			return 0, false
		case err != nil:
			in.err = os.NewSyscallError("read", err)
		case n == 0:
			in.err = io.EOF
		}
		traffic.in.Add(int64(max(n, 0)))
		return max(n, 0), true
	}
}

//go:build !unix

package transport

// fill waits for data and buffers it.
func (in *incoming) fill() (err error) {
	if in.buffer == nil {
		in.buffer = new([readBuffer]byte)
	}
	in.notifyWait() // data may be available, which cannot be tested here
	in.from = 0
	in.to, err = in.sock.Read(in.freeBuffer())
	traffic.in.Add(int64(in.to))
	return err
}

// readInto reads at least one byte into dst, waiting if necessary.
func (in *incoming) readInto(dst []byte) (int, error) {
	in.notifyWait() // data may be available, which cannot be tested here
	n, err := in.sock.Read(dst)
	traffic.in.Add(int64(n))
	return n, err
}

// fillNow and takeNow are used on systems with non-blocking reads.
func (in *incoming) fillNow(uintptr) bool { return true }
func (in *incoming) takeNow(uintptr) bool { return true }

//go:build !unix

package transport

// fill waits for bytes and buffers them.
func (in *incoming) fill() (err error) {
	if in.buffer == nil {
		in.buffer = new([readBuffer]byte)
	}
	in.nothing() // it may be
	in.from = 0
	in.to, err = in.sock.Read(in.room())
	traffic.in.Add(int64(in.to))
	return err
}

// readInto reads what there is into dst, at least one byte: it waits for that.
func (in *incoming) readInto(dst []byte) (int, error) {
	in.nothing() // it may be
	n, err := in.sock.Read(dst)
	traffic.in.Add(int64(n))
	return n, err
}

// fillNow and takeNow are of systems whose sockets can be read without waiting.
func (in *incoming) fillNow(uintptr) bool { return true }
func (in *incoming) takeNow(uintptr) bool { return true }

//go:build !unix

package transport

// fill waits for bytes and buffers them.
func (in *incoming) fill() (err error) {
	if in.buffer == nil {
		in.buffer = new([readBuffer]byte)
	}
	in.from = 0
	in.to, err = in.sock.Read(in.room())
	return err
}

// readNow is of systems whose sockets can be read without waiting.
func (in *incoming) readNow(uintptr) bool { return true }

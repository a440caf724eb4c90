package transport

import (
	"net"

	"github.com/perdure/perdure/internal/data/wire"
)

const (
	// chunkBytes is the minimum size of one writev while that much is queued. It is small enough that the bytes stay in
	// the processor's cache between the checksum and the kernel's copy.
	chunkBytes = 256 << 10
	// chunkFrames is the maximum number of frames in one writev.
	chunkFrames = 512
	// inlineBytes is the maximum size of a piece that is copied after its header. Copying it costs less than a separate
	// writev entry.
	inlineBytes = 512
	// keptFrames is the queue capacity, in frames, that is kept after a burst.
	keptFrames = 256
)

// outgoing is the data being written on a socketConn.
type outgoing struct {
	inline         int          // maximum size of a piece that is copied after its header
	frames         []wire.Frame // frames left to the writer, in order
	next           int          // frames[:next] are written and released
	preparedFrames int          // number of prepared frames
	bytes          int          // size of the prepared frames

	slab   []byte      // headers and small pieces of the prepared frames
	pieces [][]byte    // all prepared pieces
	vector net.Buffers // unwritten pieces
	iovecs []iovec     // for writev
	plain  net.Buffers // pieces that are not encrypted yet, on a private connection
	sealed [1][]byte   // the vector of a private connection
	sent   int         // number of bytes of vector that are written
	err    error       // why writev stopped, unless it would have blocked
}

// prepare prepares the first frames, up to a chunk, for writing, and returns their number.
func (o *outgoing) prepare(frames []wire.Frame) (n int) {
	bytes := 0
	size := 0
	for n < len(frames) && n < chunkFrames && bytes < chunkBytes {
		f := &frames[n]
		bytes += wire.HeaderBytes + f.PayloadBytes()
		size += wire.HeaderBytes + o.inlined(f.Payload) + o.inlined(f.Body)
		n++
	}
	if cap(o.slab) < size { // allocated now, so that it does not move below
		o.slab = make([]byte, size, 2*size)
	}
	slab, start, end := o.slab[:size], 0, 0
	o.pieces = o.pieces[:0]
	for i := range frames[:n] {
		f := &frames[i]
		wire.PutHeader(slab[end:], f)
		end += wire.HeaderBytes
		for _, piece := range [2][]byte{f.Payload, f.Body} {
			if len(piece) <= o.inline {
				end += copy(slab[end:], piece)
				continue
			}
			if start < end {
				o.pieces = append(o.pieces, slab[start:end])
			}
			o.pieces = append(o.pieces, piece)
			start = end
		}
	}
	if start < end {
		o.pieces = append(o.pieces, slab[start:end])
	}
	o.vector, o.preparedFrames, o.bytes = o.pieces, n, bytes
	return n
}

func (o *outgoing) inlined(piece []byte) int {
	if len(piece) <= o.inline {
		return len(piece)
	}
	return 0
}

// advance removes n written bytes from vector.
func (o *outgoing) advance(n int) {
	o.sent += n
	for len(o.vector) > 0 && n >= len(o.vector[0]) {
		n -= len(o.vector[0])
		o.vector = o.vector[1:]
	}
	if n > 0 {
		o.vector[0] = o.vector[0][n:]
	}
}

// copyLent copies the unwritten parts of lent bodies of the prepared frames.
func (o *outgoing) copyLent(frames []wire.Frame) {
	for i := range frames {
		f := &frames[i]
		if !f.Lent {
			continue
		}
		f.Lent = false
		for _, pieces := range [2][][]byte{o.vector, o.plain} {
			for j, piece := range pieces { // a piece of the body ends where the body ends
				if n, m := len(piece), len(f.Body); n <= m && &piece[n-1] == &f.Body[m-1] {
					pieces[j] = f.Release.(wire.Keeper).Keep(piece)
				}
			}
		}
	}
}

// finish ends a written chunk and returns its size.
func (o *outgoing) finish() (bytes int) {
	clear(o.pieces) // releases the payloads
	o.vector, o.plain, o.sealed[0], o.preparedFrames = nil, nil, nil, 0
	return o.bytes
}

// remaining returns the frames that the writer must still write.
func (o *outgoing) remaining() []wire.Frame { return o.frames[o.next:] }

// finishFrames is like finish for the writer's frames, which it releases.
func (o *outgoing) finishFrames() (bytes int) {
	done := o.remaining()[:o.preparedFrames]
	o.next += o.preparedFrames
	releaseAll(done)
	clear(done)
	return o.finish()
}

// refill takes over a queue when no frames are left, and returns an empty queue.
func (o *outgoing) refill(queue []wire.Frame) []wire.Frame {
	room := o.frames[:0]
	if cap(room) > keptFrames {
		room = nil
	}
	o.frames, o.next = queue, 0
	return room
}

// drop discards everything and returns the frames that will not be written.
func (o *outgoing) drop() []wire.Frame {
	left := o.remaining()
	o.finish()
	o.frames, o.next = nil, 0
	return left
}

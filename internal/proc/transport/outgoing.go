package transport

import (
	"net"

	"github.com/perdure/perdure/internal/data/wire"
)

const (
	// chunkBytes is how much one writev takes at least, while so much is queued:
	// few enough that the checksum's pass over the bytes leaves them in the
	// processor's cache for the kernel's copy.
	chunkBytes = 256 << 10
	// chunkFrames bounds the frames of one writev.
	chunkFrames = 512
	// inlineBytes is the largest piece that is copied behind its header: below it,
	// a copy costs less than an entry of a writev.
	inlineBytes = 512
	// keptFrames is how many frames' room a queue keeps after a burst.
	keptFrames = 256
)

// outgoing is what is being written on a socketConn.
type outgoing struct {
	inline int          // the largest piece that is copied behind its header
	frames []wire.Frame // left to the writer, in order
	next   int          // frames[:next] are written and released
	begun  int          // how many frames are lined up
	bytes  int          // their bytes

	slab   []byte      // headers and small pieces of what is lined up
	pieces [][]byte    // what is lined up
	vector net.Buffers // of pieces, what is not written yet
	iovecs []iovec     // for writev
	plain  net.Buffers // of pieces, what is not sealed yet, on a private connection
	sealed [1][]byte   // vector there
	sent   int         // bytes of vector that are written
	err    error       // why writev stopped, if not because it would have had to wait
}

// lineUp puts the bytes of the first frames, up to a chunk, into vector, and
// returns how many frames these are.
func (o *outgoing) lineUp(frames []wire.Frame) (n int) {
	bytes := 0
	size := 0
	for n < len(frames) && n < chunkFrames && bytes < chunkBytes {
		f := &frames[n]
		bytes += wire.HeaderBytes + f.PayloadBytes()
		size += wire.HeaderBytes + o.inlined(f.Payload) + o.inlined(f.Body)
		n++
	}
	if cap(o.slab) < size { // now, so that it does not move below
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
	o.vector, o.begun, o.bytes = o.pieces, n, bytes
	return n
}

func (o *outgoing) inlined(piece []byte) int {
	if len(piece) <= o.inline {
		return len(piece)
	}
	return 0
}

// advance takes n written bytes off vector.
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

// keep copies what is not written of the lent bodies of the frames lined up.
func (o *outgoing) keep(frames []wire.Frame) {
	for i := range frames {
		f := &frames[i]
		if !f.Lent {
			continue
		}
		f.Lent = false
		for _, pieces := range [2][][]byte{o.vector, o.plain} {
			for j, piece := range pieces { // it ends where the body does, if it is one of it
				if n, m := len(piece), len(f.Body); n <= m && &piece[n-1] == &f.Body[m-1] {
					pieces[j] = f.Release.(wire.Keeper).Keep(piece)
				}
			}
		}
	}
}

// finish ends a chunk that is written, and returns its bytes.
func (o *outgoing) finish() (bytes int) {
	clear(o.pieces) // lets the payloads go
	o.vector, o.plain, o.sealed[0], o.begun = nil, nil, nil, 0
	return o.bytes
}

// left returns the frames that the writer has still to write.
func (o *outgoing) left() []wire.Frame { return o.frames[o.next:] }

// finishFrames is finish for a chunk of the writer's frames, which it releases.
func (o *outgoing) finishFrames() (bytes int) {
	done := o.left()[:o.begun]
	o.next += o.begun
	released(done)
	clear(done)
	return o.finish()
}

// refill takes a queue over when nothing is left, and returns an empty one.
func (o *outgoing) refill(queue []wire.Frame) []wire.Frame {
	room := o.frames[:0]
	if cap(room) > keptFrames {
		room = nil
	}
	o.frames, o.next = queue, 0
	return room
}

// drop forgets all, and returns the frames that will not be written.
func (o *outgoing) drop() []wire.Frame {
	left := o.left()
	o.finish()
	o.frames, o.next = nil, 0
	return left
}

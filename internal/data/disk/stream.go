package disk

import (
	"cmp"
	"errors"
	"os"
	"syscall"
	"unsafe"
)

// streamer is a file system with a better way than Create to write one long file that
// nobody reads before it is synced.
type streamer interface {
	createStream(path string) (File, error)
}

const (
	// streamStart is how much is collected of a file that may be a small one.
	streamStart = 64 << 10
	// streamPiece is how much of a long one is written at once.
	streamPiece = 1 << 20
	// streamAlign is what the memory and the place in the file of a piece that is written
	// past the system's cache must be multiples of: no disk asks for more.
	streamAlign = 4 << 10
	// streamKept is how many pieces of memory a process keeps for the next file.
	streamKept = 4
)

// stream is a file that is written from its beginning to its end, and then synced. While
// one piece is written the next is filled. Pieces go past the system's cache where that
// can be: to copy them there takes more of the processor than all else about them, and
// memory that others need; and nothing is left to be done when the file is synced. What
// is too short for a piece takes the usual way.
type stream struct {
	f       *os.File
	filling []byte
	spare   []byte     // to be filled next; nil: not there yet
	writing chan error // of the piece that is being written; nil: none is
	direct  bool       // past the cache
	long    bool       // a piece has been written
	failed  error      // for good
}

func (s *stream) Write(p []byte) (n int, err error) {
	for n < len(p) {
		if len(s.filling) == cap(s.filling) {
			if s.failed = s.turn(); s.failed != nil {
				return n, s.failed
			}
		}
		room := s.filling[len(s.filling):cap(s.filling)]
		took := copy(room, p[n:])
		s.filling, n = s.filling[:len(s.filling)+took], n+took
	}
	return n, nil
}

// turn makes room: more, or, of a piece, by having it written.
func (s *stream) turn() error {
	switch {
	case s.filling == nil:
		s.filling = make([]byte, 0, streamStart)
		return nil
	case cap(s.filling) < streamPiece:
		s.filling = append(newPiece(), s.filling...)
		return nil
	}
	if err := cmp.Or(s.failed, s.wait()); err != nil {
		return err
	}
	if !s.long {
		s.long, s.direct = true, setDirect(s.f, true) == nil
	}
	if s.spare == nil {
		s.spare = newPiece()
	}
	piece, written := s.filling, make(chan error, 1)
	s.writing, s.filling, s.spare = written, s.spare, piece[:0]
	go func() { written <- s.writePiece(piece) }()
	return nil
}

// wait waits until no piece is being written.
func (s *stream) wait() (err error) {
	if s.writing != nil {
		err, s.writing = <-s.writing, nil
	}
	return err
}

// writePiece writes a piece. A file system may say only now that it goes by its cache.
func (s *stream) writePiece(b []byte) error {
	n, err := s.f.Write(b)
	if s.direct && errors.Is(err, syscall.EINVAL) {
		if err = s.cached(); err == nil {
			_, err = s.f.Write(b[n:])
		}
	}
	return wrap(err)
}

// cached goes on through the cache.
func (s *stream) cached() error {
	if !s.direct {
		return nil
	}
	s.direct = false
	return setDirect(s.f, false)
}

// Sync ends the file.
func (s *stream) Sync() error {
	err := cmp.Or(s.failed, s.wait())
	if err == nil {
		err = wrap(s.cached())
	}
	if err == nil {
		_, err = s.f.Write(s.filling)
		err = wrap(err)
	}
	s.filling = s.filling[:0]
	if err == nil {
		err = wrap(s.f.Sync())
	}
	return err
}

func (s *stream) Close() error {
	err := s.wait()
	keepPiece(s.filling)
	keepPiece(s.spare)
	s.filling, s.spare = nil, nil
	return both(err, wrap(s.f.Close()))
}

// pieces is memory for pieces that nobody uses. Memory that is new costs more than what
// is done with it.
var pieces = make(chan []byte, streamKept)

func newPiece() []byte {
	select {
	case p := <-pieces:
		return p
	default:
	}
	b := make([]byte, streamPiece+streamAlign)
	from := -uintptr(unsafe.Pointer(&b[0])) % streamAlign
	return b[from : from : from+streamPiece]
}

func keepPiece(p []byte) {
	if cap(p) != streamPiece {
		return
	}
	select {
	case pieces <- p[:0]:
	default:
	}
}

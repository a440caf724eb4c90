package disk

import (
	"cmp"
	"errors"
	"os"
	"syscall"
	"unsafe"
)

// streamer is a file system with a faster way than Create to write a long file that is not read before it is synced.
type streamer interface {
	createStream(path string) (File, error)
}

const (
	// streamStart is the initial buffer size, since the file may be small.
	streamStart = 64 << 10
	// streamPiece is the size of one write of a long file.
	streamPiece = 1 << 20
	// streamAlign is the alignment of memory and file offset for writes that bypass the system's cache; no disk
	// requires more.
	streamAlign = 4 << 10
	// maxFreeBuffers is the max number of buffers that a process keeps for the next file.
	maxFreeBuffers = 4
)

// stream is a file that is written from start to end and then synced. It fills one piece while the previous one is
// written. If possible, pieces bypass the system's cache. Copying into the cache takes more processor time than all
// other work, and memory that other processes need; and with the bypass, little remains to be done when the file is
// synced. A rest shorter than a piece is written through the cache.
type stream struct {
	f          *os.File
	filling    []byte
	spare      []byte     // filled next; nil if not allocated
	writing    chan error // result of the write in progress; nil if there is none
	direct     bool       // writes bypass the cache
	wrotePiece bool       // a piece has been written
	failed     error      // permanent error
}

func (s *stream) Write(p []byte) (n int, err error) {
	for n < len(p) {
		if len(s.filling) == cap(s.filling) {
			if s.failed = s.flushFull(); s.failed != nil {
				return n, s.failed
			}
		}
		room := s.filling[len(s.filling):cap(s.filling)]
		took := copy(room, p[n:])
		s.filling, n = s.filling[:len(s.filling)+took], n+took
	}
	return n, nil
}

// flushFull makes room in the buffer: it allocates a larger one, or starts writing a full piece.
func (s *stream) flushFull() error {
	switch {
	case s.filling == nil:
		s.filling = make([]byte, 0, streamStart)
		return nil
	case cap(s.filling) < streamPiece:
		s.filling = append(getBuffer(), s.filling...)
		return nil
	}
	if err := cmp.Or(s.failed, s.wait()); err != nil {
		return err
	}
	if !s.wrotePiece {
		s.wrotePiece, s.direct = true, setDirect(s.f, true) == nil
	}
	if s.spare == nil {
		s.spare = getBuffer()
	}
	piece, written := s.filling, make(chan error, 1)
	s.writing, s.filling, s.spare = written, s.spare, piece[:0]
	go func() { written <- s.writePiece(piece) }()
	return nil
}

// wait waits for the write in progress.
func (s *stream) wait() (err error) {
	if s.writing != nil {
		err, s.writing = <-s.writing, nil
	}
	return err
}

// writePiece writes a piece. Some file systems report only at this point that they cannot bypass the cache.
func (s *stream) writePiece(b []byte) error {
	n, err := s.f.Write(b)
	if s.direct && errors.Is(err, syscall.EINVAL) {
		if err = s.disableDirect(); err == nil {
			_, err = s.f.Write(b[n:])
		}
	}
	return wrap(err)
}

// disableDirect switches to writes through the cache.
func (s *stream) disableDirect() error {
	if !s.direct {
		return nil
	}
	s.direct = false
	return setDirect(s.f, false)
}

// Sync writes the rest and syncs the file.
func (s *stream) Sync() error {
	err := cmp.Or(s.failed, s.wait())
	if err == nil {
		err = wrap(s.disableDirect())
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
	putBuffer(s.filling)
	putBuffer(s.spare)
	s.filling, s.spare = nil, nil
	return joinErrors(err, wrap(s.f.Close()))
}

// freeBuffers holds unused buffers. Allocating new memory costs more than the work done with it.
var freeBuffers = make(chan []byte, maxFreeBuffers)

func getBuffer() []byte {
	select {
	case p := <-freeBuffers:
		return p
	default:
	}
	b := make([]byte, streamPiece+streamAlign)
	from := -uintptr(unsafe.Pointer(&b[0])) % streamAlign
	return b[from : from : from+streamPiece]
}

func putBuffer(p []byte) {
	if cap(p) != streamPiece {
		return
	}
	select {
	case freeBuffers <- p[:0]:
	default:
	}
}

//go:build linux

package agent

import (
	"os"
	"runtime"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/worker"
)

// minCollect is how much memory is lent before the garbage collector is run for it. The collector does not see this
// memory.
const minCollect = 256 << 20

// maxPieces limits the pieces that are lent at the same time. The system allows about twice as many mappings.
const maxPieces = 1 << 15

// lender provides memory in which a program computes deltas of rows, and from which the worker sends them. The memory
// is in one file, which the program has passed over and the agent extends. No part of the file is lent twice, so that
// writes to a returned piece have no effect.
type lender struct {
	mu        sync.Mutex
	file      int // 0: none yet
	end       int64
	pieces    map[*float32]*piece // by the address of their values
	returned  int64               // returned pieces
	bytes     int64               // size of all pieces
	collectAt int64               // size at which the garbage collector runs
}

// piece is a mapped part of the file.
type piece struct {
	at    int64
	bytes []byte
}

func (p *piece) first() *float32 { return (*float32)(unsafe.Pointer(unsafe.SliceData(p.bytes))) }

// pieceRef keeps a piece mapped as long as it is reachable.
type pieceRef struct{ piece *piece }

var _ worker.Memory = (*lender)(nil)

// open takes over the file to lend from.
func (l *lender) open(fd int) error {
	if err := checkSealed(fd); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != 0 {
		return usageErrorf("the memory to lend from is already set")
	}
	fd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 1)
	if err != nil {
		return err
	}
	l.file, l.collectAt, l.pieces = fd, minCollect, map[*float32]*piece{}
	return nil
}

// Alloc implements worker.Memory.
func (l *lender) Alloc(n int) (values []float32, keeper any, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == 0 {
		return nil, nil, usageErrorf("the memory to lend from is not set")
	}
	if len(l.pieces) >= maxPieces {
		return nil, nil, usageErrorf(
			"all %d pieces of lent memory hold updates that are not safe yet; use Inc for small updates",
			len(l.pieces),
		)
	}
	page := int64(os.Getpagesize())
	size := (4*int64(n) + page - 1) / page * page
	if err := unix.Ftruncate(l.file, l.end+size); err != nil {
		return nil, nil, usageErrorf("cannot allocate %d bytes of shared memory: %v", size, err)
	}
	b, err := unix.Mmap(l.file, l.end, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, usageErrorf("cannot map %d bytes of shared memory: %v", size, err)
	}
	p := &piece{l.end, b}
	l.end += size
	l.bytes += size
	l.pieces[p.first()] = p
	if l.bytes > l.collectAt {
		l.collectAt = 2 * l.bytes
		go runtime.GC() // only the collector finds unused pieces of updates that were resent
	}
	k := &pieceRef{p}
	runtime.AddCleanup(k, l.unmap, p)
	return unsafe.Slice(p.first(), size/4), k, nil
}

// Free implements worker.Memory.
func (l *lender) Free(keeper any) { l.unmap(keeper.(*pieceRef).piece) }

// unmap unmaps a piece and returns its memory to the system. It may be called more than once.
func (l *lender) unmap(p *piece) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.bytes == nil {
		return
	}
	size := int64(len(p.bytes))
	delete(l.pieces, p.first())
	_ = unix.Munmap(p.bytes)
	_ = unix.Fallocate(l.file, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, p.at, size)
	p.bytes = nil
	l.bytes -= size
	l.returned++
	l.collectAt = max(minCollect, 2*l.bytes)
}

// locate returns the position of lent values in the file, the size of their piece, and the number of returned pieces.
func (l *lender) locate(values []float32) (at [3]int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.pieces[unsafe.SliceData(values)]
	if p == nil {
		return at, perdure.ErrRolledBack // the job has just rolled back, and the memory is no longer valid
	}
	return [3]int64{p.at, int64(len(p.bytes)), l.returned}, nil
}

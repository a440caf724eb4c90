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

// leastCollect is how much is lent at least before the garbage collector is called for it: it does not see this memory.
const leastCollect = 256 << 20

// mostPieces is how many are lent at most. The system maps no more than twice as many.
const mostPieces = 1 << 15

// lender is the memory in which a program computes what it does to rows, and from which that is sent. It lies in one
// file, which the program has handed over and the agent makes longer. No place of it is lent for a second piece: what a
// program writes where a piece was, nobody reads.
type lender struct {
	mu     sync.Mutex
	file   int // 0: none yet
	end    int64
	pieces map[*float32]*piece // by where their values are
	gone   int64               // pieces that were given back
	bytes  int64               // of pieces
	most   int64               // bytes at which unused ones are looked for
}

// piece is a part of the file, as it is mapped here.
type piece struct {
	at    int64
	bytes []byte
}

func (p *piece) first() *float32 { return (*float32)(unsafe.Pointer(unsafe.SliceData(p.bytes))) }

// lent keeps a piece: it is unmapped when this cannot be reached any more.
type lent struct{ piece *piece }

var _ worker.Memory = (*lender)(nil)

// open takes over the file to lend from.
func (l *lender) open(fd int) error {
	if err := sealed(fd); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != 0 {
		return mistake("there is memory to lend already")
	}
	fd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 1)
	if err != nil {
		return err
	}
	l.file, l.most, l.pieces = fd, leastCollect, map[*float32]*piece{}
	return nil
}

// Take implements worker.Memory.
func (l *lender) Take(n int) (values []float32, keeper any, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == 0 {
		return nil, nil, mistake("there is no memory to lend from")
	}
	if len(l.pieces) >= mostPieces {
		return nil, nil, mistake("%d pieces of memory are lent, of updates that are kept; Inc what is small instead",
			len(l.pieces))
	}
	page := int64(os.Getpagesize())
	size := (4*int64(n) + page - 1) / page * page
	if err := unix.Ftruncate(l.file, l.end+size); err != nil {
		return nil, nil, mistake("%d bytes of shared memory cannot be had: %v", size, err)
	}
	b, err := unix.Mmap(l.file, l.end, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, mistake("%d bytes of shared memory cannot be mapped: %v", size, err)
	}
	p := &piece{l.end, b}
	l.end += size
	l.bytes += size
	l.pieces[p.first()] = p
	if l.bytes > l.most {
		l.most = 2 * l.bytes
		go runtime.GC() // updates that had to be sent again are found by it alone
	}
	k := &lent{p}
	runtime.AddCleanup(k, l.drop, p)
	return unsafe.Slice(p.first(), size/4), k, nil
}

// Give implements worker.Memory.
func (l *lender) Give(keeper any) { l.drop(keeper.(*lent).piece) }

// drop unmaps a piece, and gives its memory back to the system. It may be called again.
func (l *lender) drop(p *piece) {
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
	l.gone++
	l.most = max(leastCollect, 2*l.bytes)
}

// where says where in the file values are that were lent, how large their piece is, and how many are gone.
func (l *lender) where(values []float32) (at [3]int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.pieces[unsafe.SliceData(values)]
	if p == nil {
		return at, perdure.ErrRolledBack // just now: what was lent counts no more
	}
	return [3]int64{p.at, int64(len(p.bytes)), l.gone}, nil
}

//go:build linux

package agent

import (
	"math"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Addresses are of memory that the program shares: the number of a region in the upper bits, and a place in it.
const (
	placeBits   = 40
	mostRegions = 1 << 16
)

// arena is the memory that a program shares with its agent. A region is in use while a call reads or writes it, and is
// not unmapped before: so that a Get never writes into memory that has become something else.
type arena struct {
	mu      sync.Mutex
	regions map[int64]*region
	next    int64
}

type region struct {
	sync.RWMutex // held for reading by calls that use it
	bytes        []byte
}

// add maps a file of shared memory, and returns the address of its first byte. Its size must be sealed: an agent that
// reads beyond the end of a file dies.
func (a *arena) add(fd int, size int64) (address int64, err error) {
	if err := sealed(fd); err != nil {
		return 0, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, err
	}
	if size < 1 || size > st.Size || size > 1<<placeBits || size > math.MaxInt {
		return 0, mistake("%d bytes of shared memory of %d", size, st.Size)
	}
	bytes, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return 0, mistake("memory cannot be mapped: %v", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.regions == nil {
		a.regions = map[int64]*region{}
	}
	if len(a.regions) >= mostRegions {
		_ = unix.Munmap(bytes)
		return 0, mistake("more than %d pieces of shared memory; free some", mostRegions)
	}
	at := a.next
	a.next++
	a.regions[at] = &region{bytes: bytes}
	return at << placeBits, nil
}

// sealed refuses a file that may become shorter.
func sealed(fd int) error {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return mistake("the memory is no memfd with F_SEAL_SHRINK")
	}
	return nil
}

// remove unmaps a region, once no call uses it.
func (a *arena) remove(address int64) error {
	a.mu.Lock()
	r := a.regions[address>>placeBits]
	delete(a.regions, address>>placeBits)
	a.mu.Unlock()
	if r == nil {
		return mistake("address %x is of no shared memory", address)
	}
	r.Lock()
	defer r.Unlock()
	return unix.Munmap(r.bytes)
}

// use returns count values of size bytes at an address, as they lie in memory. Done must be called, unless there is an
// error.
func (a *arena) use(address, count, size int64) (values []byte, done func(), err error) {
	if count == 0 {
		return nil, func() {}, nil // of what is nowhere, too
	}
	a.mu.Lock()
	r := a.regions[address>>placeBits]
	if r != nil {
		r.RLock() // waits for nobody: who locks it has taken it out before
	}
	a.mu.Unlock()
	if r == nil {
		return nil, nil, mistake("address %x is of no shared memory", address)
	}
	place, most := address&(1<<placeBits-1), int64(len(r.bytes))
	switch {
	case count < 0 || count > most/size || place > most-count*size:
		r.RUnlock()
		return nil, nil, mistake("%d values of %d bytes at %d, of %d bytes of shared memory", count, size, place, most)
	case place%size != 0:
		r.RUnlock()
		return nil, nil, mistake("address %x of values of %d bytes; it must be a multiple of that", address, size)
	}
	return r.bytes[place : place+count*size], r.RUnlock, nil
}

// in are values of a type, where they lie in shared memory.
func in[T any](a *arena, address, count int64) (values []T, done func(), err error) {
	var zero T
	b, done, err := a.use(address, count, int64(unsafe.Sizeof(zero)))
	if err != nil || count == 0 {
		return nil, done, err
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), count), done, nil
}

//go:build linux

package agent

import (
	"math"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// An address in shared memory consists of the number of a region in the upper bits and an offset in it.
const (
	offsetBits = 40
	maxRegions = 1 << 16
)

// arena is the memory that a program shares with its agent. A region is not unmapped while a call reads or writes it,
// so that a Get never writes into memory with another use.
type arena struct {
	mu      sync.Mutex
	regions map[int64]*region
	next    int64
}

type region struct {
	sync.RWMutex // held for reading by calls that use the region
	bytes        []byte
}

// add maps a file of shared memory and returns the address of its first byte. The size of the file must be sealed,
// because an agent that reads beyond the end of a file is killed.
func (a *arena) add(fd int, size int64) (address int64, err error) {
	if err := checkSealed(fd); err != nil {
		return 0, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, err
	}
	if size < 1 || size > st.Size || size > 1<<offsetBits || size > math.MaxInt {
		return 0, usageErrorf("invalid size of shared memory: %d bytes of a file of %d", size, st.Size)
	}
	bytes, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return 0, usageErrorf("cannot map the memory: %v", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.regions == nil {
		a.regions = map[int64]*region{}
	}
	if len(a.regions) >= maxRegions {
		_ = unix.Munmap(bytes)
		return 0, usageErrorf("cannot map more than %d regions of shared memory; free some", maxRegions)
	}
	at := a.next
	a.next++
	a.regions[at] = &region{bytes: bytes}
	return at << offsetBits, nil
}

// checkSealed returns an error for a file that may shrink.
func checkSealed(fd int) error {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return usageErrorf("the memory is not a memfd with F_SEAL_SHRINK")
	}
	return nil
}

// remove unmaps a region once no call uses it.
func (a *arena) remove(address int64) error {
	a.mu.Lock()
	r := a.regions[address>>offsetBits]
	delete(a.regions, address>>offsetBits)
	a.mu.Unlock()
	if r == nil {
		return usageErrorf("address %x is not in shared memory", address)
	}
	r.Lock()
	defer r.Unlock()
	return unix.Munmap(r.bytes)
}

// acquire returns count values of size bytes at an address, without copying them. The caller must call done unless
// there is an error.
func (a *arena) acquire(address, count, size int64) (values []byte, done func(), err error) {
	if count == 0 {
		return nil, func() {}, nil // the address does not matter
	}
	a.mu.Lock()
	r := a.regions[address>>offsetBits]
	if r != nil {
		r.RLock() // never blocks: remove deletes a region before it locks it
	}
	a.mu.Unlock()
	if r == nil {
		return nil, nil, usageErrorf("address %x is not in shared memory", address)
	}
	place, most := address&(1<<offsetBits-1), int64(len(r.bytes))
	switch {
	case count < 0 || count > most/size || place > most-count*size:
		r.RUnlock()
		return nil, nil, usageErrorf("%d values of %d bytes from offset %d do not fit in the %d bytes of shared memory",
			count,
			size, place, most)
	case place%size != 0:
		r.RUnlock()
		return nil, nil, usageErrorf("address %x is not aligned to the size of the values, %d bytes", address,
			size)
	}
	return r.bytes[place : place+count*size], r.RUnlock, nil
}

// acquireSlice returns values of a type in shared memory, without copying them.
func acquireSlice[T any](a *arena, address, count int64) (values []T, done func(), err error) {
	var zero T
	b, done, err := a.acquire(address, count, int64(unsafe.Sizeof(zero)))
	if err != nil || count == 0 {
		return nil, done, err
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), count), done, nil
}

//go:build linux

package agent

import (
	"runtime"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestDeltas checks that values written to lent memory are the deltas of the rows, and that the memory is reused.
func TestDeltas(t *testing.T) {
	inJob(t, func(t *testing.T, p *program, _ func()) {
		p.hello()
		p.call(opTable, 0, `{"name":"w","rows":8,"dim":4,"rule":{"kind":"add"}}`)
		p.refused(codeUsage, "not set", opDeltas, 0, "", 0, 2, 3)
		fd := memory(t, 0, unix.F_SEAL_SHRINK)
		for _, c := range []struct {
			fd    int
			words string
		}{
			{memory(t, 0, unix.F_SEAL_GROW), "F_SEAL_SHRINK"}, {fd, ""}, {fd, "already"},
		} {
			p.send(opLend, 0, "", c.fd)
			if r := p.hear(); string(r.text) != c.words && !(c.words != "" && r.code == codeUsage) {
				t.Errorf("code %d, %q; want %q", r.code, r.text, c.words)
			}
		}
		p.refused(codeUsage, "one file", opLend, 0, "")
		p.refused(codeUsage, "the table has rows 0 to 7", opDeltas, 0, "", 0, 7, 2)
		p.refused(codeUsage, "number of rows: -1", opDeltas, 0, "", 0, 0, -1)
		at, values := p.share(32)
		for clock := range int64(3) {
			r := p.call(opDeltas, 0, "", 0, 2, 3)
			p.refused(codeUsage, "Deltas returned", opIncRun, 0, "", at, 3, 1)
			b, err := unix.Mmap(fd, r.args[0], int(r.args[1]), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			must(t, err)
			lent := unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), 12)
			for i := range lent {
				lent[i] = float32(i)
			}
			must(t, unix.Munmap(b))
			if r := p.call(opClock, 0, ""); r.args[0] != clock+1 {
				t.Fatalf("clock %d", r.args[0])
			}
			p.call(opSettle, 0, "")
			p.call(opGetRun, 0, "", at, 0, 8)
			want := make([]float32, 32)
			for i := range 12 {
				want[8+i] = float32(i) * float32(clock+1)
			}
			if !slices.Equal(values, want) {
				t.Fatalf("after clock %d the rows are %v, want %v", clock, values, want)
			}
		}
		p.call(opFinish, 0, "")
		p.call(opGoodbye, 0, "", 1)
	})
}

// TestLender checks that memory is returned to the system when a piece is given back and when it becomes unreachable.
func TestLender(t *testing.T) {
	fd := memory(t, 0, unix.F_SEAL_SHRINK)
	l := &lender{}
	must(t, l.open(fd))
	defer unix.Close(l.file)
	used := func() int64 {
		var st unix.Stat_t
		must(t, unix.Fstat(fd, &st))
		return st.Blocks * 512
	}
	take := func() any {
		values, keeper, err := l.Alloc(100_000)
		must(t, err)
		for i := range values {
			values[i] = 1
		}
		return keeper
	}
	kept, given := take(), take()
	take() // not kept
	l.Free(given)
	l.Free(given)
	for gone := int64(0); gone < 2; {
		runtime.GC()
		l.mu.Lock()
		gone = l.returned
		l.mu.Unlock()
	}
	if got := used(); l.returned != 2 || got < 400_000 || got >= 800_000 {
		t.Errorf("%d pieces returned, %d bytes in use; want 2, and the memory of one ", l.returned, got)
	}
	runtime.KeepAlive(kept)
}

//go:build linux

package agent

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/testcluster"
	"github.com/perdure/perdure/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// program is a program at the other end of an agent's socket.
type program struct {
	testing.TB
	socket *net.UnixConn
	next   uint32
	ended  chan error // the result of Serve
	death  *death     // nil: it does not die
	// goodbye reports whether the program has called goodbye.
	goodbye bool
}

// pair returns both ends of a packet socket.
func pair(t testing.TB) (here *net.UnixConn, there *Socket) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	f := os.NewFile(uintptr(fds[0]), "socket")
	defer f.Close()
	c, err := net.FileConn(f)
	must(t, err)
	there, err = Open(fds[1])
	must(t, err)
	return c.(*net.UnixConn), there
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// start starts an agent that lives as long as ctx.
func start(ctx context.Context, t testing.TB, o Options) *program {
	t.Helper()
	here, there := pair(t)
	p := &program{TB: t, socket: here, ended: make(chan error, 1)}
	go func() { p.ended <- Serve(ctx, there, o) }()
	t.Cleanup(func() { _ = here.Close() })
	return p
}

// inJob runs a program in a job of one slot, in memory.
func inJob(t *testing.T, test func(t *testing.T, p *program, kill func())) {
	t.Helper()
	ctx, h := testcluster.NewForTest(t, time.Minute, testcluster.Options{Ended: func(*testcluster.Process, error) {}})
	job := testcluster.Job("bsp", "none", 1, 1, 2)
	job.Clocks = 3
	_, err := h.StartCoordinator(job)
	must(t, err)
	h.StartServer("server-0")
	life, end := context.WithCancel(ctx)
	dial := func(ctx context.Context, cfg worker.Config) (*worker.Client, error) {
		return h.NewProcess("worker-0").Dial(ctx, cfg.Slot, func(c *testcluster.DialConfig) { c.Memory = cfg.Memory })
	}
	p := start(life, t, Options{Version: "v", Dial: dial})
	test(t, p, end)
	end()
	if err := <-p.ended; err != nil {
		t.Errorf("the agent ended with %v", err)
	}
}

// send makes a call without waiting for its reply.
func (p *program) send(op op, table uint16, text string, file int, args ...int64) {
	p.Helper()
	p.next++
	b := binary.LittleEndian.AppendUint16(nil, uint16(op))
	b = binary.LittleEndian.AppendUint16(b, table)
	b = binary.LittleEndian.AppendUint32(b, p.next)
	for i := range 4 {
		if i < len(args) {
			b = binary.LittleEndian.AppendUint64(b, uint64(args[i]))
		} else {
			b = append(b, make([]byte, 8)...)
		}
	}
	var rights []byte
	if file >= 0 {
		rights = unix.UnixRights(file)
	}
	b = p.death.sends(append(b, text...))
	_, _, err := p.socket.WriteMsgUnix(b, rights, nil)
	must(p, err)
	p.death.sent()
}

// hear returns the next reply.
func (p *program) hear() (r reply) {
	p.Helper()
	p.death.hears(p.socket)
	b := make([]byte, maxPacket)
	n, err := p.socket.Read(b)
	must(p, err)
	p.death.heard()
	of, err := parse(b[:n])
	must(p, err)
	if of.id != p.next {
		p.Fatalf("a reply to call %d instead of %d", of.id, p.next)
	}
	return reply{code(of.op), of.args, of.text}
}

// call makes a call that must succeed.
func (p *program) call(op op, table uint16, text string, args ...int64) reply {
	p.Helper()
	p.goodbye = p.goodbye || op == opGoodbye
	p.send(op, table, text, -1, args...)
	r := p.hear()
	if r.code != codeOK {
		p.Fatalf("call %d: code %d, %s", op, r.code, r.text)
	}
	return r
}

// refused makes a call that must fail.
func (p *program) refused(want code, words string, op op, table uint16, text string, args ...int64) {
	p.Helper()
	p.send(op, table, text, -1, args...)
	if r := p.hear(); r.code != want || !strings.Contains(string(r.text), words) {
		p.Errorf("call %d: code %d, %q; want code %d and %q", op, r.code, r.text, want, words)
	}
}

func (p *program) hello() {
	p.Helper()
	var w helloReply
	must(p, json.Unmarshal(p.call(opHello, 0, hello("0")).text, &w))
	if w.Version != "v" || w.Slot != 0 || w.Job.Clocks != 3 {
		p.Fatalf("welcomed as %+v", w)
	}
}

// share maps memory for the given number of float32 values.
func (p *program) share(floats int) (address int64, values []float32) {
	p.Helper()
	fd := memory(p, int64(4*floats), unix.F_SEAL_SHRINK)
	p.send(opMap, 0, "", fd, int64(4*floats))
	r := p.hear()
	if r.code != codeOK {
		p.Fatalf("%s", r.text)
	}
	b, err := unix.Mmap(fd, 0, 4*floats, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(p, err)
	p.Cleanup(func() { _ = unix.Munmap(b) })
	return r.args[0], unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), floats)
}

func memory(t testing.TB, size int64, seals int) (fd int) {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	must(t, err)
	must(t, unix.Ftruncate(fd, size))
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	must(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// TestWork checks that a program can work through a job with all calls, on two channels.
func TestWork(t *testing.T) {
	inJob(t, func(t *testing.T, p *program, _ func()) {
		p.hello()
		p.refused(codeUsage, "already joined", opHello, 0, hello("0"))
		p.refused(codeUsage, "table 0 does not exist", opFlush, 0, "")
		table := p.call(opTable, 0, `{"name":"w","rows":8,"dim":4,"rule":{"kind":"add"}}`)
		if !strings.Contains(string(table.text), `"rows":8`) || table.args[0] != 0 {
			t.Fatalf("table %v, %s", table.args, table.text)
		}
		if again := p.call(opTable, 0, `{"name":"w","rows":8,"dim":4,"rule":{"kind":"add"}}`); again.args[0] != 0 {
			t.Fatalf("the same table has number %d", again.args[0])
		}
		sparse := p.call(opTable, 0, `{"name":"s","sparse":true,"dim":1,"rule":{"kind":"add"}}`).args[0]
		at, values := p.share(64)
		list, rows := p.share(64)
		ids := unsafe.Slice((*int64)(unsafe.Pointer(unsafe.SliceData(rows))), 32)
		copy(ids, []int64{3, 1})
		for i := range 8 {
			values[i] = float32(i + 1)
		}
		p.call(opIncRows, 0, "", at, list, 2)
		p.call(opIncRun, 0, "", at, 0, 1)
		p.call(opIncRows, uint16(sparse), "", at, list, 2)
		p.call(opFlush, 0, "")
		p.call(opSaveState, 0, "", at, 0, 9)
		p.call(opReport, 0, `{"train_loss":1.5}`, 10)
		p.call(opReport, 0, `{"waited_ns":1000}`)
		if r := p.call(opClock, 0, ""); r.args[0] != 1 {
			t.Fatalf("clock %d", r.args[0])
		}
		if s := p.call(opLoadState, 0, ""); s.args[0] != 9 || s.args[1] != 0 {
			t.Fatalf("a state of %d bytes, of clock %d", s.args[0], s.args[1])
		}
		p.call(opFetch, 0, "", at+32)
		if values[8] != 1 || values[9] != 2 {
			t.Errorf("state %v", values[8:10])
		}
		p.call(opPrefetch, 0, "", 0, list, 2)
		p.call(opGetRun, 0, "", at+64, 0, 4)
		want := []float32{1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 1, 2, 3, 4}
		if got := values[16:32]; !slices.Equal(got, want) {
			t.Errorf("rows 0 to 3 are %v, want %v", got, want)
		}
		p.call(opForget, 0, "")
		p.call(opGetRows, 0, "", at+64, list, 2)
		if got, want := values[16:24], []float32{1, 2, 3, 4, 5, 6, 7, 8}; !slices.Equal(got, want) {
			t.Errorf("rows 3 and 1 are %v, want %v", got, want)
		}
		if r := p.call(opStored, uint16(sparse), "", list, 0, 32); r.args[0] != 2 || ids[0] != 1 || ids[1] != 3 {
			t.Errorf("stored rows %v of %d", ids[:2], r.args[0])
		}
		if r := p.call(opNow, 0, ""); r.args != [4]int64{1, 3, 1, 1} || len(r.text) > 0 {
			t.Errorf("now %v, %q", r.args, r.text)
		}
		p.call(opAwaitSlots, 0, "")
		p.call(opUnmap, 0, "", list)
		p.refused(codeUsage, "not in shared memory", opGetRows, 0, "", at, list, 2)

		other := p.channel()
		other.call(opClock, 0, "")
		other.call(opSettle, 0, "")
		if r := other.call(opClock, 0, ""); r.args[0] != 3 {
			t.Errorf("clock %d", r.args[0])
		}
		other.call(opFinish, 0, "")
		_ = other.socket.Close() // a thread ends
		p.call(opNow, 0, "")
		p.call(opGoodbye, 0, "", 1)
	})
}

// channel opens another channel.
func (p *program) channel() *program {
	p.Helper()
	here, there := pair(p)
	defer there.Close()
	p.send(opChannel, 0, "", there.fd)
	if r := p.hear(); r.code != codeOK {
		p.Fatalf("%s", r.text)
	}
	p.Cleanup(func() { _ = here.Close() })
	return &program{TB: p, socket: here, next: 1000, death: p.death}
}

// TestCancel checks that a blocked call ends when it is cancelled, and that it can be repeated.
func TestCancel(t *testing.T) {
	inJob(t, func(_ *testing.T, p *program, _ func()) {
		p.hello()
		other := p.channel()
		if r := other.call(opCancel, 0, "", 7); r.args[0] != 0 {
			p.Error("a finished call was cancelled")
		}
		p.send(opFinish, 0, "", -1) // waits for clocks that never end
		for other.call(opCancel, 0, "", int64(p.next)).args[0] == 0 {
			// It has not started.
		}
		if r := p.hear(); r.code != codeCancelled {
			p.Errorf("code %d, %s", r.code, r.text)
		}
		p.call(opNow, 0, "")
	})
}

// TestProgramDies checks that the agent gives up the slot whatever the program was about to do, and however many copies
// of its socket other processes hold.
func TestProgramDies(t *testing.T) {
	inJob(t, func(_ *testing.T, p *program, kill func()) {
		p.hello()
		p.channel()
		p.send(opFinish, 0, "", -1)
		kill()
	})
}

// TestHangsUp checks that an agent ends when its program closes the socket.
func TestHangsUp(t *testing.T) {
	inJob(t, func(t *testing.T, p *program, _ func()) {
		p.hello()
		_ = p.socket.Close()
		if err := <-p.ended; err != nil {
			t.Error(err)
		}
		p.ended <- nil
	})
}

// TestHangsUpAmidACall checks the same during a call that may block for long.
func TestHangsUpAmidACall(t *testing.T) {
	inJob(t, func(t *testing.T, p *program, _ func()) {
		p.hello()
		other := p.channel()
		other.send(opFinish, 0, "", -1) // waits for clocks that never end
		p.send(opFinish, 0, "", -1)
		_ = p.socket.Close()
		select {
		case err := <-p.ended:
			p.ended <- err
		case <-time.After(maxEnding):
			t.Fatalf("the agent still runs after %v", maxEnding)
		}
	})
}

// TestMistakes checks that each mistake is reported in one line and changes nothing.
func TestMistakes(t *testing.T) {
	inJob(t, func(t *testing.T, p *program, _ func()) {
		p.refused(codeUsage, "first call must be the hello", opNow, 0, "")
		p.refused(codeUsage, "cannot read", opHello, 0, "{")
		p.refused(codeRefused, "install the same version of both", opHello, 0, `{"protocol":1}`)
		p.refused(codeRefused, "install the same version of both", opHello, 0, `{"protocol":999}`)
		p.hello()
		p.call(opTable, 0, `{"name":"w","rows":8,"dim":4,"rule":{"kind":"add"}}`)
		at, values := p.share(16)
		values[0] = 1
		for _, c := range []struct {
			op    op
			words string
			text  string
			args  []int64
		}{
			{opTable, "cannot read", "{", nil},
			{opTable, `unknown field "inti"`, `{"name":"v","rows":8,"dim":1,"rule":{"kind":"add"},"inti":{}}`, nil},
			{opTable, `unknown field "rat"`, `{"name":"v","rows":8,"dim":1,"rule":{"kind":"add","rat":1}}`, nil},
			{opTable, "choose 1 to", `{"name":"v","rows":8,"dim":0,"rule":{"kind":"add"}}`, nil},
			{opGetRun, "not in shared memory", "", []int64{99 << offsetBits, 0, 1}},
			{opGetRun, "not in shared memory", "", []int64{-1, 0, 1}},
			{opGetRun, "20 values", "", []int64{at, 0, 5}},
			{opGetRun, "4 values", "", []int64{at + 52, 0, 1}},
			{opGetRun, "aligned", "", []int64{at + 2, 0, 1}},
			{opGetRun, "number of rows: -1", "", []int64{at, 0, -1}},
			{opGetRun, "rows", "", []int64{at, 0, 1 << 62}},
			{opGetRun, "the table has rows 0 to 7", "", []int64{at, 7, 2}},
			{opGetRows, "2 values of 8 bytes", "", []int64{at, at + 56, 2}},
			{opSaveState, "-1 values", "", []int64{at, 0, -1}},
			{opUnmap, "not in shared memory", "", []int64{99 << offsetBits}},
			{opReport, "cannot read", "[", nil},
			{opReport, "negative", `{"waited_ns":-1}`, nil},
			{opMap, "one file", "", []int64{64}},
			{opChannel, "one socket", "", nil},
			{op(99), "unknown call 99", "", nil},
			{op(0), "unknown call 0", "", nil},
		} {
			p.refused(codeUsage, c.words, c.op, 0, c.text, c.args...)
		}
		for _, c := range []struct {
			fd    int
			size  int64
			words string
		}{
			{memory(t, 64, unix.F_SEAL_SHRINK), 65, "of 64"},
			{memory(t, 64, unix.F_SEAL_SHRINK), 0, "0 bytes"},
			{memory(t, 64, unix.F_SEAL_GROW), 64, "F_SEAL_SHRINK"},
			{plainFile(t), 1, "F_SEAL_SHRINK"},
		} {
			p.send(opMap, 0, "", c.fd, c.size)
			if r := p.hear(); r.code != codeUsage || !strings.Contains(string(r.text), c.words) {
				t.Errorf("memory: code %d, %q; want %q", r.code, r.text, c.words)
			}
		}
		p.send(opChannel, 0, "", plainFile(t))
		if r := p.hear(); r.code != codeUsage || !strings.Contains(string(r.text), "not a socket") {
			t.Errorf("file as a channel: code %d, %q", r.code, r.text)
		}
		p.call(opNow, 0, "")
	})
}

func plainFile(t testing.TB) int {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	must(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return int(f.Fd())
}

// TestPacket checks that an invalid packet ends the agent with an error.
func TestPacket(t *testing.T) {
	p := start(t.Context(), t, Options{})
	_, err := p.socket.Write(make([]byte, headBytes-1))
	must(t, err)
	if err := <-p.ended; err == nil {
		t.Error("a packet that is too short is accepted")
	}
	if _, err := Open(999); err == nil {
		t.Error("a file that is not open is accepted as a socket")
	}
}

// TestCodes checks that each error that a worker returns has a code of its own.
func TestCodes(t *testing.T) {
	seen := map[code]bool{}
	for _, of := range codes {
		if r := failed(of.is); r.code != of.code || seen[r.code] {
			t.Errorf("%v has code %d", of.is, r.code)
		}
		seen[of.code] = true
	}
	if r := failed(perdure.ErrDone); r.code != codeDone {
		t.Errorf("ErrDone has code %d", r.code)
	}
	if r := failed(os.ErrClosed); r.code != codeOther {
		t.Errorf("an unknown error has code %d", r.code)
	}
}

// TestWithParent checks that the context lives while the parent lives.
func TestWithParent(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	of, parent, err := WithParent(ctx)
	must(t, err)
	if parent != os.Getppid() || of.Err() != nil {
		t.Errorf("parent %d, %v", parent, of.Err())
	}
	end()
	<-of.Done()
}

// hello returns the text of a hello for a slot.
func hello(slot string) string {
	return fmt.Sprintf(`{"protocol":%d,"coordinator":"x:1","slot":%s}`, Protocol, slot)
}

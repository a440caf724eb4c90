package control

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/emptypb"

	controlv1 "github.com/perdure/perdure/internal/proc/control/v1"
	"github.com/perdure/perdure/internal/proc/httpdebug"
)

// The words of the table for what a call is answered.
const (
	allowed  = "yes"
	denied   = "denied"
	stranger = "unknown"
	unheard  = "–" // it comes no further than the handshake of TLS
)

const (
	rightsPage  = "../../../docs/design/security.md"
	rightsBegin = "| who calls | "
)

// callRights reads the table of docs/design/security.md: what each who calls is answered, by call.
func callRights(t *testing.T) (rights map[string]map[string]string) {
	t.Helper()
	page, err := os.ReadFile(rightsPage)
	must(t, err)
	_, rest, found := strings.Cut(string(page), "\n"+rightsBegin)
	if !found {
		t.Fatalf("%s has no table that begins with %q", rightsPage, rightsBegin)
	}
	cells := func(line string) []string { return strings.Split(strings.Trim(line, "|\n "), " | ") }
	var calls []string
	rights = map[string]map[string]string{}
	for line := range strings.Lines(rest) {
		row := cells(line)
		switch {
		case calls == nil:
			calls = row
			continue
		case strings.HasPrefix(line, "|-"):
			continue
		case !strings.HasPrefix(line, "|"):
			return rights
		}
		if len(row) != len(calls)+1 || rights[row[0]] != nil {
			t.Fatalf("%s: %q has not a cell for each call, or is there twice", rightsPage, line)
		}
		rights[row[0]] = map[string]string{}
		for i, call := range calls {
			if !slices.Contains([]string{allowed, denied, stranger, unheard}, row[i+1]) {
				t.Fatalf("%s: %q says %q", rightsPage, line, row[i+1])
			}
			rights[row[0]][call] = row[i+1]
		}
	}
	return rights
}

// heardJob is a job, what its log says, and what its gate lets through.
type heardJob struct {
	mu             sync.Mutex
	lines, through []string
}

func (h *heardJob) Write(line []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lines = append(h.lines, string(line))
	return len(line), nil
}

// take returns what there was since it was called last.
func (h *heardJob) take() (lines, through []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	lines, through = h.lines, h.through
	h.lines, h.through = nil, nil
	return lines, through
}

// serve serves the job's control API as a coordinator does, and returns its address.
func (h *heardJob) serve(t *testing.T, gate Gate) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	addr = l.Addr().String()
	gate.Addrs, gate.Alive, gate.Log = []string{addr}, isAlive, slog.New(slog.NewTextHandler(h, nil))
	if gate.Ring != nil {
		l = tls.NewListener(l, gate.Ring.Web())
	}
	api := NewHandler(&fakeJob{})
	s := httpdebug.NewHTTPServer(gate.Guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		h.through = append(h.through, path.Base(r.URL.Path))
		h.mu.Unlock()
		api.ServeHTTP(w, r)
	})))
	s.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0) // handshakes that fail are wanted
	go func() { _ = s.Serve(l) }()                         // ends with the test
	t.Cleanup(func() { _ = s.Close() })
	return addr
}

// ways are those in which one call can be made.
func ways(m protoreflect.MethodDescriptor, http2 bool) map[string][]connect.ClientOption {
	w := map[string][]connect.ClientOption{
		"Connect": nil, "Connect with JSON": {connect.WithProtoJSON()}, "gRPC-Web": {connect.WithGRPCWeb()},
	}
	if http2 {
		w["gRPC"] = []connect.ClientOption{connect.WithGRPC()}
	}
	if changesNothing(m) {
		w["Connect by GET"] = []connect.ClientOption{
			connect.WithHTTPGet(), connect.WithIdempotency(connect.IdempotencyNoSideEffects),
		}
	}
	return w
}

// changesNothing reports whether a call changes nothing, as its schema says.
func changesNothing(m protoreflect.MethodDescriptor) bool {
	o, ok := m.Options().(*descriptorpb.MethodOptions)
	return ok && o.GetIdempotencyLevel() == descriptorpb.MethodOptions_NO_SIDE_EFFECTS
}

// answered is what a call was answered, in the table's words.
func answered(err error) string {
	switch code := connect.CodeOf(err); {
	case err == nil:
		return allowed
	case !connect.IsWireError(err):
		return unheard
	case code == connect.CodePermissionDenied:
		return denied
	case code == connect.CodeUnauthenticated:
		return stranger
	}
	return err.Error()
}

// TestRightsOfCallers has each kind of caller make each call of the schema, in each way that it can be made. What it
// is answered is as docs/design/security.md has it. What is refused does not come to the job, and what would change
// something is in the log, with who has asked, whether it was refused or not.
func TestRightsOfCallers(t *testing.T) {
	c := newCrossing(t)
	c.rights = callRights(t)
	c.certificates()
	c.tokens()
	c.secrets()
	calls := controlv1.File_internal_proc_control_v1_control_proto.Services().ByName("Control").Methods()
	for _, one := range c.callers {
		c.calls(one, calls)
		delete(c.rights, one.name)
	}
	for name := range c.rights {
		t.Errorf("%s has a row for %q, which nobody here is", rightsPage, name)
	}
}

// calls has a caller make each call.
func (c *crossing) calls(one *caller, calls protoreflect.MethodDescriptors) {
	row := c.rights[one.name]
	if row == nil {
		c.Errorf("%s has no row for %q", rightsPage, one.name)
		return
	}
	tool, url, end := one.client()
	defer end()
	if one.then != nil {
		err := call(tool, url, calls.Get(0))
		c.take()
		must(c.T, err)
		one.then()
	}
	for i := range calls.Len() {
		m := calls.Get(i)
		name := string(m.Name())
		if row[name] == "" {
			c.Errorf("%s has no column for %s", rightsPage, name)
		}
		for way, options := range ways(m, one.ring != nil) {
			c.take()
			err := call(tool, url, m, options...)
			lines, through := c.take()
			if got := answered(err); got != row[name] {
				c.Errorf("%s calls %s by %s, and is answered %s (%v); want %s", one.name, name, way, got, err,
					row[name])
			}
			var want []string
			if row[name] == allowed {
				want = []string{name}
			}
			if !slices.Equal(through, want) {
				c.Errorf("%s calls %s by %s: the job is asked for %v", one.name, name, way, through)
			}
			c.noted(one, m, err, lines)
		}
	}
}

// call makes a call, with nothing in it that need not be.
func call(tool *http.Client, url string, m protoreflect.MethodDescriptor, options ...connect.ClientOption) error {
	url += fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
	request := dynamicpb.NewMessage(m.Input())
	if workers := m.Input().Fields().ByName("workers"); workers != nil {
		request.Set(workers, protoreflect.ValueOfInt32(1))
	}
	_, err := connect.NewClient[dynamicpb.Message, emptypb.Empty](tool, url, options...).CallUnary(context.Background(),
		connect.NewRequest(request))
	return err
}

// noted checks what the log has of a call.
func (c *crossing) noted(one *caller, m protoreflect.MethodDescriptor, err error, lines []string) {
	if changesNothing(m) || one.who == "" {
		if lines != nil {
			c.Errorf("%s calls %s, and the log has %q", one.name, m.Name(), lines)
		}
		return
	}
	begins := `level=INFO msg="a call of the control API"`
	if err != nil {
		begins = `level=WARN msg="refused a call of the control API"`
	}
	who := one.who
	if strings.Contains(who, " ") {
		who = strconv.Quote(who)
	}
	want := fmt.Sprintf("%s call=%s who=%s from=127.0.0.1:", begins, m.Name(), who)
	if len(lines) != 1 || !strings.Contains(lines[0], want) {
		c.Errorf("%s calls %s, and the log has %q; want one line with %s", one.name, m.Name(), lines, want)
	}
}

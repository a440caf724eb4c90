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

// The table's terms for the answers to a call.
const (
	allowed  = "yes"
	denied   = "denied"
	stranger = "unknown"
	unheard  = "–" // rejected in the TLS handshake
)

const (
	rightsPage  = "../../../docs/design/security.md"
	rightsBegin = "| who calls | "
)

// callRights reads the table in docs/design/security.md: the answer to each call, by caller and call.
func callRights(t *testing.T) (rights map[string]map[string]string) {
	t.Helper()
	page, err := os.ReadFile(rightsPage)
	must(t, err)
	_, rest, found := strings.Cut(string(page), "\n"+rightsBegin)
	if !found {
		t.Fatalf("%s has no table that starts with %q", rightsPage, rightsBegin)
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
			t.Fatalf("%s: row %q is a duplicate, or has the wrong number of cells", rightsPage, line)
		}
		rights[row[0]] = map[string]string{}
		for i, call := range calls {
			if !slices.Contains([]string{allowed, denied, stranger, unheard}, row[i+1]) {
				t.Fatalf("%s: row %q has the unknown term %q", rightsPage, line, row[i+1])
			}
			rights[row[0]][call] = row[i+1]
		}
	}
	return rights
}

// heardJob is a job that records its log and the calls that its gate admits.
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

// take returns what was recorded since the previous call.
func (h *heardJob) take() (lines, through []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	lines, through = h.lines, h.through
	h.lines, h.through = nil, nil
	return lines, through
}

// serve serves the job's control API like a coordinator, and returns its address.
func (h *heardJob) serve(t *testing.T, gate Authorizer) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	addr = l.Addr().String()
	gate.Addrs, gate.Alive, gate.Log = []string{addr}, isAlive, slog.New(slog.NewTextHandler(h, nil))
	if gate.Ring != nil {
		l = tls.NewListener(l, gate.Ring.WebServer())
	}
	api := NewHandler(&fakeJob{})
	s := httpdebug.NewHTTPServer(gate.Guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		h.through = append(h.through, path.Base(r.URL.Path))
		h.mu.Unlock()
		api.ServeHTTP(w, r)
	})))
	s.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0) // handshake failures are expected
	go func() { _ = s.Serve(l) }()                         // returns at the end of the test
	t.Cleanup(func() { _ = s.Close() })
	return addr
}

// ways lists the protocols in which a call can be made.
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

// changesNothing reports whether the schema marks a call as having no side effects.
func changesNothing(m protoreflect.MethodDescriptor) bool {
	o, ok := m.Options().(*descriptorpb.MethodOptions)
	return ok && o.GetIdempotencyLevel() == descriptorpb.MethodOptions_NO_SIDE_EFFECTS
}

// answered returns the answer to a call, in the table's terms.
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

// TestRightsOfCallers makes each call of the schema with each kind of caller and in each protocol. The answers must
// match docs/design/security.md. Rejected calls must not reach the job. Calls that change the job must be logged with
// the caller's name, whether rejected or not.
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
		t.Errorf("%s has a row for %q, but the test has no such caller", rightsPage, name)
	}
}

// calls makes each call as one caller.
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
				c.Errorf("%s calls %s by %s: got %s (%v), want %s", one.name, name, way, got, err,
					row[name])
			}
			var want []string
			if row[name] == allowed {
				want = []string{name}
			}
			if !slices.Equal(through, want) {
				c.Errorf("%s calls %s by %s: the job received %v", one.name, name, way, through)
			}
			c.noted(one, m, err, lines)
		}
	}
}

// call makes a call without optional fields.
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

// noted checks the log of a call.
func (c *crossing) noted(one *caller, m protoreflect.MethodDescriptor, err error, lines []string) {
	if changesNothing(m) || one.who == "" {
		if lines != nil {
			c.Errorf("%s calls %s: unexpected log %q", one.name, m.Name(), lines)
		}
		return
	}
	begins := `level=INFO msg="control API call"`
	if err != nil {
		begins = `level=WARN msg="rejected a control API call"`
	}
	who := one.who
	if strings.Contains(who, " ") {
		who = strconv.Quote(who)
	}
	want := fmt.Sprintf("%s call=%s who=%s from=127.0.0.1:", begins, m.Name(), who)
	if len(lines) != 1 || !strings.Contains(lines[0], want) {
		c.Errorf("%s calls %s: got the log %q, want one line with %s", one.name, m.Name(), lines, want)
	}
}

package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// fakeJob is a Backend whose answers a test sets.
type fakeJob struct {
	status Status
	view   protocol.View
	err    error
	faults []string
	stops  int
	change Scale
	drain  Drain
	ends   DrainResult
}

func (f *fakeJob) Status(context.Context) (Status, error)      { return f.status, f.err }
func (f *fakeJob) View(context.Context) (protocol.View, error) { return f.view, f.err }

func (f *fakeJob) Fault(_ context.Context, spec string) (string, error) {
	f.faults = append(f.faults, spec)
	return "accepted " + spec, f.err
}

func (f *fakeJob) Scale(_ context.Context, s Scale) (string, error) {
	f.change = s
	return "accepted", f.err
}

func (f *fakeJob) Drain(_ context.Context, d Drain) (DrainResult, error) {
	f.drain = d
	return f.ends, f.err
}

func (f *fakeJob) Stop(context.Context) error {
	f.stops++
	return f.err
}

// serve starts the job's control API and returns its base URL.
func serve(t *testing.T, job Backend) string {
	t.Helper()
	s := httptest.NewServer(NewHandler(job))
	t.Cleanup(s.Close)
	return s.URL
}

// fill sets every field below v to a nonzero value that differs from its neighbours.
func fill(t *testing.T, v reflect.Value, next *int) {
	t.Helper()
	*next++
	if c, ok := v.Addr().Interface().(*perdure.Consistency); ok { // a string in messages
		*c = perdure.Consistency{Kind: perdure.SSP, Staleness: perdure.Clock(*next)}
		return
	}
	if r, ok := v.Addr().Interface().(*perdure.Recovery); ok { // also a string in messages
		*r = perdure.Recovery{Kind: perdure.RecoverChain, Replicas: 2 + *next, Every: perdure.Clock(*next)}
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i), next)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(t, v.Index(i), next)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem(), next)
	case reflect.String:
		v.SetString(fmt.Sprintf("s%d", *next))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(int64(*next))
	case reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(*next))
	case reflect.Float64:
		v.SetFloat(float64(*next) + 0.5)
	default:
		t.Fatalf("fill cannot set a %s yet", v.Type())
	}
}

func TestEveryFieldArrives(t *testing.T) {
	var job fakeJob
	next := 0
	fill(t, reflect.ValueOf(&job.status).Elem(), &next)
	fill(t, reflect.ValueOf(&job.view).Elem(), &next)
	fill(t, reflect.ValueOf(&job.ends).Elem(), &next)
	c := NewClient(serve(t, &job), "", nil)
	status, err := c.Status(t.Context())
	if err != nil || !reflect.DeepEqual(status, job.status) {
		t.Errorf("status: got %+v, %v\nwant %+v", status, err, job.status)
	}
	view, err := c.View(t.Context())
	if err != nil || !reflect.DeepEqual(view, job.view) {
		t.Errorf("view: got %+v, %v\nwant %+v", view, err, job.view)
	}
	ends, err := c.Drain(t.Context(), Drain{Target: "a", Notice: 25 * time.Second})
	if err != nil || !reflect.DeepEqual(ends, job.ends) {
		t.Errorf("drain: got %+v, %v\nwant %+v", ends, err, job.ends)
	}
	if job.drain != (Drain{Target: "a", Notice: 25 * time.Second}) {
		t.Errorf("the job received %+v", job.drain)
	}
}

// TestTableAsJSON checks the field names that other programs see. Two settings swapped in both directions would pass
// the round-trip test.
func TestTableAsJSON(t *testing.T) {
	job := fakeJob{view: protocol.View{Tables: []perdure.TableSpec{{
		Name: "w", Rows: 1, Sparse: true, Dim: 2, Evict: 3, NonFinite: perdure.AllowNonFinite,
		Distance: perdure.DistanceTV, Whole: true, Shard: 18, Combine: perdure.CombineWeighted, Transient: true,
		Encoding: perdure.EncodingInt8,
		Rule: perdure.Rule{
			Kind: perdure.RuleAdam, Rate: 4.5, Schedule: perdure.ScheduleStep, Every: 5, Factor: 6.5,
			Momentum: 7.5, Beta1: 8.5, Beta2: 9.5, Epsilon: 10.5, Beta: 11.5, L1: 12.5, L2: 13.5,
			Decay: 14.5, ClipValue: 15.5, ClipNorm: 16.5,
		},
		Init:        perdure.Init{Kind: perdure.InitNormal, Scale: 17.5},
		Consistency: perdure.Consistency{Kind: perdure.BSP},
	}}}}
	for _, v := range []any{job.view.Tables[0], job.view.Tables[0].Rule, job.view.Tables[0].Init} {
		for i := range reflect.TypeOf(v).NumField() {
			if reflect.ValueOf(v).Field(i).IsZero() {
				t.Errorf("%s of %T is not set here", reflect.TypeOf(v).Field(i).Name, v)
			}
		}
	}
	_, got := request(t, "POST", serve(t, &job)+Path+"View", `{}`)
	const want = `{"tables":[{"name":"w","rows":"1","dim":"2",` +
		`"rule":{"kind":"adam","rate":4.5,"schedule":"step","every":"5","factor":6.5,` +
		`"momentum":7.5,"beta1":8.5,"beta2":9.5,"epsilon":10.5,"beta":11.5,"l1":12.5,"l2":13.5,` +
		`"decay":14.5,"clipValue":15.5,"clipNorm":16.5},` +
		`"init":{"kind":"normal","scale":17.5},"consistency":"bsp","sparse":true,` +
		`"evict":"3","nonFinite":"allow","distance":"tv","whole":true,"shard":18,"combine":"weighted",` +
		`"transient":true,"encoding":"int8"}]}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestNothingArrivesAsNothing(t *testing.T) {
	c := NewClient(serve(t, &fakeJob{}), "", nil)
	status, err := c.Status(t.Context())
	if err != nil || !reflect.DeepEqual(status, Status{}) {
		t.Errorf("status: got %+v, %v; want the zero Status, loss and accuracy nil", status, err)
	}
	view, err := c.View(t.Context())
	if err != nil || !reflect.DeepEqual(view, protocol.View{}) {
		t.Errorf("view: got %+v, %v; want the zero View", view, err)
	}
}

func TestFaultScaleAndStopReachTheJob(t *testing.T) {
	var job fakeJob
	// The command line passes an address without a scheme.
	c := NewClient(strings.TrimPrefix(serve(t, &job), "http://"), "", nil)
	accepted, err := c.Fault(t.Context(), "kill:server:0@clock:20")
	if err != nil || accepted != "accepted kill:server:0@clock:20" {
		t.Errorf("Fault: got %q, %v", accepted, err)
	}
	for _, change := range []Scale{{Workers: 3, At: 20}, {Leave: []perdure.Slot{1, 4}, At: 20}} {
		if accepted, err := c.Scale(t.Context(), change); err != nil || accepted != "accepted" ||
			!reflect.DeepEqual(job.change, change) {
			t.Errorf("Scale: got %q, %v; the job saw %+v", accepted, err, job.change)
		}
	}
	if err := c.Stop(t.Context()); err != nil {
		t.Errorf("Stop: %v", err)
	}
	if len(job.faults) != 1 || job.faults[0] != "kill:server:0@clock:20" || job.stops != 1 {
		t.Errorf("the job saw faults %q and %d stops", job.faults, job.stops)
	}
}

func TestErrorsKeepTheirKindAndMessage(t *testing.T) {
	var job fakeJob
	c := NewClient(serve(t, &job), "", nil)
	calls := map[string]func() error{
		"Status": func() error { _, err := c.Status(t.Context()); return err },
		"View":   func() error { _, err := c.View(t.Context()); return err },
		"Fault":  func() error { _, err := c.Fault(t.Context(), "x"); return err },
		"Scale":  func() error { _, err := c.Scale(t.Context(), Scale{Workers: 1}); return err },
		"Drain":  func() error { _, err := c.Drain(t.Context(), Drain{}); return err },
		"Stop":   func() error { return c.Stop(t.Context()) },
	}
	for _, k := range errorCodes {
		job.err = fmt.Errorf("%w: what to do instead", k.err)
		for name, call := range calls {
			err := call()
			if !errors.Is(err, k.err) || err.Error() != job.err.Error() {
				t.Errorf("%s: sent %q, got %v", name, job.err, err)
			}
			for _, other := range errorCodes {
				if other.err != k.err && errors.Is(err, other.err) {
					t.Errorf("%s: sent %q, got an error that also is %q", name, job.err, other.err)
				}
			}
		}
	}
	job.err = errors.New("the disk is full")
	for name, call := range calls {
		err := call()
		if err == nil || !strings.HasSuffix(err.Error(), ": the disk is full") || errors.Is(err, ErrUnreachable) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestNoCoordinatorThere(t *testing.T) {
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for name, addr := range map[string]string{
		"another server": other.URL,
		"closed":         gone.URL,
		"not an address": "::",
	} {
		_, err := NewClient(addr, "", nil).Status(t.Context())
		if !errors.Is(err, ErrUnreachable) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v; want one line that is ErrUnreachable", name, err)
		}
	}
}

func TestCallEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := NewClient(serve(t, &fakeJob{}), "", nil).Stop(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
}

func TestUnknownConsistencyIsAnErrorNotAPanic(t *testing.T) {
	job := fakeJob{view: protocol.View{Tables: []perdure.TableSpec{{
		Name:        "w",
		Consistency: perdure.Consistency{Kind: "newer"},
	}}}}
	_, err := NewClient(serve(t, &job), "", nil).View(t.Context())
	if err == nil || !strings.Contains(err.Error(), `Tables: 0: Consistency: `) {
		t.Errorf("got %v, want an error that names the table's field", err)
	}
}

// TestPlainHTTP pins the API as used by curl, Python and browsers.
func TestPlainHTTP(t *testing.T) {
	loss := 0.25
	job := fakeJob{status: Status{Job: "j1", Clock: 7, State: StateTraining, Loss: &loss}}
	url := serve(t, &job)
	for _, c := range []struct {
		name, method, path, body string
		err                      error
		wantCode                 int
		want                     string
	}{
		{
			name: "post", method: "POST", path: Path + "Status", body: `{}`, wantCode: 200,
			want: `{"job":"j1","clock":"7","state":"training","loss":0.25}`,
		},
		{
			name: "get", method: "GET", path: Path + "Status?encoding=json&message={}", wantCode: 200,
			want: `{"job":"j1","clock":"7","state":"training","loss":0.25}`,
		},
		{
			name: "usage", method: "POST", path: Path + "Fault", body: `{"spec":"maim:server:0"}`, wantCode: 400,
			err:  fmt.Errorf("%w: unknown fault", perdure.ErrUsage),
			want: `{"code":"invalid_argument","message":"perdure: usage: unknown fault"}`,
		},
		{name: "stopping is never a GET", method: "GET", path: Path + "Stop?encoding=json&message={}", wantCode: 405},
		{
			name: "no such call", method: "POST", path: Path + "Start", body: `{}`, wantCode: 404,
			want: "404 page not found",
		},
		{name: "elsewhere", method: "GET", path: "/", wantCode: 404, want: "404 page not found"},
	} {
		job.err = c.err
		code, body := request(t, c.method, url+c.path, c.body)
		if code != c.wantCode || body != c.want {
			t.Errorf("%s: got %d %s\nwant %d %s", c.name, code, body, c.wantCode, c.want)
		}
	}
	if job.stops != 0 {
		t.Errorf("a GET stopped the job")
	}
}

// TestRequestsAreBounded sends a request above the size limit.
func TestRequestsAreBounded(t *testing.T) {
	var job fakeJob
	code, body := request(t, "POST", serve(t, &job)+Path+"Fault", `{"spec":"`+strings.Repeat("x", maxRequestBytes)+`"}`)
	if code != http.StatusTooManyRequests || len(job.faults) != 0 {
		t.Errorf("got %d %s; the job saw %d faults", code, body, len(job.faults))
	}
}

// request returns the status code and body of a plain HTTP request. It compacts JSON, because protobuf adds random
// spaces.
func request(t *testing.T, method, url, body string) (code int, answer string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	w, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Body.Close()
	b, err := io.ReadAll(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	var compact bytes.Buffer
	if json.Compact(&compact, b) == nil {
		b = compact.Bytes()
	}
	return w.StatusCode, strings.TrimSpace(string(b))
}

func ExampleClient() {
	s := httptest.NewServer(NewHandler(&fakeJob{status: Status{State: StateTraining, Clock: 12}}))
	defer s.Close()

	job := NewClient(s.URL, "", nil)
	status, err := job.Status(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(status.State, "at clock", status.Clock)
	// Output: training at clock 12
}

// TestRefusedInput checks that invalid input is answered with invalid_argument in one line, and never reaches the job.
func TestRefusedInput(t *testing.T) {
	job := &untouched{T: t}
	url := serve(t, job)
	long := strings.Repeat("9", 5000)
	for _, c := range []struct{ call, body, want string }{
		{"Scale", `{}`, "the number of workers"},
		{"Scale", `{"workers":0}`, "the number of workers"},
		{"Scale", `{"workers":0,"leave":[]}`, "the number of workers"},
		{"Scale", `{"workers":-1}`, "workers -1"},
		{"Scale", `{"workers":2147483647}`, "workers 2147483647"},
		{"Scale", `{"workers":2147483648}`, "workers"},
		{"Scale", `{"workers":1e99}`, "workers"},
		{"Scale", `{"workers":1.5}`, "workers"},
		{"Scale", `{"workers":"NaN"}`, "workers"},
		{"Scale", `{"workers":2,"leave":[1]}`, "not both"},
		{"Scale", `{"workers":2,"at":-1}`, "clock -1"},
		{"Scale", `{"workers":2,"at":"9223372036854775807"}`, "clock 9223372036854775807"},
		{"Scale", `{"workers":2,"at":9223372036854775808}`, "at"},
		{"Scale", `{"leave":[-1]}`, "no slot -1"},
		{"Scale", `{"leave":[1,0,1]}`, "slot 1 is listed twice"},
		{"Scale", `{"leave":[2147483647]}`, "no slot 2147483647"},
		{"Scale", `{"workers":2,"att":5}`, "att"},
		{"Drain", `{"who":"server:0","notice_ms":-1}`, "-1 ms"},
		{"Drain", `{"who":"server:0","noticeMs":86400001}`, "86400001 ms"},
		{"Drain", `{"who":"server:0","notice_ms":"9223372036854775807"}`, "9223372036854775807 ms"},
		{"Drain", `{"who":"server:0","notice":1}`, "notice"},
		{"Drain", `{"who":5}`, "who"},
		{"Stop", `{"now":true}`, "now"},
		{"Fault", `{"spec":1}`, "spec"},
		{"Status", `[]`, ""},
		{"View", `{"x":` + long + `}`, "x"},
		{"Scale", ``, ""},
	} {
		resp, err := http.Post(url+Path+c.call, "application/json", strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		var said struct{ Code, Message string }
		err = json.NewDecoder(resp.Body).Decode(&said)
		resp.Body.Close()
		if err != nil || said.Code != "invalid_argument" || !strings.Contains(said.Message, c.want) ||
			strings.Contains(said.Message, "\n") || len(said.Message) > 300 {
			t.Errorf("%s %.60s: %+v, %v; want invalid_argument with %q", c.call, c.body, said, err, c.want)
		}
	}
}

// untouched is a job that no call may reach.
type untouched struct {
	fakeJob
	*testing.T
}

func (u *untouched) Scale(_ context.Context, s Scale) (string, error) {
	u.Errorf("a Scale call reached the job: %+v", s)
	return "", nil
}

func (u *untouched) Drain(_ context.Context, d Drain) (DrainResult, error) {
	u.Errorf("a Drain call reached the job: %+v", d)
	return DrainResult{}, nil
}

func (u *untouched) Stop(context.Context) error {
	u.Error("a Stop call reached the job")
	return nil
}

// TestShortNotice checks that a notice of less than a millisecond is not rounded to none.
func TestShortNotice(t *testing.T) {
	var job fakeJob
	c := NewClient(serve(t, &job), "", nil)
	if _, err := c.Drain(t.Context(), Drain{Target: "server:0", Notice: time.Microsecond}); err != nil ||
		job.drain.Notice != time.Millisecond {
		t.Errorf("got a notice of %v, error %v", job.drain.Notice, err)
	}
	if _, err := c.Drain(t.Context(), Drain{Target: "server:0", Notice: -time.Microsecond}); !errors.Is(err,
		perdure.ErrUsage) {
		t.Errorf("unexpected error for a negative notice: %v", err)
	}
}

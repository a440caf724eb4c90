package dashboard

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// fakeJob is a job that records actions.
type fakeJob struct {
	refuses string

	mu     sync.Mutex
	states int // calls of State
	acts   []Action
	err    error // result of Act
}

func (j *fakeJob) State() State {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.states++
	return State{Clock: perdure.Clock(j.states)}
}

func (j *fakeJob) Refuses() string { return j.refuses }

func (j *fakeJob) Act(_ context.Context, a Action) (string, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.acts = append(j.acts, a)
	return "done: " + string(a.Kind), j.err
}

// place is a run's directory with its settings.
type place struct {
	*rundir.Dir
	run settings.Run
}

func newPlace(t *testing.T) *place {
	t.Helper()
	dir, err := rundir.Create(filepath.Join(t.TempDir(), "run"))
	must(t, err)
	t.Cleanup(func() { _ = dir.Close() })
	p := &place{Dir: dir}
	p.run.Job = perdure.JobSpec{
		ID: "8048fe67", Workload: "softmax", Slots: 2, Servers: 1, Shards: 2, Clocks: 10,
		Recovery: perdure.Recovery{Kind: perdure.RecoverNone}, Consistency: perdure.Consistency{Kind: perdure.BSP},
	}
	p.run.Faults = []string{"freeze:worker:1@clock:5+1000ms"}
	must(t, dir.WriteRun(p.run))
	return p
}

// event appends an event.
func (p *place) event(t *testing.T, text string) {
	t.Helper()
	must(t, p.Event(rundir.Event{Kind: "serving", Target: "server:0", Text: text}))
}

// serve opens a dashboard of the run.
func (p *place) serve(t *testing.T, job Job) *Dashboard {
	t.Helper()
	l, err := Listen("127.0.0.1:0", nil)
	must(t, err)
	d, err := Open(l, Config{Dir: p.Path(), Run: &p.run, Job: job})
	must(t, err)
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// cookie returns a cookie of a role.
func cookie(d *Dashboard, role keys.Role) string {
	return d.sessions.cookieName() + "=" + d.sessions.sign(role, time.Now().Add(time.Hour))
}

// request makes a request with headers "Name: value".
func request(t *testing.T, d *Dashboard, method, path, body string, headers ...string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, d.Address()+path, strings.NewReader(body))
	must(t, err)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Host" {
			r.Host = value
		}
		r.Header.Set(name, value)
	}
	a, err := http.DefaultClient.Do(r)
	must(t, err)
	t.Cleanup(func() { _ = a.Body.Close() })
	return a
}

// message is a message of a stream.
type message struct{ kind, id, data string }

// reader reads the messages of a stream.
type reader struct {
	t     *testing.T
	lines *bufio.Reader
	close func()
	last  string // ID of the last message
}

// follow opens a stream after a message.
func follow(t *testing.T, d *Dashboard, last string) *reader {
	t.Helper()
	headers := []string{"Cookie: " + cookie(d, keys.Operator)}
	if last != "" {
		headers = append(headers, "Last-Event-ID: "+last)
	}
	a := request(t, d, "GET", "/stream", "", headers...)
	if a.StatusCode != http.StatusOK {
		t.Fatalf("stream: %s", a.Status)
	}
	return &reader{t: t, lines: bufio.NewReader(a.Body), close: func() { _ = a.Body.Close() }, last: last}
}

// next returns the next message, or io.EOF after the last one.
func (r *reader) next() (m message, err error) {
	var data []string
	for {
		line, err := r.lines.ReadString('\n')
		if err != nil {
			return m, io.EOF
		}
		field, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		switch {
		case line == "\n" && m.kind != "":
			m.data, r.last = strings.Join(data, "\n"), m.id
			return m, nil
		case field == "event":
			m.kind = value
		case field == "id":
			m.id = value
		case field == "data":
			data = append(data, value)
		}
	}
}

// await returns the first message of a kind.
func (r *reader) await(kind string) message {
	r.t.Helper()
	for {
		m, err := r.next()
		if err != nil {
			r.t.Fatalf("the stream ended before a message %s", kind)
		}
		if m.kind == kind {
			return m
		}
	}
}

// texts reads events until there are n, and returns their texts.
func (r *reader) texts(n int) (all []string) {
	r.t.Helper()
	for len(all) < n {
		for line := range strings.Lines(r.await("events").data) {
			var e rundir.Event
			must(r.t, json.Unmarshal([]byte(line), &e))
			all = append(all, e.Text)
		}
	}
	return all
}

// numbered returns the texts from first to last.
func numbered(first, last int) (all []string) {
	for i := first; i <= last; i++ {
		all = append(all, fmt.Sprint(i))
	}
	return all
}

func same(t *testing.T, got, want []string) {
	t.Helper()
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Fatalf("events %q, want %q", got, want)
	}
}

// TestStream: a client receives the history, then each new event and the newest state. After a reconnect it continues
// where it was, also with another process that serves the same directory.
func TestStream(t *testing.T) {
	p := newPlace(t)
	p.event(t, "1")
	p.event(t, "2")
	must(t, p.Clocks(rundir.ClocksPoint{Seconds: 1, Clock: 3, Slots: []perdure.Clock{3, 4}}))
	d := p.serve(t, &fakeJob{})
	r := follow(t, d, "")
	var job Description
	must(t, json.Unmarshal([]byte(r.await("reset").data), &job))
	if !slices.Equal(job.Faults, []string{"freeze:worker:1@clock:5+1s"}) { // as in the text of its event
		t.Errorf("planned faults %q", job.Faults)
	}
	if job.ID != "8048fe67" || job.Promise == "" || job.Role != keys.Operator || job.Refuses != "" {
		t.Errorf("description %+v", job)
	}
	same(t, r.texts(2), numbered(1, 2))
	if got := r.await("clocks").data; got != "seconds,clock,ahead\n1.000,3,0 1" {
		t.Errorf("clocks %q", got)
	}
	r.await("now")
	p.event(t, "3")
	d.Wake()
	same(t, r.texts(1), numbered(3, 3))
	r.close()
	p.event(t, "4")
	for i, next := range []*Dashboard{d, p.serve(t, &fakeJob{})} {
		again := follow(t, next, r.last)
		again.await("job")
		same(t, again.texts(1+i), numbered(4, 4+i))
		p.event(t, fmt.Sprint(5+i))
	}
	for _, unknown := range []string{"x", "8048fe67-1/0/0/0", d.identity + "/999999/0/0", d.identity + "/-1/0/0"} {
		other := follow(t, d, unknown)
		other.await("reset")
		same(t, other.texts(6), numbered(1, 6))
	}
}

// TestCaptions: the page of an ended run has the captions that it had while it ran.
func TestCaptions(t *testing.T) {
	p := newPlace(t)
	captions := []Caption{{Clock: 0, Text: "first"}, {Clock: 7, Text: "second"}}
	l, err := Listen("127.0.0.1:0", nil)
	must(t, err)
	d, err := Open(l, Config{Dir: p.Path(), Run: &p.run, Job: &fakeJob{}, Captions: captions})
	must(t, err)
	must(t, d.Close())
	d = p.serve(t, nil)
	if !slices.Equal(d.job.Captions, captions) {
		t.Errorf("captions %v, want %v", d.job.Captions, captions)
	}
	must(t, os.WriteFile(filepath.Join(p.Path(), CaptionsFile), []byte("x"), 0o666))
	l, err = Listen("127.0.0.1:0", nil)
	must(t, err)
	_, err = Open(l, Config{Dir: p.Path(), Run: &p.run})
	if err == nil || !strings.Contains(err.Error(), CaptionsFile) {
		t.Errorf("a damaged file: %v", err)
	}
}

// TestSuccessor: the cookie of a browser stays valid when another process serves the run, and its link is a new one.
func TestSuccessor(t *testing.T) {
	p := newPlace(t)
	first := p.serve(t, &fakeJob{})
	has := cookie(first, keys.Operator)
	must(t, first.Close())
	second := p.serve(t, &fakeJob{})
	if a := request(t, second, "GET", "/session", "", "Cookie: "+has); a.StatusCode != http.StatusNoContent {
		t.Errorf("the successor answers %s", a.Status)
	}
	if first.sessions.unused() == second.sessions.unused() {
		t.Error("both have the same link")
	}
	ended := p.serve(t, nil) // does not read the key of the run
	if a := request(t, ended, "GET", "/session", "", "Cookie: "+has); a.StatusCode != http.StatusUnauthorized {
		t.Errorf("the view of the ended run answers %s", a.Status)
	}
}

// TestSlowClient: a client that does not read is disconnected, and receives the rest when it reconnects.
func TestSlowClient(t *testing.T) {
	p := newPlace(t)
	d := p.serve(t, &fakeJob{})
	d.patience = 50 * time.Millisecond
	slow := follow(t, d, "")
	slow.await("reset")
	const many = 2000
	text := strings.Repeat("x", 5000) // more than sockets buffer
	for i := range many {
		p.event(t, fmt.Sprintf("%d %s", i, text))
	}
	d.Wake()
	for d.hub.count() > 0 { // until it is disconnected
		<-time.After(time.Millisecond)
	}
	got := 0
	count := func(m message) {
		for line := range strings.Lines(m.data) {
			var e rundir.Event
			must(t, json.Unmarshal([]byte(line), &e))
			if at, _, _ := strings.Cut(e.Text, " "); at != fmt.Sprint(got) {
				t.Fatalf("event %s follows event %d", at, got-1)
			}
			got++
		}
	}
	for {
		m, err := slow.next()
		if err != nil {
			break
		}
		if m.kind == "events" {
			count(m)
		}
	}
	if got == many {
		t.Fatal("the client was not disconnected")
	}
	d.patience = time.Minute
	for again := follow(t, d, slow.last); got < many; {
		count(again.await("events"))
	}
}

// TestClients: the number of clients is limited, and the state is not computed without one.
func TestClients(t *testing.T) {
	job := &fakeJob{}
	d := newPlace(t).serve(t, job)
	d.hub.round()
	if job.states != 0 {
		t.Errorf("%d states without a client", job.states)
	}
	var all []*reader
	for range maxClients {
		c := follow(t, d, "")
		c.await("reset")
		all = append(all, c)
	}
	a := request(t, d, "GET", "/stream", "", "Cookie: "+cookie(d, keys.Operator))
	if a.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("one client too many: %s", a.Status)
	}
	for range maxConnections - maxClients - 2 { // pages that load; each request has its own connection
		a := request(t, d, "GET", "/", "", "Connection: close")
		if a.StatusCode != http.StatusOK {
			t.Errorf("the page, while the others watch: %s", a.Status)
		}
	}
	for d.hub.round(); len(all) > 0; all = all[1:] {
		all[0].await("now")
	}
}

// TestFlood: connections that send no request may disconnect clients, but admit the next request, and leave no
// goroutine.
func TestFlood(t *testing.T) {
	d := newPlace(t).serve(t, &fakeJob{})
	before := runtime.NumGoroutine()
	c := follow(t, d, "")
	c.await("reset")
	var flood []net.Conn
	for range 1000 {
		f, err := net.Dial("tcp", d.listener.Addr().String())
		must(t, err)
		_, _ = f.Write([]byte("GET /stream HTTP/1.1\r\nX-Slow: ")) // the server may have closed it
		flood = append(flood, f)
	}
	again := follow(t, d, c.last)
	again.await("job")
	if n := runtime.NumGoroutine() - before; n > 4*maxConnections {
		t.Errorf("%d goroutines more", n)
	}
	for _, f := range flood {
		_ = f.Close()
	}
	c.close()
	again.close()
	http.DefaultClient.CloseIdleConnections()
	limit := time.After(20 * time.Second)
	for tick := time.Tick(10 * time.Millisecond); d.hub.count() > 0 || runtime.NumGoroutine() > before+4; {
		select {
		case <-tick:
		case <-limit:
			t.Fatalf("%d clients and %d goroutines are left; there were %d", d.hub.count(), runtime.NumGoroutine(),
				before)
		}
	}
}

// TestDamagedRecord: an edited or damaged directory is served as far as it can be read, up to a last message.
func TestDamagedRecord(t *testing.T) {
	p := newPlace(t)
	p.event(t, "first")
	p.event(t, strings.Repeat("x", 3*maxMessage)) // exceeds a message
	f, err := os.OpenFile(filepath.Join(p.Path(), string(rundir.EventsRecord)), os.O_APPEND|os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteString("a\revent: job\rdata: {}\r\rb\n")
	must(t, err)
	must(t, f.Close())
	p.event(t, "last")
	must(t, os.WriteFile(filepath.Join(p.Path(), "summary.json"), []byte("{"), 0o666))
	r := follow(t, p.serve(t, nil), "")
	var events string
	for {
		m, err := r.next()
		must(t, err)
		if strings.Contains(m.data, "\r") {
			t.Errorf("%s has a carriage return", m.kind)
		}
		if m.kind == "events" {
			events += m.data
		}
		if m.kind != "end" {
			continue
		}
		var e Ending
		must(t, json.Unmarshal([]byte(m.data), &e))
		if e.State != "ended" || !strings.Contains(e.Text, "summary.json") || e.Summary != nil {
			t.Errorf("end: %+v", e)
		}
		break
	}
	if !strings.Contains(events, `"first"`) || !strings.Contains(events, `"last"`) || strings.Contains(events, "xxx") {
		t.Errorf("events: %.200q", events)
	}
}

// TestUnreadableRecord: the client receives the reason why its stream ends.
func TestUnreadableRecord(t *testing.T) {
	p := newPlace(t)
	d := p.serve(t, nil)
	path := filepath.Join(p.Path(), string(rundir.EventsRecord))
	must(t, os.Remove(path))
	must(t, os.Mkdir(path, 0o777)) // root can read any file, but no directory as a file
	r := follow(t, d, "")
	if m := r.await("problem"); !strings.Contains(m.data, string(rundir.EventsRecord)) {
		t.Errorf("problem: %q", m.data)
	}
	if m, err := r.next(); err == nil {
		t.Errorf("then %v", m)
	}
}

// TestPageModel runs the page's model in Node.js with records that were edited, and with those of a large job.
func TestPageModel(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("Node.js is not installed")
	}
	dir := t.TempDir()
	page, err := fs.Sub(pageFiles, "page")
	must(t, err)
	must(t, os.CopyFS(dir, page))
	must(t, os.WriteFile(filepath.Join(dir, "package.json"), []byte(`{"type": "module"}`), 0o666))
	must(t, os.WriteFile(filepath.Join(dir, "test.js"), []byte(pageModelTest), 0o666))
	if out, err := exec.CommandContext(t.Context(), node, filepath.Join(dir, "test.js")).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

const pageModelTest = `
import { Model, KINDS, MAX, SILENT, mean } from "./model.js";
import { leadOf, shownState } from "./lanes.js";
import { pieces, timeTicks } from "./charts.js";
import assert from "node:assert";
const m = new Model();
m.reset({ servers: 1, workers: 2 });
for (const bad of ["null", "5", "{}", '{"kind":"joining"}', '{"kind":"serving","target":"server:0","seconds":1}',
  '{"kind":"serving","target":"server:0","text":"x","seconds":"soon"}', '{"kind":', "\u0000"]) m.addEvents(bad);
assert.equal(m.events.length, 0);
m.addEvents('{"kind":"constructor","target":"","text":"x","seconds":1,"clock":1}\n' +
  '{"kind":"fault","target":"","text":"fault: constructor:server:0@clock:1","seconds":1,"clock":1}');
assert.equal(m.events.length, 2);
assert.equal(KINDS[m.events[0].kind], undefined);
assert.equal(m.stateOf("server:0", 2), "serving");
m.addSeries("seconds,clock,__proto__\n1,1,2\n1,1");
m.addClocks("seconds,clock,ahead\nx,y,z\n1,1,0 x - 2\n2");
assert.deepEqual(m.clocks, [{ seconds: 1, clock: 1, ahead: [0, null, null, 2] }]);
m.numbers();
m.reset({ servers: 16, workers: 4096 }); // the largest job
const row = Array(4096).fill(3).join(" ");
for (let i = 0; i < 400; i++) m.addClocks(i + "," + i + "," + row);
assert.equal(leadOf(m), 3);
assert.equal([...m.ordered().keys()][16], "server:15");
assert.equal(m.ordered().size, 1 + 16 + 4096);
assert.ok(performance.now() < 20000);
m.reset({ servers: 2, workers: 2 });
const event = (seconds, kind, target, text) =>
  m.addEvents(JSON.stringify({ seconds, kind, target, text, clock: 1, details: {} }));
const process = (target, state, pid) => ({ target, state, pid });
const now = (serving, ...more) => {
  const all = ["server:0", "server:1", "worker:0", "worker:1"].map((target, i) => process(target, "alive", 1 + i));
  for (const p of more) all[all.findIndex((q) => q.target === p.target)] = p;
  m.setNow({ seconds: 30, clock: 5, serving, processes: all, summary: { failures } });
  return m.condition()[1];
};
let failures = [];
assert.equal(m.condition()[1], "starting");
assert.equal(now(true), "training");
event(10, "fault", "server:0", "fault: kill:server:0@clock:5");
event(10.01, "detected", "server:0", "server:0 is dead");
failures = [{ kind: "kill", target: "server:0", at_seconds: 10, detected_after_ms: 7.1, serving_again_after_ms: null }];
assert.equal(now(false), "recovering server:0 after a kill on request");
assert.equal(m.note(m.events[1]), "The process has ended because of a kill on request; a replacement starts. " +
  "Detected after 7.1 ms.");
failures = [{ kind: "kill", target: "server:0", at_seconds: 10, detected_after_ms: 7.1, serving_again_after_ms: 1500 }];
event(11.5, "serving", "server:0", "server:0 serves again");
assert.equal(now(true), "training");
assert.match(m.note(m.events[2]), /Detected after 7.1 ms, works again after 1.5 s.$/);
assert.equal(m.timesOf("server:0", 20), "");
event(12, "detected", "worker:1", "worker:1 is dead"); // on a host: the summary does not list it
event(12.5, "serving", "worker:1", "worker:1 resumes");
assert.match(m.note(m.events[4]), /Works again 500 ms after its death was detected.$/);
event(13, "fault", "worker:0", "fault: freeze:worker:0@clock:5");
assert.equal(now(true), "frozen: worker:0");
event(14, "resumed", "worker:0", "worker:0 may continue");
assert.equal(now(true, process("worker:1", "waiting", 0)), "waiting for worker:1");
event(14.5, "fault", "coordinator", "fault: freeze:coordinator@14.5s");
assert.equal(now(true), "frozen: coordinator");
event(15, "detected", "coordinator", "coordinator is dead");
assert.equal(now(true), "training without a coordinator");
for (let i = 0; i < 100000; i++) {
  const at = 20 + i;
  event(at, "checkpoint", "", "checkpoint of clock " + i + " is durable");
  if (i % 10 === 0) event(at, "detected", "server:1", "server:1 is dead");
  if (i % 10 === 1) event(at, "serving", "server:1", "server:1 serves again");
  m.addSeries("seconds,clock,train_loss\n" + at + ",1,0.5");
  m.addClocks(at + ",1,0 1");
}
assert.ok(m.events.length <= MAX.events && m.lanes.get("server:1").length <= MAX.segments);
assert.ok(m.series.train_loss.length <= MAX.points && m.clocks.length <= MAX.points);
assert.ok(m.lanes.get("server:1").filter((s) => s.state === "dead").length > 500);
assert.equal(m.stateOf("server:1", 20 + 99995), "serving");
assert.equal(m.events[0].seconds, 10);
assert.equal(m.numbers(20 + 99999).durable, 99999);
for (let duration = 0.1; duration < 1e8; duration *= 1.1) {
  const ticks = timeTicks(duration, 5), labels = ticks.map(([, label]) => label);
  assert.ok(ticks.length <= 6 && new Set(labels).size === ticks.length, duration + ": " + labels);
}
assert.deepEqual(timeTicks(0.5, 9).map(([, label]) => label), ["0 s", "0.1 s", "0.2 s", "0.3 s", "0.4 s", "0.5 s"]);
assert.deepEqual(timeTicks(5000, 5).map(([, label]) => label), ["0 s", "20 min", "40 min", "1 h", "1 h 20 min"]);
const rates = mean([0, 12000, 0, 12000].map((value, i) => ({ seconds: i, value })), 4);
assert.equal(rates[3].value, 8000);
const late = [0.5, 1, 1.5, 2, 2.5, 6, 6.5, 7, 7.5, 8, 8.5, 9, 9.5, 10, 10.5, 11, 11.5, 12].map((seconds) =>
  ({ seconds, value: { 6: 100, 6.5: 47300 }[seconds] ?? 6000 })); // samples of a gap are reported after it
for (const p of mean(late, 4).slice(6)) assert.ok(p.value > 5900 && p.value < 6100, p.seconds + ": " + p.value);
const outage = new Model();
const rows = (first, last, step, of) =>
  Array.from({ length: (last - first) / step + 1 }, (_, i) => of(first + i * step));
const lines = (...all) => outage.addSeries("seconds,clock,train_loss,test_loss,backlog\n" + all.flat().join("\n"));
const point = (at) => at + ",1,0.5,,";
const shape = (column) => pieces(outage.series[column], outage.gaps.series.list, column === "test_loss").map((p) =>
  [p[0].seconds, p.at(-1).seconds]);
lines(rows(0.5, 10, 0.5, point), "12,1,,0.4,0"); // an evaluation, while the coordinator is dead
lines(point(20));
for (const line of rows(20.5, 30, 0.5, point)) lines(line);
lines("5,1,,0.6,0", "10,1,,0.5,0"); // evaluations may be late
assert.deepEqual(shape("train_loss"), [[0.5, 10], [20, 30]]);
outage.series.test_loss = rows(0, 60, 20, (seconds) => ({ seconds, value: 1 })); // none was due in that time
assert.deepEqual(shape("test_loss"), [[0, 60]]);
outage.addClocks("seconds,clock,ahead\n1,1,0\n1.5,1,0\n9,2,0\n9.5,2,0");
assert.deepEqual(outage.gaps.clocks.list, [{ from: 1.5, until: 9 }]);
outage.reset({});
lines(rows(5, 2000, 5, point), point(2100), rows(2105, 2200, 5, point)); // every tenth row of a long history
for (const line of rows(2200.5, 2220, 0.5, point)) lines(line);
lines(point(2225), point(2225.5));
assert.deepEqual(shape("train_loss"), [[5, 2000], [2100, 2220], [2225, 2225.5]]);
const planned = new Model();
planned.reset({ servers: 2, workers: 3 });
const says = (seconds, kind, target, text, details = {}) =>
  planned.addEvents(JSON.stringify({ seconds, kind, target, text, clock: 1, details }));
const shown = (target, at) => shownState(planned, target, at);
says(2, "scaled", "worker:2", "worker:2 leaves; clock 45 is its last");
says(2.5, "left", "worker:2", "worker:2 has left at clock 46");
says(3, "left", "server:1", "server:1 exited, and is not replaced");
says(3, "detected", "worker:1", "worker:1 has ended", { vacated: true });
says(4, "serving", "worker:1", "worker:1 resumes at clock 50");
planned.addClocks("seconds,clock,ahead\n1,1,0 0 0\n5,50,0 0 -");
assert.deepEqual(shown("worker:2", 5), ["left", "left the job"]);
assert.deepEqual(shown("server:1", 5), ["left", "not replaced"]);
assert.deepEqual(shown("worker:1", 3.5), ["left", "left"]);
assert.deepEqual(shown("worker:0", undefined), ["serving", "works"]);
says(6, "scaled", "worker:2", "worker:2 joins; it takes part from clock 94 on");
assert.deepEqual(shown("worker:2", undefined), ["waiting", "not started"]);
says(9, "complete", "", "every slot has finished clock 100");
planned.addClocks("seconds,clock,ahead\n7,70,0 0 0\n8,80,0 0 0");
assert.deepEqual(planned.lanes.get("worker:2").map((s) => [s.from, s.state]),
  [[0, "serving"], [2.5, "left"], [6, "waiting"], [7, "serving"]]);
says(8.5, "left", "worker:2", "worker:2 has left at clock 84");
planned.setEnd({ state: "done" });
assert.deepEqual(shown("worker:0", undefined), ["ended", "ended"]);
assert.deepEqual(shown("worker:2", undefined), ["left", "left the job"]);
assert.deepEqual(shown("worker:2", 7.5), ["serving", "works"]);
says(3.2, "fault", "server:0", "fault: kill:server:0@3.2s");
says(3.3, "serving", "server:0", "server:0 serves again");
says(8.6, "fault", "coordinator", "fault: freeze:coordinator@8.6s");
says(8.7, "suspected", "coordinator", "coordinator has been silent for too long; it is killed and replaced");
says(8.8, "serving", "coordinator", "coordinator serves again");
says(9, "end", "", "the job ends at clock 100");
planned.setEnd({ state: "done", summary: { failures: [
  { kind: "kill", target: "server:0", at_seconds: 3.2, detected_after_ms: 5, serving_again_after_ms: 400 },
  { kind: "death", target: "worker:2", at_seconds: 2.5, detected_after_ms: 3000, serving_again_after_ms: 3000 },
  { kind: "freeze", target: "worker:0", at_seconds: 4, detected_after_ms: null, serving_again_after_ms: null }] } });
const states = [[1, "training"], [3.25, "recovering server:0 after a kill on request"], [3.5, "recovering server:0"],
  [3.7, "training"],
  [6.5, "waiting for worker:2"], [7.5, "training"], [8.65, "frozen: coordinator"],
  [8.75, "training without a coordinator"], [8.9, "training"], [9, "done"], [undefined, "done"]];
for (const [at, text] of states) assert.equal(planned.condition(at)[1], text, "at " + at);
const causes = new Model();
causes.reset({ servers: 1, workers: 2, faults: ["freeze:worker:1@clock:5+1s", "kill:worker:1@clock:9"] });
const note = (seconds, kind, target, text) => {
  causes.addEvents(JSON.stringify({ seconds, kind, target, text, clock: 1, details: {} }));
  return causes.note(causes.events.at(-1));
};
const during = (at) => causes.conditionAt(at)[1];
assert.match(note(1, "fault", "worker:0", "fault: freeze:worker:0@1s"), /^On request: SIGSTOP stops the process/);
assert.match(note(1.4, "suspected", "worker:0", "x"), /^Because of a freeze on request/);
assert.match(note(1.5, "detected", "worker:0", "x"), /^The process was killed because of a freeze on request;/);
note(2, "serving", "worker:0", "worker:0 resumes at clock 1");
assert.equal(note(3, "detected", "worker:0", "x"), KINDS.detected[1]); // a death of its own
note(3.5, "serving", "worker:0", "worker:0 resumes at clock 2");
assert.match(note(4, "fault", "worker:1", "fault: freeze:worker:1@clock:5+1s"), /^As planned: SIGSTOP/);
assert.equal(note(6, "suspected", "worker:1", "x"), KINDS.suspected[1]); // the freeze has ended
note(7, "serving", "worker:1", "worker:1 works again");
assert.match(note(8, "fault", "worker:1", "fault: kill:worker:1@clock:9"), /^As planned: SIGKILL/);
assert.match(note(8.1, "detected", "worker:1", "x"), /because of a planned kill;/);
note(8.2, "serving", "worker:1", "worker:1 works again");
note(9, "fault", "server:0", "fault: freeze:server:0@9s"); // the replicas continue before the process is dead
note(9.1, "suspected", "server:0", "x");
note(9.2, "serving", "server:0", "server:0 is no longer needed: the other servers serve all shards");
assert.match(note(9.3, "detected", "server:0", "x"), /because of a freeze on request;/);
note(9.4, "serving", "server:0", "server:0 is no longer needed: the other servers serve all shards");
note(9.8, "joining", "shard:0", "server:0 starts copying shard 0");
note(9.9, "joined", "shard:0", "server:0 has a full copy of shard 0");
causes.addFailures({ failures: [
  { kind: "freeze", target: "server:0", at_seconds: 9, detected_after_ms: 100, serving_again_after_ms: 200 },
  { kind: "death", target: "server:0", at_seconds: 9.21, detected_after_ms: 0.5, serving_again_after_ms: 0.6 }] });
const [, , first, dead, second] = causes.events.slice(-7);
assert.match(causes.note(first), /Detected after 100 ms, works again after 200 ms.$/);
assert.match(causes.note(dead), /Detected after 100 ms.$/);
assert.match(causes.note(second), /Detected after 100 ms, works again after 200 ms.$/);
assert.equal(note(11, "detected", "server:0", "x"), KINDS.detected[1]);
assert.deepEqual([1.2, 1.45, 1.6, 3.2, 8.15, 9.35, 11].map(during), ["frozen: worker:0",
  "recovering worker:0 after a freeze on request", "recovering worker:0 after a freeze on request",
  "recovering worker:0", "recovering worker:1 after a planned kill", "recovering server:0 after a freeze on request",
  "recovering server:0"]);
assert.equal(new Model().machineSeconds(), 0.5); // the coordinator
says(9, "serving", "log", "log serves again"); // not a machine of its own
// coordinator, server:0, worker:0; server:1 until 3; worker:1 without 3 to 4; worker:2 until 2.5, and from 7 to 8.5
assert.equal(planned.machineSeconds(), 3 * 9 + 3 + 8 + 4);
const quiet = new Model();
assert.equal(quiet.silence(1e6), 0); // it has not connected yet
quiet.heard(1000);
quiet.reset({ servers: 1, workers: 1 });
assert.equal(quiet.silence(1000 + SILENT - 1), 0);
assert.equal(quiet.silence(1000 + 3100), 3);
assert.equal(quiet.silence(1000 + 11800), 11);
quiet.heard(13000);
assert.equal(quiet.silence(13100), 0);
quiet.setEnd({ state: "done" });
assert.equal(quiet.silence(1e6), 0);
assert.ok(performance.now() < 60000);
`

// TestEnd: at the end, clients receive the content of summary.json, and a run that another process continues has none.
func TestEnd(t *testing.T) {
	for _, c := range []struct {
		name, kind, want string
		live, summary    bool
	}{
		{"live, done", "complete", "done", true, true},
		{"live, stopped", "stopped", "ended", true, false},
		{"live, continues elsewhere", "detached", "", true, false},
		{"ended, done", "complete", "done", false, true},
		{"ended, killed", "serving", "ended", false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPlace(t)
			var job Job
			if c.live {
				job = &fakeJob{}
			}
			must(t, p.Event(rundir.Event{Kind: c.kind, Text: "last"}))
			if c.summary {
				must(t, p.WriteSummary(rundir.Summary{Clocks: 10, Seed: 1<<64 - 1}))
			}
			d := p.serve(t, job)
			r := follow(t, d, "")
			r.texts(1)
			if c.live {
				go func() { _ = d.Close() }()
			}
			var end Ending
			for {
				m, err := r.next()
				if err != nil {
					break
				}
				if m.kind == "end" {
					must(t, json.Unmarshal([]byte(m.data), &end))
				}
			}
			if end.State != c.want || c.want != "" && end.Text != "last" {
				t.Errorf("ending %+v", end)
			}
			want, err := os.ReadFile(filepath.Join(p.Path(), "summary.json"))
			if c.summary && (err != nil || !bytes.Contains(want, []byte("18446744073709551615")) ||
				!bytes.Equal(compact(t, want), compact(t, end.Summary))) {
				t.Errorf("summary %s, want %s, %v", end.Summary, want, err)
			}
		})
	}
}

func compact(t *testing.T, text []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	must(t, json.Compact(&b, text))
	return b.Bytes()
}

// TestOlderRun: a run of an older program, without clocks.csv, can be opened.
func TestOlderRun(t *testing.T) {
	p := newPlace(t)
	p.event(t, "1")
	must(t, os.Remove(filepath.Join(p.Path(), "clocks.csv")))
	r := follow(t, p.serve(t, nil), "")
	same(t, r.texts(1), numbered(1, 1))
	r.await("end")
}

// TestThin: a long history keeps its header and its evaluations.
func TestThin(t *testing.T) {
	kept, next := thin([]byte("seconds\n1,\n2,0\n3,\n4,\n"), 0, 4, isEvaluation)
	if string(kept) != "seconds\n2,0\n4,\n" || next != 5 {
		t.Errorf("%q, %d", kept, next)
	}
}

// TestActions: the answer to an action says whether the job accepted it.
func TestActions(t *testing.T) {
	for _, c := range []struct {
		name, body string
		err        error
		refuses    string
		want       int
		text       string
	}{
		{"accepted", `{"kind":"kill","target":"server:0"}`, nil, "", 200, `{"accepted":"done: kill"}`},
		{"invalid", `{"kind":"kill","target":"server:9"}`, perdure.ErrUsage, "", 400, "usage"},
		{"impossible", `{"kind":"add"}`, perdure.ErrRefused, "", 409, "refused"},
		{"failed", `{"kind":"add"}`, errors.New("unreachable"), "", 409, "unreachable"},
		{"on hosts", `{"kind":"kill","target":"server:0"}`, nil, "use perdure drain", 403, "use perdure drain"},
		{"unknown field", `{"kind":"kill","who":"server:0"}`, nil, "", 400, "unknown field"},
		{"not JSON", `kill`, nil, "", 400, "invalid request"},
		{"too long", `{"kind":"` + strings.Repeat("x", maxBody) + `"}`, nil, "", 400, "too large"},
	} {
		t.Run(c.name, func(t *testing.T) {
			job := &fakeJob{err: c.err, refuses: c.refuses}
			d := newPlace(t).serve(t, job)
			a := request(t, d, "POST", "/act", c.body, "Cookie: "+cookie(d, keys.Operator), "X-Perdure: 1")
			text, err := io.ReadAll(a.Body)
			must(t, err)
			lines := strings.Count(string(text), "\n")
			if a.StatusCode != c.want || !strings.Contains(string(text), c.text) || lines > 1 {
				t.Errorf("%s: %s", a.Status, text)
			}
			if acted := len(job.acts) > 0; acted != (c.want == 200 || c.err != nil) {
				t.Errorf("acted: %v", job.acts)
			}
		})
	}
	ended := newPlace(t).serve(t, nil)
	a := request(t, ended, "POST", "/act", `{"kind":"add"}`, "Cookie: "+cookie(ended, keys.Operator), "X-Perdure: 1")
	if a.StatusCode != http.StatusForbidden {
		t.Errorf("an ended run answers %s", a.Status)
	}
}

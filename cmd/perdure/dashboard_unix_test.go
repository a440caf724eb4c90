//go:build unix

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/run/dashboard"
	"github.com/perdure/perdure/internal/run/rundir"
)

var dashboardStorms = flag.Int("dashboard.storms", 2, "runs with random faults that the dashboard's test follows")

// browser is a browser that follows a job.
type browser struct {
	*testing.T
	address string
	cookie  *http.Cookie
	body    io.ReadCloser
	lines   *bufio.Reader
	last    string // ID of the last message

	events string // all lines received
	now    dashboard.State
	end    *dashboard.Ending
}

// browse opens a link as printed by a command.
func browse(t *testing.T, link string) *browser {
	t.Helper()
	address, token, _ := strings.Cut(link, "/#")
	b := &browser{T: t, address: address}
	r := b.do("POST", "/session", fmt.Sprintf(`{"token":%q}`, token))
	if r.StatusCode != http.StatusNoContent {
		t.Fatalf("the link is refused: %s", r.Status)
	}
	b.cookie = r.Cookies()[0]
	b.follow()
	return b
}

func (b *browser) do(method, path, body string) *http.Response {
	b.Helper()
	r, err := http.NewRequestWithContext(b.Context(), method, b.address+path, strings.NewReader(body))
	must(b, err)
	r.Header.Set("X-Perdure", "1")
	if b.last != "" {
		r.Header.Set("Last-Event-ID", b.last)
	}
	if b.cookie != nil {
		r.AddCookie(b.cookie)
	}
	a, err := http.DefaultClient.Do(r)
	must(b, err)
	b.Cleanup(func() { _ = a.Body.Close() })
	return a
}

// follow opens the stream, where the last one ended.
func (b *browser) follow() {
	b.Helper()
	a := b.do("GET", "/stream", "")
	if a.StatusCode != http.StatusOK {
		b.Fatalf("the stream is refused: %s", a.Status)
	}
	b.body, b.lines = a.Body, bufio.NewReader(a.Body)
}

// read reads one message. It returns false when the stream has ended.
func (b *browser) read() bool {
	b.Helper()
	kind, id, data := "", "", ""
	for {
		line, err := b.lines.ReadString('\n')
		if err != nil {
			return false
		}
		field, value, _ := strings.Cut(line, ": ")
		switch {
		case line == "\n" && kind != "":
			b.message(kind, data)
			b.last = id
			return true
		case field == "event":
			kind = strings.TrimSpace(value)
		case field == "id":
			id = strings.TrimSpace(value)
		case field == "data":
			data += value
		}
	}
}

func (b *browser) message(kind, data string) {
	b.Helper()
	switch kind {
	case "reset":
		b.events = ""
	case "events":
		b.events += data
	case "now":
		must(b, json.Unmarshal([]byte(data), &b.now))
	case "end":
		must(b, json.Unmarshal([]byte(data), &b.end))
	}
}

// until reads until so is true.
func (b *browser) until(what string, so func() bool) {
	b.Helper()
	for !so() {
		if !b.read() {
			b.Fatalf("the stream ended before %s; events:\n%s", what, b.events)
		}
	}
}

// sees reads until an event matches a pattern.
func (b *browser) sees(pattern string) {
	b.Helper()
	re := regexp.MustCompile(pattern)
	b.until(pattern, func() bool { return re.MatchString(b.events) })
}

// act carries out an action and returns the status code and the answer.
func (b *browser) act(kind, target string) (code int, text string) {
	b.Helper()
	a := b.do("POST", "/act", fmt.Sprintf(`{"kind":%q,"target":%q}`, kind, target))
	answer, err := io.ReadAll(a.Body)
	must(b, err)
	return a.StatusCode, string(answer)
}

// acts carries out an action that must be accepted.
func (b *browser) acts(kind, target string) {
	b.Helper()
	if code, text := b.act(kind, target); code != http.StatusOK {
		b.Fatalf("%s %s: %d, %s", kind, target, code, text)
	}
}

// complete checks that every event was received once.
func (b *browser) complete(dir string) {
	b.Helper()
	if want := fileOf(b, dir, "events.jsonl"); b.events != want {
		b.Errorf("the browser received\n%s, want\n%s", b.events, want)
	}
}

// refused checks that impossible actions get one clear line.
func (b *browser) refused() {
	b.Helper()
	for _, c := range []struct {
		kind, target string
		code         int
		text         string
	}{
		{"kill", "server:99", 409, "not a running process that this machine's supervisor started"},
		{"kill", "server:*", 400, "invalid process"},
		{"kill", "shards:0.5", 400, "invalid process"},
		{"kill", "", 400, "invalid process"},
		{"maim", "server:0", 400, "unknown action"},
		{"remove", "server:0", 400, "only a worker can leave"},
		{"remove", "worker:99", 400, "99"},
	} {
		code, text := b.act(c.kind, c.target)
		if code != c.code || !strings.Contains(text, c.text) || strings.Count(text, "\n") != 1 {
			b.Errorf("%s %s: %d, %q, want %d, %q", c.kind, c.target, code, text, c.code, c.text)
		}
	}
}

// TestDashboard: a browser sees what happens to a job, and its buttons kill, freeze and resume processes and change the
// number of workers. Neither the coordinator's death nor a reconnect loses an event.
func TestDashboard(t *testing.T) {
	t.Parallel()
	dir := newFolder(t)
	p := start(t, append(endless(dir), "--dashboard", "--compute-ms", "10")...)
	b := browse(t, p.Says(`dashboard is at (\S+)`)[1])
	b.until("training", func() bool { return b.now.Serving && b.now.Clock > 3 })
	b.refused()
	b.acts("kill", "server:0")
	b.sees(`"kind":"fault".*kill:server:0(?s:.*)"kind":"serving","target":"server:0"`)
	b.acts("freeze", "worker:1")
	b.sees(`freeze:worker:1`)
	b.acts("resume", "worker:1")
	b.sees(`"kind":"resumed","target":"worker:1"`)
	b.acts("kill", "coordinator")
	b.sees(`"kind":"serving","target":"coordinator"`)
	b.until("training", func() bool { return b.now.Serving })
	workers := func() (n int) {
		for _, p := range b.now.Processes {
			if strings.HasPrefix(p.Target, "worker:") && p.State == "alive" {
				n++
			}
		}
		return n
	}
	before := workers()
	b.acts("add", "")
	b.until("one worker more", func() bool { return workers() == before+1 })
	_ = b.body.Close() // a connection that breaks
	awaitEvent(t, dir, "scaled", 1)
	b.follow()
	b.sees(`"kind":"scaled"`)
	b.acts("remove", fmt.Sprintf("worker:%d", before))
	b.until("one worker less", func() bool { return workers() == before })
	if code, _, stderr := invoke(t, "stop", "--run", dir); code != 0 {
		t.Fatalf("stop: %d, %s", code, stderr)
	}
	b.until("the end", func() bool { return b.end != nil })
	if b.end.State != "ended" || !strings.Contains(b.end.Text, "stopped") || b.end.Summary != nil {
		t.Errorf("ending %+v", b.end)
	}
	_, _, _ = p.Wait() // its exit code is tested elsewhere
	b.complete(dir)
	ended := command(t, "dashboard", dir)
	ended.Start()
	again := browse(t, ended.Says(`dashboard is at (\S+)`)[1])
	again.until("the end", func() bool { return again.end != nil })
	again.complete(dir)
	if code, text := again.act("kill", "server:0"); code != http.StatusForbidden || !strings.Contains(text, "ended") {
		t.Errorf("an ended run: %d, %s", code, text)
	}
	ended.Signal(os.Interrupt)
	if code, _, stderr := ended.Wait(); code != 0 {
		t.Errorf("perdure dashboard ends with %d: %s", code, stderr)
	}
}

// TestDashboardStorms: through random failures, a browser receives every event once, and at the end the numbers of
// summary.json.
func TestDashboardStorms(t *testing.T) {
	t.Parallel()
	strategies := []string{"resend:10", "chain:2", "checkpoint:10", "none", "scar:10,1/4,used", "stateless"}
	targets := []string{"server:0", "server:1", "worker:0", "worker:1", "worker:2", "coordinator"}
	for i := range *dashboardStorms {
		seed := *stormSeed + uint64(i)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			dir, draw := newFolder(t), rand.New(rand.NewPCG(seed, 0))
			args := small("--dashboard", "--out", dir, "--compute-ms", "10", "--seed", fmt.Sprint(seed), "--recovery",
				strategies[seed%uint64(len(strategies))])
			for range 4 {
				target := targets[draw.IntN(len(targets))]
				kind, length := "kill", ""
				if draw.IntN(3) == 0 && target != "coordinator" {
					kind, length = "freeze", "+100ms"
				}
				args = append(args, "--fault", fmt.Sprintf("%s:%s@clock:%d%s", kind, target, 5+draw.IntN(45), length))
			}
			p := start(t, args...)
			b := browse(t, p.Says(`dashboard is at (\S+)`)[1])
			b.until("the end", func() bool { return b.end != nil })
			p.succeeds(dir)
			b.complete(dir)
			var got, want bytes.Buffer
			must(t, json.Compact(&want, []byte(fileOf(t, dir, "summary.json"))))
			must(t, json.Compact(&got, b.end.Summary))
			if got.String() != want.String() {
				t.Errorf("the browser received\n%s, want\n%s", &got, &want)
			}
			var s rundir.Summary
			must(t, json.Unmarshal(want.Bytes(), &s))
			if now := b.now.Summary; *now.UpdatesLost > *s.UpdatesLost || *now.ClocksRedone > *s.ClocksRedone ||
				now.Clocks > s.Clocks {
				t.Errorf("while it ran, %d updates were lost, %d clocks redone, of %d; at the end %d, %d of %d",
					*now.UpdatesLost, *now.ClocksRedone, now.Clocks, *s.UpdatesLost, *s.ClocksRedone, s.Clocks)
			}
		})
	}
}

// TestDashboardHosts: the coordinator of a job on several hosts shows the job and accepts no action. After its death,
// its successor admits the same browsers, which miss no event.
func TestDashboardHosts(t *testing.T) {
	t.Parallel()
	h := newHosted(t, "127.0.0.1", map[string]string{"compute-ms": "20", "clocks": "400"})
	addr, hold, err := transport.Reserve("127.0.0.1")
	must(t, err)
	t.Cleanup(func() { _ = hold.Close() })
	h.lead("--dashboard=" + addr)
	if text := h.leader.stdout.String(); !strings.Contains(text, "the dashboard is at http://"+addr+";") {
		t.Errorf("the log lacks the dashboard's address without a secret: %s", text)
	}
	h.host(t.TempDir(), "--servers", "2", "--workers", "3")
	_, out, _ := invoke(t, "dashboard", h.dir)
	b := browse(t, regexp.MustCompile(`dashboard is at (\S+)`).FindStringSubmatch(out)[1])
	b.until("training", func() bool { return b.now.Serving && b.now.Clock > 3 })
	code, text := b.act("kill", "server:0")
	if code != http.StatusForbidden || !strings.Contains(text, "perdure drain") {
		t.Errorf("kill on a host: %d, %s", code, text)
	}
	h.leader.Kill()
	for b.read() { // until the connection breaks
	}
	other, err := net.Listen("tcp", addr) // another program is faster than the successor
	must(t, err)
	h.lead("--dashboard=" + addr)
	if text := h.leader.stdout.String(); !strings.Contains(text, "the job runs without a dashboard until") {
		t.Errorf("the log says nothing of the address that is in use: %s", text)
	}
	must(t, other.Close())
	h.leader.Says("the dashboard is at http://" + regexp.QuoteMeta(addr))
	b.follow()
	b.sees(`"kind":"attached"(?s:.*)"kind":"attached"`)
	b.until("training", func() bool { return b.now.Serving })
	if code, _, stderr := invoke(t, "stop", "--run", h.dir); code != 0 {
		t.Fatalf("stop: %d, %s", code, stderr)
	}
	b.until("the end", func() bool { return b.end != nil })
	_, _, _ = h.leader.Wait() // its exit code is tested elsewhere
	b.complete(h.dir)
}

// TestDashboardRefused: invalid arguments get one clear line.
func TestDashboardRefused(t *testing.T) {
	t.Parallel()
	dir := newFolder(t)
	p := atClock30(t, dir)
	for pattern, args := range map[string][]string{
		`nowhere`: {"dashboard", filepath.Join(t.TempDir(), "nowhere")},
		`started without --dashboard.*perdure status`:     {"dashboard", dir},
		`invalid dashboard address "x"`:                   {"train", "--dashboard=x"},
		`8000 is a port .*--dashboard 127.0.0.1:8000`:     {"train", "--dashboard", "8000"},
		`other machines can reach the dashboard.*--keys`:  {"train", "--dashboard=0.0.0.0:0"},
		`other machines can reach the dashboard .*--keys`: {"up", "--dashboard", "0.0.0.0:0"},
	} {
		wantRefused(t, exitUsage, pattern, args...)
	}
	p.Kill()
}

package jobs

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/data/disk"
)

// TestShown: of each phase a list has a word, and a page says what is to be done next.
func TestShown(t *testing.T) {
	r, _ := newRegistry(t)
	record := create(t, r, "first").Record
	state := func(p Phase) *State {
		s := &State{ID: record.ID, Phase: p, Clock: 7, End: 30, Address: "10.0.0.5:7000"}
		s.At = at.Add(-90 * time.Second)
		return s
	}
	stops := &Wish{ID: record.ID, Want: stop}
	const holder = "7 box 2026-01-02T03:04:05Z"
	for _, c := range []struct {
		job        Job
		want       Phase
		line, next string
	}{
		{Job{}, Waiting, "waiting for a coordinator  0 of 30  -", "perdure coordinator --registry "},
		{Job{Holder: holder}, Running, "running  0 of 30  -", "its leader is just beginning"},
		{
			Job{Holder: holder, State: state(Running)},
			Running, "running  7 of 30  10.0.0.5:7000",
			" --job first --keys KEYS --servers N --workers N -- PROGRAM",
		},
		{Job{State: state(Running)}, Away, "away (nobody leads it)  7 of 30  -", "--name first --dir DIR"},
		{Job{Wish: stops}, Stopping, "stopping  0 of 30  -", "start a coordinator, which ends it"},
		{
			Job{Holder: holder, State: state(Running), Wish: stops},
			Stopping, "stopping  7 of 30  10.0.0.5:7000",
			"nothing;",
		},
		{Job{Holder: holder, State: state(Stopping)}, Stopping, "stopping  7 of 30  10.0.0.5:7000", "nothing;"},
		{Job{State: state(Done), Wish: stops}, Done, "done  7 of 30  -", "perdure job rm first"},
		{Job{State: state(Stopped)}, Stopped, "stopped  7 of 30  -", "perdure job rm first"},
		{Job{State: state(Failed)}, Failed, "failed  7 of 30  -", "perdure job rm first"},
	} {
		c.job.Record = record
		var list, page, doc bytes.Buffer
		must(t, r.Print(&list, []Job{c.job}, false, false))
		must(t, r.Show(&page, &c.job, false))
		must(t, r.Show(&doc, &c.job, true))
		line := strings.Join(strings.Fields(list.String()), " ") // however wide it is
		if c.job.Phase() != c.want || !strings.Contains(line, strings.Join(strings.Fields(c.line), " ")) {
			t.Errorf("%s is %s: %s", c.want, c.job.Phase(), list.String())
		}
		if _, next, _ := strings.Cut(page.String(), "\nnext\n"); !strings.Contains(next, c.next) {
			t.Errorf("%s: what is next is %s", c.want, next)
		}
		if c.job.State != nil && !strings.Contains(page.String(), "7 of 30, 1m30s ago") {
			t.Errorf("%s: nobody says how old it is: %s", c.want, page.String())
		}
		var shown struct {
			Listed
			Text string `json:"text"`
		}
		err := json.Unmarshal(doc.Bytes(), &shown)
		if err != nil || shown.State != c.want || shown.Text != record.Text {
			t.Errorf("%s: %v, %s", c.want, err, doc.String())
		}
	}
	damaged := Job{Record: Record{Name: "bad"}, Err: disk.ErrCorrupt}
	var list, doc bytes.Buffer
	must(t, r.Print(&list, []Job{damaged}, false, false))
	must(t, r.Print(&doc, []Job{damaged}, false, true))
	if !strings.Contains(list.String(), "bad   -         damaged") ||
		!strings.Contains(doc.String(), `"why": "damaged"`) {
		t.Errorf("%s%s", list.String(), doc.String())
	}
}

// TestBy: a page says who has made a job and who has stopped it first, as they call themselves; what an older version
// has written says of neither who it was.
func TestBy(t *testing.T) {
	r, _ := newRegistry(t)
	create(t, r, "first")
	r.by = "bob@box"
	must(t, r.Stop(t.Context(), &bytes.Buffer{}, "first"))
	r.by = "eve@box"
	must(t, r.Stop(t.Context(), &bytes.Buffer{}, "first"))
	j, err := r.Find(t.Context(), "first")
	must(t, err)
	shows := func(want ...string) {
		t.Helper()
		var page bytes.Buffer
		must(t, r.Show(&page, j, false))
		for _, line := range want {
			if !strings.Contains(page.String(), line) {
				t.Errorf("the page has no %q: %s", line, page.String())
			}
		}
	}
	shows("made      2026-01-02T03:04:05Z, by ann@box, with perdure v1\n",
		"stopped   2026-01-02T03:04:05Z, by bob@box\n")
	var doc bytes.Buffer
	must(t, r.Show(&doc, j, true))
	var shown Listed
	if err := json.Unmarshal(doc.Bytes(), &shown); err != nil || shown.By != "ann@box" || shown.Stop.By != "bob@box" {
		t.Errorf("%v, %s", err, doc.String())
	}
	j.By, j.Wish.By = "", ""
	shows("by somebody, with perdure v1\n", "stopped   2026-01-02T03:04:05Z, by somebody\n")
}

// TestWho: who asks is one word, however he is called.
func TestWho(t *testing.T) {
	for want, of := range map[string][2]string{
		"ann@box":     {"ann", "box"},
		"O-b--x@b-x-": {"O-b\x1b\nx", "b x\x7f"},
		strings.Repeat("a", 100) + "@" + strings.Repeat("b", 100): {strings.Repeat("a", 300), strings.Repeat("b", 300)},
	} {
		if got := who(of[0], of[1]); got != want {
			t.Errorf("%q; want %q", got, want)
		}
	}
	if me := asker(); strings.Count(me, "@") != 1 || strings.ContainsAny(me, " \n") {
		t.Errorf("this process is of %q", me)
	}
}

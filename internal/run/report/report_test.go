package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/runs"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/workload"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// spec describes a synthetic run.
type spec struct {
	workload string
	seed     uint64
	recovery string
	accuracy float64
	lost     int64
	wall     float64
	model    string
	unended  bool
	points   int
}

// fake creates a run's directory. It does not sync files as a real run does, because there are hundreds.
func fake(t testing.TB, dir string, s spec) {
	t.Helper()
	recovery, err := perdure.ParseRecovery(s.recovery)
	must(t, err)
	job := perdure.JobSpec{
		ID: dir, Workload: s.workload, Seed: s.seed, Slots: 4, Servers: 2, Shards: 16, Clocks: 100,
		Consistency: perdure.Consistency{Kind: perdure.BSP}, Recovery: recovery,
	}
	write := func(name string, v any) {
		text, is := v.(string)
		if !is {
			b, err := json.Marshal(v)
			must(t, err)
			text = string(b)
		}
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666))
	}
	must(t, os.MkdirAll(dir, 0o777))
	params := workload.Params{Seed: s.seed, Batch: 64}
	run, err := rundir.EncodeRun(settings.Run{Version: "v1", Job: job, Params: params})
	must(t, err)
	write("run.json", string(run))
	write("events.jsonl", "")
	var rows strings.Builder
	rows.WriteString("seconds,clock,train_loss,test_accuracy,clocks_per_second\n")
	n := max(s.points, 20)
	for i := range n {
		share := float64(i+1) / float64(n)
		fmt.Fprintf(&rows, "%v,%d,%v,%v,%v\n", s.wall*share, int(100*share), 1-share/2, s.accuracy*share,
			80+10*math.Sin(float64(i)))
	}
	write("series.csv", rows.String())
	if s.unended {
		return
	}
	none, soon := int64(0), 250.0
	write("summary.json", rundir.Summary{
		Workload: s.workload, Workers: 4, Servers: 2, Shards: 16, Seed: s.seed, Clocks: 100, WallSeconds: s.wall,
		Consistency: job.Consistency, Recovery: job.Recovery, TestAccuracy: &s.accuracy, UpdatesLost: &s.lost,
		ClocksRedone: &none, ModelSHA256: &s.model,
		TimeSplit: &rundir.TimeSplit{Compute: .5, Staleness: .25, Communication: .25},
		Failures: []rundir.Failure{
			{Kind: "kill", Target: "server:0", AtSeconds: s.wall / 2, AtClock: 50, ServingAgainAfterMs: &soon},
		},
	})
}

// house creates three trials of two strategies and one of a third, in subdirectories of one directory.
func house(t testing.TB) string {
	root := t.TempDir()
	for seed := range 3 {
		at := float64(seed) / 100
		model := fmt.Sprintf("%064d", seed)
		fake(t, filepath.Join(root, fmt.Sprint("chain", seed)),
			spec{"softmax", uint64(seed), "chain:2", .80 + at, 0, 10 + at, model, false, 0})
		fake(t, filepath.Join(root, fmt.Sprint("none", seed)),
			spec{"softmax", uint64(seed), "none", .70 + at, 600, 9 + at, fmt.Sprint(seed), false, 0})
	}
	fake(t, filepath.Join(root, "resend0"),
		spec{"softmax", 0, "resend:20", .80, 0, 14, fmt.Sprintf("%064d", 0), false, 0})
	return root
}

func pageOf(t testing.TB, names ...string) *Page {
	t.Helper()
	all, err := runs.Find(names)
	must(t, err)
	p, err := New(all, Options{Version: "v2", Made: time.Unix(0, 0)})
	must(t, err)
	return p
}

func htmlOf(t testing.TB, p *Page) string {
	t.Helper()
	var b bytes.Buffer
	must(t, p.HTML(&b))
	return b.String()
}

// TestGroups checks that runs with different seeds are trials of one group, and that the answer claims no more than
// they show.
func TestGroups(t *testing.T) {
	p := pageOf(t, house(t))
	s := p.Sections[0]
	var names []string
	for _, g := range s.ordered() {
		names = append(names, fmt.Sprintf("%s %d", g.Name, len(g.Trials)))
	}
	if is := strings.Join(names, "; "); is != "chain:2 3; resend:20 1; recovery none 3" {
		t.Errorf("groups: %s", is)
	}
	want := []string{
		"chain:2 ended with the best test accuracy, 81.00% (80.00% to 82.00%), but the trials overlap with those " +
			"of resend:20, 80.00%, so they do not distinguish the two. Last is recovery none with 71.00% (70.00% to " +
			"72.00%).",
		"There were 7 faults in all; recovering from them took 1.75 s. Updates were lost under recovery none (600), " +
			"and under no other group. No clock was repeated.",
		"recovery none was quickest with 9.01 s (9.00 s to 9.02 s); next is chain:2 with 10.0 s, 1.00 s more. " +
			"Slowest is resend:20 with 14.0 s.",
		"Runs of the same seed ended with the same model, to the last bit, under chain:2 and resend:20.",
		"Some groups have only one trial, so these results may be due to chance.",
		"The 7 runs are 3 groups, 1 to 3 trials each, which differ in recovery. Figures are medians, with minimum " +
			"and maximum.",
	}
	if is := strings.Join(s.Answer, "\n"); is != strings.Join(want, "\n") {
		t.Errorf("answer:\n%s\nwant:\n%s", is, strings.Join(want, "\n"))
	}
	root := house(t)
	p = pageOf(t, filepath.Join(root, "chain0"), filepath.Join(root, "chain1"), filepath.Join(root, "chain2"))
	is := strings.Join(p.Sections[0].Answer, "\n")
	if !strings.Contains(is, "3 runs with the same settings but for the seed ended with a test accuracy of 81.00% "+
		"(80.00% to 82.00%), in 10.0 s.") {
		t.Errorf("one group:\n%s", is)
	}
}

// TestNames checks that group names contain words instead of the paths of run.json.
func TestNames(t *testing.T) {
	for path, want := range map[string]string{
		"job.recovery": "true", "params.Topics.Rebuild": "rebuild true", "params.Batch": "batch true",
	} {
		if is := namePart(path, "true", nil); is != want {
			t.Errorf("%s: %q, want %q", path, is, want)
		}
	}
}

// TestOne checks the answer for a single run.
func TestOne(t *testing.T) {
	dir := filepath.Join(house(t), "none0")
	s := pageOf(t, dir).Sections[0]
	want := dir + " trained softmax for 100 clocks in 9.00 s, and ended with a test accuracy of 70.00%.\n" +
		"There was one fault: server:0 killed at clock 50. Recovery took 0.25 s in total.\n" +
		"600 updates were lost, and no clock was repeated, under recovery none."
	if is := strings.Join(s.Answer, "\n"); is != want {
		t.Errorf("answer:\n%s\nwant:\n%s", is, want)
	}
	if len(s.Figures) != 6 || s.Figures[5] != (figure{"recovering", "0.25 s"}) {
		t.Errorf("figures: %v", s.Figures)
	}
}

// TestBad checks that unreadable runs are listed and do not count, that runs without a result do not count in figures,
// and that different workloads are not compared.
func TestBad(t *testing.T) {
	root := house(t)
	must(t, os.WriteFile(filepath.Join(root, "chain0", "summary.json"), []byte(`{"workload": "so`), 0o666))
	must(t, os.WriteFile(filepath.Join(root, "chain1", "run.json"), nil, 0o666))
	must(t, os.Remove(filepath.Join(root, "none0", "series.csv")))
	fake(t, filepath.Join(root, "early"), spec{"softmax", 9, "chain:2", .1, 0, 4, "", true, 0})
	fake(t, filepath.Join(root, "other"), spec{"mf", 1, "chain:2", .5, 0, 4, "x", false, 0})
	p := pageOf(t, root)
	problems := strings.Join(p.Problems, "\n")
	for _, want := range []string{
		"cannot read its summary", "a run's settings file: it is empty", "cannot read its measurements",
	} {
		if !strings.Contains(problems, want) {
			t.Errorf("%q is missing in:\n%s", want, problems)
		}
	}
	notes := strings.Join(p.Notes, "\n")
	for _, want := range []string{"These runs train softmax and mf", "early (clock 0 of 100)", "(damaged)"} {
		if !strings.Contains(notes, want) {
			t.Errorf("%q is missing in:\n%s", want, notes)
		}
	}
	if len(p.Sections) != 2 || p.Sections[0].Heading != "softmax" {
		t.Fatalf("%d sections", len(p.Sections))
	}
	for _, g := range p.Sections[0].groups {
		if g.Name == "chain:2" && (len(g.Trials) != 3 || len(g.done()) != 1) {
			t.Errorf("chain:2 has %d runs, %d with a result", len(g.Trials), len(g.done()))
		}
	}
	all, err := runs.Find([]string{filepath.Join(root, "chain1")})
	must(t, err)
	_, err = New(all, Options{})
	if !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), "it is empty") {
		t.Errorf("only a damaged run: %v", err)
	}
}

// TestStudy checks that runs of a study are grouped by its failure plans, although the faults differ between seeds.
func TestStudy(t *testing.T) {
	root := t.TempDir()
	for _, plan := range []string{"calm", "drawn"} {
		for seed := range uint64(3) {
			dir := filepath.Join(root, "chain_"+plan, fmt.Sprint("seed-", seed))
			fake(t, dir, spec{"softmax", seed, "chain:2", .8, 0, 10, "x", false, 0})
			file := filepath.Join(dir, "run.json")
			b, err := os.ReadFile(file)
			must(t, err)
			if plan == "drawn" {
				fault := fmt.Sprintf(`"faults":["kill:server:0@%ds"]`, seed+1)
				b = bytes.Replace(b, []byte(`"faults": null`), []byte(fault), 1)
			}
			must(t, os.WriteFile(file, b, 0o666))
		}
	}
	file := filepath.Join(root, "study.json")
	must(t, os.WriteFile(file, []byte(`{"name": "first", "question": "What does it cost?", "machine": {"cores": 3,
		"cpu": "a processor"}, "cells": [{"name": "chain_calm", "failures": "calm"},
		{"name": "chain_drawn", "failures": "drawn"}]}`), 0o666))
	p := pageOf(t, root)
	if len(p.Sections[0].groups) != 2 || p.Sections[0].groups[1].Name != "failures drawn" ||
		p.Title != "Perdure: the study first" || p.Question != "What does it cost?" {
		t.Errorf("%d groups, %q, %q", len(p.Sections[0].groups), p.Title, p.Question)
	}
	if is := htmlOf(t, p); !strings.Contains(is, "on 3 cores, a processor") || !strings.Contains(is, p.Question) {
		t.Errorf("facts: %v", p.Facts)
	}
	must(t, os.WriteFile(file, []byte("{"), 0o666))
	if p := pageOf(t, root); len(p.Sections[0].groups) != 4 || len(p.Problems) != 1 {
		t.Errorf("damaged study: %d groups, %v", len(p.Sections[0].groups), p.Problems)
	}
}

// TestGoesOn checks the answer for a run that is still running.
func TestGoesOn(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a")
	d, err := rundir.Create(dir)
	must(t, err)
	defer d.Close()
	must(t, d.WriteRun(settings.Run{Job: perdure.JobSpec{
		ID: "a", Workload: "softmax", Clocks: 100, Consistency: perdure.Consistency{Kind: perdure.BSP},
		Recovery: perdure.Recovery{Kind: perdure.RecoverNone},
	}}))
	p := pageOf(t, dir)
	is := strings.Join(p.Sections[0].Answer, "\n")
	if !strings.Contains(is, "is still running, at clock 0 of 100") {
		t.Errorf("answer: %s", is)
	}
	htmlOf(t, p)
}

// TestSelfContained checks that a page loads no resources, and that names of runs are escaped.
func TestSelfContained(t *testing.T) {
	root := house(t)
	must(t, os.Rename(filepath.Join(root, "none0"), filepath.Join(root, "<script>alert(1)</script>"[:8])))
	page := htmlOf(t, pageOf(t, root))
	for _, bad := range []string{"<script", "http://", "https://", "src=", "@import", "ZgotmplZ"} {
		for _, found := range regexp.MustCompile(`.{0,30}`+regexp.QuoteMeta(bad)+`.{0,30}`).FindAllString(page, -1) {
			if !strings.Contains(found, `xmlns="http://www.w3.org/2000/svg"`) {
				t.Errorf("page contains %q: %s", bad, found)
			}
		}
	}
	for _, want := range []string{"&lt;script&gt;", "perdure train --from run.json", "Settings that differ", Mark} {
		if !strings.Contains(page, want) {
			t.Errorf("%q is missing", want)
		}
	}
}

// TestSecrets checks that names and passwords in addresses do not appear on a page.
func TestSecrets(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a")
	fake(t, dir, spec{"softmax", 1, "stateless", .8, 0, 10, "x", false, 0})
	file := filepath.Join(dir, "run.json")
	b, err := os.ReadFile(file)
	must(t, err)
	for from, to := range map[string]string{
		`"recovery": "stateless"`: `"recovery":"stateless","log":"nats://joe:pass<1@host:4222"`,
		`"faults": null`: `"faults":null,"log":{"sync":"interval","mb":64,"snapshot_mb":64,` +
			`"nats":"nats://joe:pass<1@host:4222,tls://token2@other:1"}`,
		`"checkpoints": {`: `"checkpoints":{"store":"s3://key3:secret3@bucket/x",`,
	} {
		if !bytes.Contains(b, []byte(from)) {
			t.Fatalf("no %s in %s", from, b)
		}
		b = bytes.Replace(b, []byte(from), []byte(to), 1)
	}
	must(t, os.WriteFile(file, b, 0o666))
	p := pageOf(t, dir)
	markdown, _, err := p.Markdown("a")
	must(t, err)
	for _, text := range []string{htmlOf(t, p), string(markdown)} {
		for _, bad := range []string{"joe", "pass", "token2", "key3", "secret3"} {
			if strings.Contains(text, bad) {
				t.Errorf("page contains %s: %s", bad, regexp.MustCompile(".{0,60}"+bad+".{0,60}").FindString(text))
			}
		}
		if !strings.Contains(text, "host:4222") || !strings.Contains(text, "bucket/x") {
			t.Error("addresses are missing")
		}
	}
}

// TestMarkdown checks that pictures are written next to the page, and that other files are not replaced.
func TestMarkdown(t *testing.T) {
	p, dir := pageOf(t, house(t)), t.TempDir()
	var out bytes.Buffer
	file := filepath.Join(dir, "a.md")
	must(t, p.Write(&out, file, false))
	text, err := os.ReadFile(file)
	must(t, err)
	pictures := regexp.MustCompile(`!\[[^]]+\]\(([^)]+)\)`).FindAllStringSubmatch(string(text), -1)
	if len(pictures) != 5 {
		t.Errorf("%d pictures in:\n%s", len(pictures), text)
	}
	for _, m := range pictures {
		b, err := os.ReadFile(filepath.Join(dir, m[1]))
		must(t, err)
		if !bytes.Contains(b, []byte("prefers-color-scheme")) {
			t.Errorf("%s has no styles", m[1])
		}
	}
	must(t, p.Write(&out, file, false)) // replaces its own page
	for _, c := range []struct{ file, want string }{
		{"own.html", "already exists and is not a report"},
		{"a.pdf", "must be an .html or an .md file"},
		{filepath.Join("gone", "a.html"), "does not exist"},
	} {
		if c.file == "own.html" {
			must(t, os.WriteFile(filepath.Join(dir, c.file), []byte("mine"), 0o666))
		}
		err := p.Write(&out, filepath.Join(dir, c.file), false)
		if !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.file, err)
		}
	}
	must(t, p.Write(&out, filepath.Join(dir, "own.html"), true))
}

// many creates runs with that many measurements each.
func many(t testing.TB, n, points int) string {
	root := t.TempDir()
	strategies := []string{"chain:2", "none", "resend:20", "checkpoint:20", "stateless", "resend:5", "scar:9,1/8,round"}
	for i := range n {
		s := strategies[i%len(strategies)]
		if g := i / 100; g > 0 {
			s = fmt.Sprintf("checkpoint:%d", 30+i%20)
		}
		fake(t, filepath.Join(root, fmt.Sprintf("r%03d", i)), spec{
			"softmax", uint64(i), s, .7 + float64(i%13)/100, int64(i), 100 + float64(i%7), fmt.Sprint(i), false, points,
		})
	}
	return root
}

// mostBytes limits the page of two hundred runs.
const mostBytes = 3_000_000

// TestSize checks the size of a page with many groups and runs. Curves have no more points than are visible.
func TestSize(t *testing.T) {
	runs, points := 200, 1000
	if testing.Short() {
		runs, points = 50, 300 // more points than are drawn
	}
	if n := len(htmlOf(t, pageOf(t, many(t, runs, points)))); n > mostBytes {
		t.Errorf("page of %d runs has %d bytes", runs, n)
	}
}

// BenchmarkReport makes a page of two hundred runs with a thousand measurements each.
func BenchmarkReport(b *testing.B) {
	root := many(b, 200, 1000)
	for b.Loop() {
		page := htmlOf(b, pageOf(b, root))
		b.ReportMetric(float64(len(page)), "bytes")
	}
}

package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"encoding/xml"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/run/study"
)

var update = flag.Bool("update", false, "write the golden files anew")

// pretend is set in the environment of processes that this test starts as
// perdure: its value is a file that gets a line for each run.
const pretend = "FAILURE_STUDY_TEST_LOG"

func TestMain(m *testing.M) {
	if log := os.Getenv(pretend); log != "" {
		if err := pretendToTrain(log, os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, "perdure:", err)
			os.Exit(2)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// pretended is a run of a perdure that knows no resend.
type pretended struct {
	given  map[string]string
	faults []string
	rng    *rand.Rand
	series strings.Builder
	chain  bool
}

// pretendToTrain writes what training under the strategies might do.
func pretendToTrain(log string, args []string) error {
	p := &pretended{given: map[string]string{}}
	for i := 2; i+1 < len(args); i++ {
		if args[i] == "--fault" {
			p.faults = append(p.faults, args[i+1])
		}
		p.given[args[i]] = args[i+1]
	}
	strategy, out := p.given["--recovery"], p.given["--out"]
	if strategy == "resend" {
		return fmt.Errorf("unknown recovery strategy %q; choose another", strategy)
	}
	if info, err := os.Stat(out); err == nil && !info.IsDir() {
		return fmt.Errorf("%s is a file; choose another folder for the run", out)
	}
	seed, _ := strconv.ParseUint(p.given["--seed"], 10, 64)
	p.rng = rand.New(rand.NewPCG(seed, uint64(len(strategy)+3*len(p.given["--consistency"])+len(p.faults))))
	p.chain = strings.HasPrefix(strategy, "chain")
	f, err := os.OpenFile(log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	defer f.Close()
	fmt.Fprintln(f, strings.Join(args, " "))
	if strategy == "chain:3" && p.given["--consistency"] == "bsp" && seed == 2 && len(p.faults) > 0 {
		return fmt.Errorf("the job has failed: it is one of a test")
	}
	if err := os.MkdirAll(out, 0o777); err != nil {
		return err
	}
	files := map[string]string{"run.json": `{"version": "of a test"}`, "summary.json": p.train(strategy)}
	files["series.csv"] = p.series.String() // which train has written
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(out, name), []byte(text), 0o666); err != nil {
			return err
		}
	}
	return nil
}

// train writes the series, and returns the summary.
func (p *pretended) train(strategy string) string {
	time := func(text string) float64 {
		d, err := parseTime(text)
		if err != nil {
			panic(err)
		}
		return d
	}
	_, until, _ := strings.Cut(p.given["--until"], ":")
	every, length := time(p.given["--eval-every"]), time(until)
	var kills []outage
	for _, f := range p.faults {
		_, when, _ := strings.Cut(f, "@")
		at, lasts, _ := strings.Cut(when, "+")
		kills = append(kills, outage{time(at), time(at) + time(lasts)})
	}
	p.series.WriteString("seconds,test_accuracy,samples_per_second\n")
	worked, redone, accuracy := 0., 0., 0. // worked: s
	for at := every; at <= length; at += every {
		away := slices.IndexFunc(kills, func(o outage) bool { return at >= o.From && at < o.To })
		if away < 0 || p.chain {
			worked += every * map[string]float64{"bsp": .8, "asp": 1}[p.given["--consistency"]]
		} else if at-kills[away].From < every && strategy == "checkpoint:100" {
			worked, redone = worked-length/15, redone+length/15
		}
		accuracy = .85 - .7*math.Exp(-worked/length*12) + .004*p.rng.Float64()
		value := fmt.Sprintf("%.4f", accuracy)
		if away >= 0 && !p.chain {
			value = ""
		}
		fmt.Fprintf(&p.series, "%.3f,%s,\n%.3f,,%g\n", at, value, at, 32*2250/length)
	}
	usage := map[string]role{
		"worker":      {CPU: 8, Peak: 90, Written: new(300.), Stored: new(0.)},
		"server":      {CPU: 2, Peak: 30, Written: new(310.), Stored: new(12.5)},
		"coordinator": {CPU: .5, Peak: 20, Written: new(1.), Stored: new(.25)},
	}
	if strategy == "stateless" {
		usage["log"] = role{CPU: 1, Peak: 80, Written: new(200.), Stored: new(150.)}
	}
	var failures []map[string]any
	for _, k := range kills {
		failures = append(failures, map[string]any{
			"kind": "kill", "at_seconds": k.From,
			"serving_again_after_ms": 1000 * (k.To - k.From),
		})
	}
	kept := math.Round(2250 * worked / length)
	b, err := json.Marshal(map[string]any{
		"shards": 3, "test_accuracy": accuracy, "updates_sent": 3 * (kept + math.Round(2250*redone/length)),
		"updates_applied": 3 * kept, "updates_lost": 0,
		"clocks_redone": math.Round(2250 * redone / length), "bytes_pushed": 1e8, "bytes_pulled": nil,
		"failures": failures, "usage": usage,
	})
	if err != nil {
		panic(err)
	}
	return string(b)
}

func parseTime(text string) (float64, error) {
	d, err := time.ParseDuration(text)
	return d.Seconds(), err
}

// TestStudy does the whole study with a perdure that pretends, twice: the second
// time there is nothing to run. The page and a table are held as golden files.
func TestStudy(t *testing.T) {
	dir := t.TempDir()
	if keep := os.Getenv("FAILURE_STUDY_TEST_KEEP"); keep != "" {
		dir = keep
	}
	log := filepath.Join(dir, "log")
	t.Setenv(pretend, log)
	t.Setenv("GORACE", "atexit_sleep_ms=0") // else each process sleeps for a second at its end
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args := []string{
		"-perdure", self, "-runs", filepath.Join(dir, "runs"), "-out", filepath.Join(dir, "page"),
		"-seeds", "1,2",
	}
	ran := func() int {
		b, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(b), "\n")
	}
	var screen strings.Builder
	if err := conduct(context.Background(), args, &screen); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"left out: bsp resend: unknown recovery strategy",
		"36 runs, 0 of them are there already", "failed: the job has failed",
	} {
		if !strings.Contains(screen.String(), want) {
			t.Errorf("the screen does not say %q:\n%s", want, screen.String())
		}
	}
	before := ran()
	if err := conduct(context.Background(), append(args, "-report"), io.Discard); err != nil || ran() != before ||
		before != 36 {
		t.Errorf("%d runs, and %d more the second time, %v; want 36 and none", before, ran()-before, err)
	}
	checkDrawings(t, filepath.Join(dir, "page"))
	checkTables(t, filepath.Join(dir, "page"))

	// The page as of one machine.
	s, err := parseFlags(append(args, "-report"))
	if err != nil {
		t.Fatal(err)
	}
	results, err := (&runner{settings: s, screen: io.Discard}).all(context.Background(), s.cells())
	if err != nil {
		t.Fatal(err)
	}
	p := newPage(s, study.Machine{Cores: 2, CPU: "a processor", Go: "go1", Date: "2026-01-02"}, s.cells(), nil, results)
	if err := p.write(filepath.Join(dir, "golden")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"README.md", "outages.csv"} {
		checkGolden(t, filepath.Join(dir, "golden", name), filepath.Join("testdata", name))
	}
	if err := conduct(context.Background(), append(args, "-report", "-batch", "7"), io.Discard); err == nil ||
		!strings.Contains(err.Error(), "no run has a result") {
		t.Errorf("other settings: %v; want that there is no result", err)
	}
}

func checkGolden(t *testing.T, file, golden string) {
	t.Helper()
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(golden, got, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(golden); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is not %s: %v; it is\n%s", file, golden, err, got)
	}
}

// checkDrawings sees that all plots say what they are to.
func checkDrawings(t *testing.T, folder string) {
	t.Helper()
	for plot, has := range map[string][]string{
		"accuracy":  {"checkpoint:100", "stateless, continue", "asp", "a server is away", "seconds", "60%"},
		"change":    {"kill at 80 s", "bsp chain:3", "points", "without"},
		"gradients": {"with failures", "asp stateless, continue", "done again, or lost", "1320", "2250"},
		"costs":     {"processor", "stored", "MB", "coordinator"},
	} {
		checkDrawing(t, filepath.Join(folder, plot+".svg"), has...)
	}
}

// checkDrawing reads an SVG as XML, and sees that it has lines, the texts that it is to
// have, and no places that are no numbers.
func checkDrawing(t *testing.T, file string, has ...string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for d := xml.NewDecoder(strings.NewReader(text)); ; {
		if _, err := d.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	if strings.Contains(text, "NaN") || strings.Contains(text, "Inf") || strings.Count(text, "<") < 40 {
		t.Errorf("%s has places that are no numbers, or nothing in it", file)
	}
	for _, want := range has {
		if !strings.Contains(text, ">"+want+"</text>") {
			t.Errorf("%s does not say %q", file, want)
		}
	}
}

// checkTables sees that all tables are there, of rows of one length.
func checkTables(t *testing.T, folder string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.csv"))
	if err != nil || len(files) != 5 {
		t.Fatalf("%d tables, %v; want 5", len(files), err)
	}
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if rows, err := csv.NewReader(f).ReadAll(); err != nil || len(rows) < 30 {
			t.Errorf("%s: %d rows, %v", file, len(rows), err)
		}
	}
}

// TestStopped: a program that cannot be asked ends the study, in one line.
func TestStopped(t *testing.T) {
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(pretend, filepath.Join(dir, "log"))
	for args, want := range map[string]string{
		"-strategies resend": "can run nothing of the study; of bsp resend it says: unknown recovery " +
			"strategy",
		"-strategies resend -perdure /": "/ cannot be asked what it can run",
	} {
		err = conduct(context.Background(), append([]string{"-perdure", self, "-runs", dir, "-out", dir},
			strings.Fields(args)...), io.Discard)
		if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want a line with %q", args, err, want)
		}
	}
}

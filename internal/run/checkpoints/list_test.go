package checkpoints

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/run/humanize"
)

// TestList checks the list: one line per checkpoint, newest first, at most 80 columns wide, and the newest complete one
// is marked.
func TestList(t *testing.T) {
	f, fsys := kept(t, 4)
	write(t, fsys, segmentName(40, 1), nil)
	write(t, fsys, manifestName(20), []byte("x"))
	var out bytes.Buffer
	if err := f.List(&out, false); !oneLine(err, "c/"+segmentName(40, 1)+": it has 0 bytes, not ") {
		t.Errorf("the error is %v", err)
	}
	want := `(?s)^c\njob first \(own\)
 +clock +gen +age +bytes +segments +strategy  state
 +40 +1  59m20s +[\d.]+ .?B +2\+2  checkpoint:10  lacks 1 of 4 files
 +30 +1  59m30s +[\d.]+ .?B +2  checkpoint:10  complete, newest
 +20 +1 +- +- +- +-  cannot be used
 +10 +1  59m50s +[\d.]+ .?B +2  checkpoint:10  complete
not part of a checkpoint, but being written or left over: 2 files? \([\d.]+ .?B\)
$`
	if !regexp.MustCompile(want).MatchString(out.String()) {
		t.Errorf("output\n%s", &out)
	}
	for line := range strings.Lines(out.String()) {
		if len(line) > 81 {
			t.Errorf("%d columns: %s", len(line)-1, line)
		}
	}
	clock := perdure.Clock(30)
	f.Clock = &clock
	if err := f.List(&out, false); !oneLine(err, "remove @30") {
		t.Errorf("of a clock: %v", err)
	}
}

// TestListJSON checks that the JSON output has the same content, with null for unknown values.
func TestListJSON(t *testing.T) {
	f, fsys := kept(t, 2)
	write(t, fsys, manifestName(20), []byte("x"))
	var out bytes.Buffer
	if err := f.List(&out, true); !oneLine(err, manifestName(20)) {
		t.Errorf("the error is %v", err)
	}
	var got list
	must(t, json.Unmarshal(out.Bytes(), &got))
	if got.Folder != "c" || got.Job != "first" || got.Workload != "own" || len(got.Loose) != 2 ||
		len(got.Checkpoints) != 2 {
		t.Fatalf("%+v", got)
	}
	bad, good := got.Checkpoints[0], got.Checkpoints[1]
	if bad.Clock != 20 || bad.Whole || bad.Newest || bad.Bytes != nil || bad.Strategy != nil || len(bad.Defects) != 1 ||
		!strings.Contains(out.String(), `"strategy": null`) {
		t.Errorf("damaged checkpoint: %+v", bad)
	}
	if good.Clock != 10 || !good.Whole || !good.Newest || *good.Segments != 2 || *good.Follows != 0 ||
		good.Strategy.String() != "checkpoint:10" || !good.SavedAt.Equal(saved.Add(10*time.Second)) {
		t.Errorf("good checkpoint: %+v", good)
	}
}

// TestShow checks the text and the JSON output for a manifest.
func TestShow(t *testing.T) {
	f, fsys := kept(t, 2)
	var out bytes.Buffer
	must(t, f.Show(&out, false))
	want := `^checkpoint of clock 20, generation 1: complete, the newest
  in        c
  manifest  ` + manifestName(20) + `
  saved     2026-11-23T12:00:20Z, 59m40s ago
  job       first \(own\), seed 0
  started   1 worker, 1 server, 2 shards
  under     bsp, checkpoint:10
  bytes     [\d.]+ .?B in 4 segments

table +rows +dim +rule +model
w +9 +2 +add +bsp
s +4 stored +1 +add +bsp

shard +updates +bytes +crc32c +file
0 +20 +[\d.]+ .?B +[0-9a-f]{8}  ` + segmentName(20, 0) + `
 +follows +[\d.]+ .?B +[0-9a-f]{8}  ` + segmentName(10, 0) + `
1 +20 +[\d.]+ .?B +[0-9a-f]{8}  ` + segmentName(20, 1) + `
 +follows +[\d.]+ .?B +[0-9a-f]{8}  ` + segmentName(10, 1) + `
$`
	if !regexp.MustCompile(want).MatchString(out.String()) {
		t.Errorf("output\n%s", &out)
	}
	out.Reset()
	clock := perdure.Clock(10)
	f.Clock = &clock
	remove(t, fsys, segmentName(10, 1))
	if err := f.Show(&out, true); !oneLine(err, segmentName(10, 1)+": it is missing") {
		t.Errorf("the error is %v", err)
	}
	var got showResult
	must(t, json.Unmarshal(out.Bytes(), &got))
	if got.Clock != 10 || got.Whole || got.Job.ID != "first" || len(got.Shards) != 2 ||
		len(got.Tables) != 2 || got.Tables[0].Name != "w" || got.Tables[0].Stored != nil {
		t.Errorf("%+v", got)
	}
	clock = 30
	if err := f.Show(&out, false); !oneLine(err, "no checkpoint of clock 30; it holds those of clocks 20, 10") {
		t.Errorf("unknown clock: %v", err)
	}
}

// TestVerify checks that every file is read once, and that the speed is reported.
func TestVerify(t *testing.T) {
	f, fsys := kept(t, 3)
	bytesOf := 0
	for _, name := range held(t, fsys) {
		if strings.HasSuffix(name, ".segment") {
			bytesOf += len(read(t, fsys, name))
		}
	}
	var out bytes.Buffer
	must(t, f.Verify(&out, false))
	want := `^clock 30: complete: 2 shards, 2 segments, 13 rows in 2 tables
clock 20: complete: 2 shards, 4 segments, 13 rows in 2 tables
clock 10: complete: 2 shards, 2 segments, 13 rows in 2 tables
read ` + regexp.QuoteMeta(humanize.Bytes(int64(bytesOf))) + ` of 6 files in \d\.\d{3} s: [\d.]+ .?B/s
$`
	if !regexp.MustCompile(want).MatchString(out.String()) {
		t.Errorf("output\n%s", &out)
	}
}

// TestExport exports every checkpoint, and checks that a file is replaced only with force.
func TestExport(t *testing.T) {
	f, _ := kept(t, 3)
	dir := t.TempDir()
	var out bytes.Buffer
	for clock, to := range map[perdure.Clock]string{10: "a", 20: "b", 30: "c"} {
		f.Clock = &clock
		must(t, f.Export(&out, filepath.Join(dir, to), false, false))
		wantModel(t, filepath.Join(dir, to), clock)
	}
	f.Clock = nil
	a := filepath.Join(dir, "a")
	err := f.Export(&out, a, false, false)
	if !oneLine(err, "a already exists; choose another name, or add --force") {
		t.Errorf("existing file: %v", err)
	}
	wantModel(t, a, 10)
	must(t, f.Export(&out, a, true, false))
	wantModel(t, a, 30)
	if err := f.Export(&out, dir, true, false); !oneLine(err, "is a directory; choose a file") {
		t.Errorf("directory: %v", err)
	}
	if err := f.Export(&out, filepath.Join(dir, "x", "a"), false, false); !oneLine(err, "does not exist") {
		t.Errorf("missing directory: %v", err)
	}
	names, err := os.ReadDir(dir)
	must(t, err)
	if len(names) != 3 {
		t.Errorf("files left: %v", names)
	}
}

// deleting is a file system with a running job. After the directory is listed, or before a file is opened, the job
// publishes the next checkpoint and deletes the previous one.
type deleting struct {
	disk.FS
	after func()
	left  int // number of lists after which it does so
	open  int // the file before which it does so; 0: none
}

func (d *deleting) Open(path string) (io.ReadCloser, error) {
	if d.open--; d.open == 0 {
		d.after()
	}
	return d.FS.Open(path)
}

func (d *deleting) List(dir string) ([]string, error) {
	names, err := d.FS.List(dir)
	if d.left > 0 {
		d.left--
		d.after()
	}
	return names, err
}

// TestLive checks that checkpoints that the job deletes meanwhile are not reported as missing.
func TestLive(t *testing.T) {
	for name, do := range map[string]func(f *Location, out *bytes.Buffer) error{
		"ls":     func(f *Location, out *bytes.Buffer) error { return f.List(out, false) },
		"show":   func(f *Location, out *bytes.Buffer) error { return f.Show(out, false) },
		"verify": func(f *Location, out *bytes.Buffer) error { return f.Verify(out, false) },
		"export": func(f *Location, out *bytes.Buffer) error {
			return f.Export(out, filepath.Join(t.TempDir(), "model"), false, false)
		},
	} {
		for open := range 10 { // sizes are also found by opening
			if open > 0 && name != "verify" && name != "export" {
				break // these commands do not read files
			}
			f, fsys := kept(t, 1)
			next := disk.NewMemory()
			must(t, next.MkdirAll("c"))
			save(t, next, 3)
			d := &deleting{FS: fsys, open: open, after: func() {
				for _, file := range []string{segmentName(30, 0), segmentName(30, 1), manifestName(30)} {
					write(t, fsys, file, read(t, next, file))
				}
				remove(t, fsys, manifestName(10), segmentName(10, 0), segmentName(10, 1))
			}}
			if open == 0 {
				d.left = 1
			}
			f.Store = store.NewDir(d, "c")
			var out bytes.Buffer
			if err := do(f, &out); err != nil || !strings.Contains(out.String(), "30") {
				t.Errorf("%s while the job is running, %d files: %v\n%s", name, open, err, &out)
			}
		}
	}
}

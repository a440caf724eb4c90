package checkpoints

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/safetensors"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/table"
)

// Running checkpoint n is of clock 10n+3. For each shard it has the three newest files, of which file n was started at
// clock 10n. Each file has one row of the dense table, a different one each time, and one of the sparse table.

var rowTables = []perdure.TableSpec{
	{
		Name: "w", Rows: 9, Dim: 2, Rule: perdure.Rule{Kind: perdure.RuleAdd}, Consistency: bsp,
		Init: perdure.Init{Kind: perdure.InitUniform, Scale: 1},
	},
	tables[1],
}

func rowsJob() perdure.JobSpec {
	j := testJob
	j.Recovery = perdure.Recovery{
		Kind: perdure.RecoverScar, Every: 10, Share: 0.125, Selector: perdure.SelectPriority,
	}
	return j
}

// part returns the rows of the dense table in a shard, and the row that its n-th file contains.
func part(shard perdure.ShardID, n int) (first, rows, at int) {
	start, rows := placement.Range(&perdure.TableSpec{Rows: 9}, 2, shard)
	return int(start), rows, (n - 1) % 4
}

func rowsSegment(shard perdure.ShardID, n int) *checkpoint.Segment {
	first, rows, at := part(shard, n)
	cut := perdure.Clock(10 * n)
	values := []float32{value(cut, first+at, 0), value(cut, first+at, 1)}
	id := []perdure.RowID{perdure.RowID(n + 10*int(shard))}
	dense := stream(rows, floats(values))
	dense.Runs[0].First = at
	return &checkpoint.Segment{
		Job: testJob.ID, Generation: 1, Epoch: 1, Number: uint64(n), Cut: cut, Shard: shard, Seq: uint64(cut),
		Applied: []perdure.Clock{cut},
		Tables: []checkpoint.TableRows{
			{Spec: rowTables[0], First: int64(first), Stream: dense},
			{Spec: rowTables[1], Stream: stream(1, numbers(id), floats([]float32{value(cut, n, 0)}))},
		},
	}
}

func rowsName(n, shard int) string { return fmt.Sprintf("s%05d-g000001-e000001-n%012d.rows", shard, n) }
func runningName(n int) string     { return checkpoint.RunningFile(uint64(n)) }

// keptRows creates a directory with n running checkpoints.
func keptRows(t *testing.T, n int) (*Location, *disk.Memory) {
	t.Helper()
	fsys := disk.NewMemory()
	must(t, fsys.MkdirAll("c"))
	saveRows(t, fsys, n)
	return &Location{Store: store.NewDir(fsys, "c"), Run: t.TempDir(), Now: saved.Add(time.Hour)}, fsys
}

func saveRows(t *testing.T, fsys disk.FS, n int) {
	t.Helper()
	shards := []checkpoint.RunningShard{{Shard: 0}, {Shard: 1}}
	for i := range n {
		m := checkpoint.Running{
			Number: uint64(i + 1), Job: rowsJob(), Generation: 1, Clock: perdure.Clock(10*(i+1) + 3), Tables: rowTables,
			SavedAt: saved.Add(time.Duration(i) * time.Minute),
		}
		for s := range shards {
			ref, err := checkpoint.WriteSegment(store.NewDir(fsys, "c"), rowsSegment(perdure.ShardID(s), i+1))
			must(t, err)
			files := append(slices.Clone(shards[s].Files), ref.Self())
			shards[s].Files = files[max(0, len(files)-3):]
		}
		m.Shards = slices.Clone(shards)
		must(t, checkpoint.PublishRunning(store.NewDir(fsys, "c"), m))
	}
}

// holdsRows returns the names of these manifests with the files they need, and of the files of more.
func holdsRows(manifests []int, more ...int) (names []string) {
	for _, n := range manifests {
		names = append(names, runningName(n))
		more = append(more, n, max(1, n-1), max(1, n-2))
	}
	for _, n := range more {
		names = append(names, rowsName(n, 0), rowsName(n, 1))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// TestListRows checks that the list has the age of the oldest file of a running checkpoint.
func TestListRows(t *testing.T) {
	f, fsys := keptRows(t, 3)
	write(t, fsys, runningName(2), []byte("x"))
	write(t, fsys, rowsName(9, 0), []byte("x"))
	var out bytes.Buffer
	if err := f.List(&out, false); !oneLine(err, "c/"+runningName(2)+": it does not begin") {
		t.Errorf("the error is %v", err)
	}
	want := `(?s)^c\njob first \(own\)
 +clock +gen +age +bytes +files +old +strategy  state
 +33 +1  58m00s +[\d.]+ .?B +6 +23  scar:10,1/8,priority  complete, newest
 +\? +0 +- +- +- +- +-  cannot be used
 +13 +1 +1h00m +[\d.]+ .?B +2 +3  scar:10,1/8,priority  complete
not part of a checkpoint, but being written or left over: 1 files? \(1 B\)
$`
	if !regexp.MustCompile(want).MatchString(out.String()) {
		t.Errorf("output\n%s", &out)
	}
	for line := range strings.Lines(out.String()) {
		if len(line) > 81 {
			t.Errorf("%d columns: %s", len(line)-1, line)
		}
	}
	out.Reset()
	remove(t, fsys, runningName(2), rowsName(3, 1))
	err := f.List(&out, true)
	if !oneLine(err, rowsName(3, 1)+": it is missing; the next older complete one is c@13") {
		t.Errorf("the error is %v", err)
	}
	var got list
	must(t, json.Unmarshal(out.Bytes(), &got))
	if l := got.Checkpoints; len(l) != 2 || l[0].Whole || l[0].Oldest != nil || l[0].Number != 3 || l[0].Clock != 33 ||
		!l[1].Newest || *l[1].Oldest != 3 || *l[1].Segments != 2 || *l[1].Follows != 0 {
		t.Errorf("%s", &out)
	}
}

// TestShowRows checks the number of current rows and their age for each file.
func TestShowRows(t *testing.T) {
	f, fsys := keptRows(t, 3)
	var out bytes.Buffer
	must(t, f.Show(&out, false))
	want := `^running checkpoint of clock 33, generation 1: complete, the newest
  in        c
  manifest  ` + runningName(3) + `
  saved     2026-11-23T12:02:00Z, 58m00s ago
  job       first \(own\), seed 0
  started   1 worker, 1 server, 2 shards
  under     bsp, scar:10,1/8,priority
  bytes     [\d.]+ .?B in 6 segments
  rows      12 saved, 13.0 clocks old on average, and 23 at most
            3 never saved, which start from scratch

table +rows +dim +rule +model
w +9 +2 +add +bsp
s +6 stored +1 +add +bsp

shard +clock +rows +bytes +crc32c +file
0 +30 +2 +[\d.]+ .?B +[0-9a-f]{8}  ` + rowsName(3, 0) + `
 +20 +2 +[\d.]+ .?B +[0-9a-f]{8}  ` + rowsName(2, 0) + `
 +10 +2 +[\d.]+ .?B +[0-9a-f]{8}  ` + rowsName(1, 0) + `
 +never +2 *
1 +30 +2 +[\d.]+ .?B +[0-9a-f]{8}  ` + rowsName(3, 1) + `
 +20 +2 +[\d.]+ .?B +[0-9a-f]{8}  ` + rowsName(2, 1) + `
 +10 +2 +[\d.]+ .?B +[0-9a-f]{8}  ` + rowsName(1, 1) + `
 +never +1 *
$`
	if !regexp.MustCompile(want).MatchString(out.String()) {
		t.Errorf("output\n%s", &out)
	}
	out.Reset()
	write(t, fsys, rowsName(3, 1), flipped(-8)(read(t, fsys, rowsName(3, 1))))
	err := f.Show(&out, true)
	if !oneLine(err, rowsName(3, 1)) || !oneLine(err, "; the next older complete one is c@23") {
		t.Errorf("the error is %v", err)
	}
	var got showResult
	must(t, json.Unmarshal(out.Bytes(), &got))
	if s := got.Shards; len(s) != 2 || *s[0].Initial != 2 || *s[0].Files[1].Rows != 2 || *s[0].Files[1].Clock != 20 ||
		s[0].Seq != 30 || s[1].Initial != nil || s[1].Files[1].Rows != nil {
		t.Errorf("%s", &out)
	}
	out.Reset()
	if err := f.Show(&out, false); err == nil || !strings.Contains(out.String(), "\n1      ?      ?  ") ||
		!strings.Contains(out.String(), ": a file is damaged\n") || strings.Contains(out.String(), "on average") {
		t.Errorf("damaged checkpoint: %v\n%s", err, &out)
	}
}

// rowDamages are ways to damage a file of the newest of three running checkpoints, or one that all share.
var rowDamages = []damage{
	{"values", rowsName(3, 0), flipped(-8), []string{" (values of table s): section checksum mismatch"}, false},
	{"header", rowsName(3, 0), flipped(33), []string{", header: header checksum mismatch"}, false},
	{"cut by a byte", rowsName(3, 1), cutShort, []string{", header: truncated: "}, true},
	{"deleted", rowsName(3, 1), nil, []string{": it is missing"}, true},
	{"in all", rowsName(1, 1), flipped(-8), []string{" (values of table s): section checksum"}, false},
	{"manifest", runningName(3), flipped(-3), []string{": checksum mismatch"}, true},
	{
		"manifest emptied", runningName(3), func([]byte) []byte { return nil },
		[]string{": it does not begin with"},
		true,
	},
	{
		"newer manifest", runningName(3),
		func(b []byte) []byte { return bytes.Replace(b, []byte("CHECKPOINT 1"), []byte("CHECKPOINT 9"), 1) },
		[]string{": written by another version of Perdure (format 9,"},
		true,
	},
}

// TestRowDamage checks that defects are named, and that the model of the next older whole checkpoint can be exported.
func TestRowDamage(t *testing.T) {
	for _, d := range rowDamages {
		t.Run(d.name, func(t *testing.T) {
			f, fsys := keptRows(t, 3)
			if d.change == nil {
				remove(t, fsys, d.file)
			} else {
				write(t, fsys, d.file, d.change(read(t, fsys, d.file)))
			}
			var out bytes.Buffer
			older := "; the newest complete one is c@23"
			if d.name == "in all" {
				older = "3 damaged, 1 defect"
			}
			if err := f.Verify(&out, false); !oneLine(err, older) {
				t.Errorf("Verify: %v", err)
			}
			if !strings.Contains(out.String(), "  "+d.file) || !strings.Contains(out.String(), d.says[0]) ||
				strings.Count(out.String(), d.file) != 1 {
				t.Errorf("Verify:\n%s", &out)
			}
			if err := f.List(&bytes.Buffer{}, false); (err != nil) != d.shows || d.shows && !oneLine(err, d.file) {
				t.Errorf("List: %v", err)
			}
			out.Reset()
			to := filepath.Join(t.TempDir(), "model")
			err := f.Export(&out, to, false, false)
			if d.name == "in all" {
				if !oneLine(err, "c holds no complete checkpoint") || fileThere(to) {
					t.Errorf("Export: %v", err)
				}
				return
			}
			if err != nil || !strings.Contains(out.String(), " is damaged: ") {
				t.Fatalf("Export: %v\n%s", err, &out)
			}
			wantRows(t, to, 2)
			clock := perdure.Clock(33)
			f.Clock = &clock
			err = f.Export(&out, to, true, false)
			if strings.HasPrefix(d.file, "s") && !oneLine(err, "; the next older complete one is c@23") {
				t.Errorf("Export of clock 33: %v", err)
			}
		})
	}
}

func fileThere(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// wantRows compares a model with the content of the n-th running checkpoint.
func wantRows(t *testing.T, file string, n int) {
	t.Helper()
	b, err := os.ReadFile(file)
	must(t, err)
	tensors, meta, err := safetensors.Read(bytes.NewReader(b), int64(len(b)))
	must(t, err)
	w := slices.Clone(table.New(rowTables[0], 0, 0, 0, 9).Image().Planes[0][0])
	var ids []int64
	var values []float32
	for shard := range perdure.ShardID(2) {
		for i := max(1, n-2); i <= n; i++ {
			first, _, at := part(shard, i)
			cut := perdure.Clock(10 * i)
			w[2*(first+at)], w[2*(first+at)+1] = value(cut, first+at, 0), value(cut, first+at, 1)
			ids, values = append(ids, int64(i+10*int(shard))), append(values, value(cut, i, 0))
		}
	}
	got := map[string]safetensors.Tensor{}
	for _, one := range tensors {
		got[one.Name] = one
	}
	if !slices.Equal(got["w"].Data, w) || !slices.Equal(got["w"].Shape, []int64{9, 2}) {
		t.Errorf("checkpoint %d: w is %v; want %v", n, got["w"], w)
	}
	if !slices.Equal(got["s/ids"].Ints, ids) || !slices.Equal(got["s"].Data, values) {
		t.Errorf("checkpoint %d: s is %v with ids %v; want %v with %v", n, got["s"], got["s/ids"], values, ids)
	}
	if meta["clock"] != fmt.Sprint(10*n+3) {
		t.Errorf("metadata %v", meta)
	}
}

// TestExportRows exports every running checkpoint. Rows that are in no file have their initial values.
func TestExportRows(t *testing.T) {
	f, _ := keptRows(t, 5)
	to := filepath.Join(t.TempDir(), "model")
	for n := 1; n <= 5; n++ {
		clock := perdure.Clock(10*n + 3)
		f.Clock = &clock
		var out bytes.Buffer
		must(t, f.Export(&out, to, true, false))
		wantRows(t, to, n)
	}
}

// TestSameClock checks that of two running checkpoints of a clock both are read, and that the newer whole one is used.
func TestSameClock(t *testing.T) {
	f, fsys := keptRows(t, 2)
	found, err := checkpoint.List(store.NewDir(fsys, "c"))
	must(t, err)
	again := found.Checkpoints[0].Running
	again.Number = 3
	must(t, checkpoint.PublishRunning(store.NewDir(fsys, "c"), again))
	clock := perdure.Clock(23)
	f.Clock = &clock
	var out bytes.Buffer
	must(t, f.Verify(&out, false))
	if strings.Count(out.String(), "clock 23: complete: 2 shards, 4 files of rows\n") != 2 {
		t.Errorf("Verify:\n%s", &out)
	}
	write(t, fsys, runningName(3), nil)
	to := filepath.Join(t.TempDir(), "model")
	must(t, f.Export(&out, to, false, false))
	wantRows(t, to, 2)
	clock = 7
	err = f.Show(&out, false)
	if !oneLine(err, "c holds no checkpoint of clock 7; it holds those of clocks ?, 23, 13") {
		t.Errorf("unknown clock: %v", err)
	}
}

// TestPruneRows checks that the newest whole running checkpoints stay, with all files that they or an unreadable one
// may need.
func TestPruneRows(t *testing.T) {
	for name, c := range map[string]struct {
		keep  int
		spoil string // a file; "": none
		run   bool   // in a run's directory
		stay  []string
	}{
		"one":               {1, "", true, holdsRows([]int{5})},
		"two":               {2, "", true, holdsRows([]int{5, 4})},
		"all":               {0, "", true, holdsRows([]int{1, 2, 3, 4, 5})},
		"one in no run":     {1, "", false, holdsRows([]int{5}, 7)},
		"all in no run":     {0, "", false, holdsRows([]int{1, 2, 3, 4, 5}, 7)},
		"a damaged file":    {1, rowsName(5, 1), true, holdsRows([]int{5, 4})},
		"a manifest is odd": {1, runningName(5), true, holdsRows([]int{5, 4}, 7)},
		"all may need it":   {0, runningName(1), true, holdsRows([]int{1, 2, 3, 4, 5}, 7)},
		"an older is odd":   {2, runningName(2), true, holdsRows([]int{5, 4})},
	} {
		f, fsys := keptRows(t, 5)
		write(t, fsys, rowsName(7, 0), []byte("begun")) // to be published, or left over
		write(t, fsys, rowsName(7, 1), []byte("begun"))
		write(t, fsys, "."+rowsName(4, 0)+".7-1.tmp", []byte("begun"))
		write(t, fsys, "."+runningName(4)+".7-1.tmp", []byte("begun"))
		if c.spoil != "" {
			write(t, fsys, c.spoil, []byte("x"))
		}
		if !c.run {
			f.Run = ""
		}
		must(t, f.Prune(&bytes.Buffer{}, c.keep, true, false))
		must(t, f.Prune(&bytes.Buffer{}, c.keep, false, false))
		if got := held(t, fsys); !slices.Equal(got, c.stay) {
			t.Errorf("%s: files\n%v, want\n%v", name, got, c.stay)
		}
	}
}

// TestPruneRowsCrashes crashes the file system at every step of Prune. All remaining manifests must be whole.
func TestPruneRowsCrashes(t *testing.T) {
	for _, keep := range []int{0, 1, 2} {
		for at := 1; ; at++ {
			f, fsys := keptRows(t, 5)
			_, err := checkpoint.WriteSegment(f.Store, rowsSegment(0, 6))
			must(t, err)
			fsys.FailAfter(at)
			err = f.Prune(&bytes.Buffer{}, keep, false, false)
			fsys.Crash(rand.New(rand.NewPCG(uint64(keep), uint64(at))))
			found, lookErr := checkpoint.List(store.NewDir(fsys, "c"))
			must(t, lookErr)
			if len(found.Checkpoints) == 0 || found.Checkpoints[0].Number != 5 {
				t.Fatalf("keep %d, crash at step %d: found %v", keep, at, found.Checkpoints)
			}
			must(t, f.Verify(&bytes.Buffer{}, false))
			must(t, f.Prune(&bytes.Buffer{}, keep, false, false))
			want := holdsRows(map[int][]int{0: {1, 2, 3, 4, 5}, 1: {5}, 2: {4, 5}}[keep])
			if got := held(t, fsys); !slices.Equal(got, want) {
				t.Fatalf("keep %d, crash at step %d: files %v, want %v", keep, at, got, want)
			}
			if err == nil {
				break
			}
		}
	}
}

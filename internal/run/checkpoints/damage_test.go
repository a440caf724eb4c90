package checkpoints

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/safetensors"
)

// oneLine reports whether an error is a single line that contains want.
func oneLine(err error, want string) bool {
	return err != nil && !strings.Contains(err.Error(), "\n") && strings.Contains(err.Error(), want)
}

// flipped returns a function that flips a bit in the bytes at these offsets. Negative offsets count from the end.
func flipped(at ...int) func([]byte) []byte {
	return func(b []byte) []byte {
		b = slices.Clone(b)
		for _, i := range at {
			if i < 0 {
				i += len(b)
			}
			b[i] ^= 4
		}
		return b
	}
}

// damage is a way to damage a file, and the expected report.
type damage struct {
	name   string
	file   string
	change func([]byte) []byte // nil: delete the file
	says   []string            // expected lines about the file
	shows  bool                // List also reports it
}

// The newest of two checkpoints is damaged, or a segment that it follows. A segment ends with two sections: one with
// two IDs, and one with a header of 16 bytes, two values, padding and a checksum.
var damages = []damage{
	{"magic", segmentName(20, 0), flipped(0), []string{", header: not a segment"}, false},
	{"header", segmentName(20, 0), flipped(33), []string{", header: header checksum mismatch"}, false},
	{"meta", segmentName(20, 0), flipped(100), []string{" (meta): section checksum mismatch"}, false},
	{"values", segmentName(20, 0), flipped(-16), []string{" (values of table s): section checksum mismatch"}, false},
	{
		"two places", segmentName(20, 1), flipped(-16, -56),
		[]string{" (row ids of table s): section checksum", " (values of table s): section checksum"},
		false,
	},
	{"last byte", segmentName(20, 1), flipped(-1), []string{" (values of table s): section checksum mismatch"}, false},
	{"zeros", segmentName(20, 1), flipped(-8), []string{" (values of table s): padding is not zero"}, false},
	{
		"cut by a byte", segmentName(20, 1), func(b []byte) []byte { return b[:len(b)-1] },
		[]string{", header: truncated: "},
		true,
	},
	{
		"a byte longer", segmentName(20, 1), func(b []byte) []byte { return append(slices.Clone(b), 0) },
		[]string{", header: 1 extra bytes follow its end"},
		true,
	},
	{
		"emptied", segmentName(20, 1), func([]byte) []byte { return nil },
		[]string{", header: truncated: 0 bytes"},
		true,
	},
	{"deleted", segmentName(20, 1), nil, []string{": it is missing"}, true},
	{
		"another version", segmentName(20, 1), func(b []byte) []byte {
			b = slices.Clone(b)
			binary.LittleEndian.PutUint16(b[8:], 9)
			return b
		}, []string{", header: written by another version of Perdure (format 9,"}, false,
	},
	{"what it follows", segmentName(10, 1), flipped(-16), []string{" (values of table s): section checksum"}, false},
	{"manifest", manifestName(20), flipped(-3), []string{": checksum mismatch"}, true},
	{
		"manifest cut", manifestName(20), func(b []byte) []byte { return b[:len(b)/2] },
		[]string{": truncated, or its first line was changed"},
		true,
	},
	{
		"manifest emptied", manifestName(20), func([]byte) []byte { return nil },
		[]string{`: it does not begin with "PERDURE CHECKPOINT "`},
		true,
	},
	{
		"newer manifest", manifestName(20),
		func(b []byte) []byte { return bytes.Replace(b, []byte("CHECKPOINT 1"), []byte("CHECKPOINT 9"), 1) },
		[]string{": written by another version of Perdure (format 9,"},
		true,
	},
	{
		"another manifest", manifestName(20), nil, // see TestDamage
		[]string{": it describes " + manifestName(10)}, true,
	},
}

// TestDamage damages a file in every way. Verify must name the file and the position. List must not report damage that
// only reading can reveal. If the newest checkpoint is damaged, the model of the previous one can still be exported,
// unless it needs the same file.
func TestDamage(t *testing.T) {
	for _, d := range damages {
		t.Run(d.name, func(t *testing.T) {
			f, fsys := kept(t, 2)
			switch {
			case d.name == "another manifest":
				write(t, fsys, d.file, read(t, fsys, manifestName(10)))
			case d.change == nil:
				must(t, fsys.Remove(path.Join("c", d.file)))
			default:
				write(t, fsys, d.file, d.change(read(t, fsys, d.file)))
			}
			var out bytes.Buffer
			if err := f.Verify(&out, false); !oneLine(err, "damaged") {
				t.Errorf("Verify: %v", err)
			}
			for _, says := range d.says {
				want := func(line string) bool {
					return strings.HasPrefix(line, "  "+d.file) && strings.Contains(line, says)
				}
				if !slices.ContainsFunc(strings.Split(out.String(), "\n"), want) {
					t.Errorf("no line with %s: %s in\n%s", d.file, says, &out)
				}
			}
			if n := strings.Count(out.String(), d.file); n != len(d.says) {
				t.Errorf("%d lines name the file; want %d:\n%s", n, len(d.says), &out)
			}
			shared := d.file == segmentName(10, 1)
			if old := "clock 10: complete: 2 shards, 2 segments, 13 rows in 2 tables\n"; strings.Contains(out.String(),
				old) == shared {
				t.Errorf("wrong report of clock 10:\n%s", &out)
			}
			out.Reset()
			if err := f.List(&out, false); (err != nil) != d.shows || d.shows && !oneLine(err, d.file) {
				t.Errorf("List: %v\n%s", err, &out)
			}
			to := filepath.Join(t.TempDir(), "model")
			out.Reset()
			if err := f.Export(&out, to, false, false); (err != nil) != shared {
				t.Errorf("Export: %v", err)
			} else if !shared {
				wantModel(t, to, 10)
			}
		})
	}
}

// wantModel checks that a file contains the model of a cut.
func wantModel(t *testing.T, file string, cut perdure.Clock) {
	t.Helper()
	b, err := os.ReadFile(file)
	must(t, err)
	tensors, meta, err := safetensors.Read(bytes.NewReader(b), int64(len(b)))
	must(t, err)
	var w []float32
	for shard := range perdure.ShardID(2) {
		var follows *checkpoint.FileRef
		if cut%20 == 0 {
			follows = new(checkpoint.FileRef)
		}
		w = append(w, segment(cut, shard, follows).Tables[0].Image.Planes[0][0]...)
	}
	got := map[string]safetensors.Tensor{}
	for _, one := range tensors {
		got[one.Name] = one
	}
	if !slices.Equal(got["w"].Data, w) || !slices.Equal(got["w"].Shape, []int64{9, 2}) {
		t.Errorf("clock %d: w is %v; want %v", cut, got["w"], w)
	}
	three, seven := value(cut, 3, 0), value(cut, 7, 0)
	if !slices.Equal(got["s/ids"].Ints, []int64{3, 7, 13, 17}) ||
		!slices.Equal(got["s"].Data, []float32{three, seven, three, seven}) {
		t.Errorf("clock %d: s is %v with ids %v", cut, got["s"], got["s/ids"])
	}
	if meta["format"] != "pt" || meta["workload"] != testJob.Workload || meta["clock"] != fmt.Sprint(cut) {
		t.Errorf("metadata %v", meta)
	}
}

// TestOddFolders checks that a directory without checkpoints is reported in one line.
func TestOddFolders(t *testing.T) {
	dir := t.TempDir()
	join := func(names ...string) string { return filepath.Join(append([]string{dir}, names...)...) }
	mkdir := func(names ...string) { must(t, os.MkdirAll(join(names...), 0o777)) }
	file := func(text string, names ...string) { must(t, os.WriteFile(join(names...), []byte(text), 0o666)) }
	mkdir("empty")
	mkdir("foreign")
	file("x", "foreign", "notes.txt")
	mkdir("begun", "checkpoint")
	file(`{"schema":1,"job":{"recovery":"resend:5","consistency":"bsp"}}`, "begun", "run.json")
	file("x", "begun", "checkpoint", segmentName(10, 0))
	mkdir("bare")
	file(`{"schema":1}`, "bare", "run.json")
	mkdir("none", "checkpoint")
	file(`{"schema":1,"job":{"recovery":"none","consistency":"bsp"}}`, "none", "run.json")
	mkdir("rows", "checkpoint")
	file(`{"schema":1,"job":{"recovery":"scar:20","consistency":"bsp"}}`, "rows", "run.json")
	mkdir("odd")
	file(`{"schema":1}`, "odd", "run.json")
	file("x", "odd", "checkpoint")
	mkdir("a@b")
	for name, want := range map[string]string{
		"nothing":               "directory " + join("nothing") + " does not exist; specify a run's directory",
		"nothing@7":             "directory " + join("nothing") + " does not exist; specify a run's directory",
		"empty@x":               "to choose the checkpoint of a clock, use " + join("empty") + "@CLOCK",
		"foreign/notes.txt":     "notes.txt is a file; specify",
		"empty":                 "/empty holds no checkpoint",
		"foreign":               "/foreign holds no checkpoint, but other files such as notes.txt",
		"begun":                 "/begun/checkpoint holds no checkpoint, only 1 file of an incomplete one",
		"begun/checkpoint":      "/begun/checkpoint holds no checkpoint, only 1 file of an incomplete one",
		"rows":                  "/rows/checkpoint holds no checkpoint: no rows have been saved yet",
		"begun@7":               "/begun/checkpoint holds no checkpoint",
		"bare":                  "/bare/checkpoint holds no checkpoint",
		"none":                  "/none/checkpoint holds no checkpoint: a run under none writes none",
		"odd":                   "/odd/checkpoint: not a directory",
		"a@b":                   "/a@b holds no checkpoint",
		"foreign/notes.txt@700": "is a file; specify",
	} {
		f, err := Open(join(filepath.FromSlash(name)))
		if err == nil {
			err = f.Verify(&bytes.Buffer{}, false)
		}
		if !oneLine(err, want) {
			t.Errorf("%s: %v; want %s", name, err, want)
		}
	}
}

// TestOpen checks that Open finds the run of a directory of checkpoints, even through a link, and the requested clock.
func TestOpen(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	run := filepath.Join(dir, "run")
	must(t, os.MkdirAll(filepath.Join(run, "checkpoint"), 0o777))
	must(t, os.WriteFile(filepath.Join(run, "run.json"), []byte(`{"schema":1}`), 0o666))
	link := filepath.Join(dir, "link")
	must(t, os.Symlink(filepath.Join(run, "checkpoint"), link))
	url := "file://" + filepath.ToSlash(run)
	for _, name := range []string{run, filepath.Join(run, "checkpoint"), link, url, url + "/checkpoint"} {
		for clock, suffix := range map[perdure.Clock]string{-1: "", 20: "@20"} {
			f, err := Open(name + suffix)
			must(t, err)
			if f.Run != run || (f.Clock == nil) != (clock < 0) || f.Clock != nil && *f.Clock != clock {
				t.Errorf("%s%s: the run is %s, the clock %v", name, suffix, f.Run, f.Clock)
			}
		}
	}
	alone := filepath.Join(dir, "checkpoint")
	must(t, os.Mkdir(alone, 0o777))
	for _, name := range []string{alone, "file://" + filepath.ToSlash(alone), "file:///nowhere/checkpoint"} {
		if f, err := Open(name); err != nil || f.Run != "" {
			t.Errorf("directory of checkpoints without a run: %v, %v", f, err)
		}
	}
}

//go:build unix

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
)

// damages are kinds of damage to a file.
var damages = map[string]func(t *testing.T, path string){
	"a bit flipped at the start":  flipped(func(int) int { return 0 }),
	"a bit flipped in the middle": flipped(func(n int) int { return n / 2 }),
	"a bit flipped at the end":    flipped(func(n int) int { return n - 1 }),
	"cut to half":                 shortened(func(n int64) int64 { return n / 2 }),
	"cut by a byte":               shortened(func(n int64) int64 { return n - 1 }),
	"emptied":                     shortened(func(int64) int64 { return 0 }),
	"a byte longer":               shortened(func(n int64) int64 { return n + 1 }),
	"deleted":                     replaced(func(string) error { return nil }),
	"a named pipe":                replaced(func(path string) error { return syscall.Mkfifo(path, 0o666) }),
	"a folder":                    replaced(func(path string) error { return os.Mkdir(path, 0o777) }),
	"a link to nothing":           replaced(func(path string) error { return os.Symlink("nothing-there", path) }),
	"a link to itself":            replaced(func(path string) error { return os.Symlink(path, path) }),
	"a link to /dev/zero":         replaced(func(path string) error { return os.Symlink("/dev/zero", path) }),
}

func flipped(at func(size int) int) func(*testing.T, string) {
	return func(t *testing.T, path string) {
		b, err := os.ReadFile(path)
		must(t, err)
		b[at(len(b))] ^= 4
		must(t, os.WriteFile(path, b, 0o666))
	}
}

func shortened(to func(size int64) int64) func(*testing.T, string) {
	return func(t *testing.T, path string) {
		info, err := os.Stat(path)
		must(t, err)
		must(t, os.Truncate(path, to(info.Size())))
	}
}

func replaced(by func(path string) error) func(*testing.T, string) {
	return func(t *testing.T, path string) {
		must(t, os.Remove(path))
		must(t, by(path))
	}
}

// TestDamagedRun: whatever the damage to a file that a run would resume from, --resume immediately rejects it with one
// line that names the file, before a directory is created. The run is real, and its checkpoint has segments that build
// on others.
func TestDamagedRun(t *testing.T) {
	t.Parallel()
	job := []string{
		"train", "mf", "--quiet", "--rank", "8", "--whole-users", "--clock-fraction", "0.001", "--workers", "2",
		"--shards", "4", "--recovery", "resend:1", "--eval-every", "0", "--clocks",
	}
	_, dir := trained(t, append(job, "4")...)
	folder := filepath.Join(dir, "checkpoint")
	m, err := checkpoint.Latest(store.NewDir(disk.OS(), folder))
	must(t, err)
	i := slices.IndexFunc(m.Segments, func(r checkpoint.SegmentRef) bool { return len(r.Base) > 0 })
	if i < 0 {
		t.Fatalf("no segment builds on another: %+v", m.Segments)
	}
	manifests, err := filepath.Glob(filepath.Join(folder, "*.manifest"))
	must(t, err)
	for kind, path := range map[string]string{
		"manifest": manifests[len(manifests)-1], "last segment": filepath.Join(folder, m.Segments[i].File),
		"first segment": filepath.Join(folder, m.Segments[i].Base[0].File), "run.json": filepath.Join(dir, "run.json"),
	} {
		good, err := os.ReadFile(path)
		must(t, err)
		for how, damage := range damages {
			if kind == "run.json" && (strings.Contains(how, "flipped") || how == "cut by a byte") {
				continue // a text file without a checksum: see TestOddRunJSON
			}
			damage(t, path)
			_, err := clocks(6).Resume(dir)
			must(t, os.RemoveAll(path))
			must(t, os.WriteFile(path, good, 0o666))
			if err == nil || strings.Contains(err.Error(), "\n") ||
				!strings.Contains(err.Error(), filepath.Base(path)) && !strings.Contains(err.Error(), folder) {
				t.Errorf("%s, %s: %v; want one line that names the file", kind, how, err)
			}
		}
	}
	// A link to the intact file is as good as the file.
	moved := filepath.Join(t.TempDir(), "elsewhere")
	segment := filepath.Join(folder, m.Segments[i].File)
	must(t, os.Rename(segment, moved))
	must(t, os.Symlink(moved, segment))
	s, _ := trained(t, "train", "--quiet", "--resume", dir, "--clocks", "6")
	if want, _ := trained(t, append(job, "6")...); *s.ModelSHA256 != *want.ModelSHA256 {
		t.Errorf("the model is %s, want %s", *s.ModelSHA256, *want.ModelSHA256)
	}
}

// TestOddData: data files that are not regular files are rejected immediately by name.
func TestOddData(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe.csv")
	must(t, syscall.Mkfifo(pipe, 0o666))
	images := filepath.Join(dir, "images")
	must(t, os.CopyFS(images, os.DirFS(pictures)))
	labels := filepath.Join(images, "t10k-labels-idx1-ubyte")
	must(t, os.Remove(labels))
	must(t, syscall.Mkfifo(labels, 0o666))
	trees := filepath.Join(dir, "trees")
	must(t, os.Mkdir(trees, 0o777))
	must(t, os.Symlink("/dev/zero", filepath.Join(trees, "covtrain.csv")))
	zero := filepath.Join(dir, "zero.csv")
	must(t, os.Symlink("/dev/zero", zero))
	for _, c := range []struct{ workload, data, want string }{
		{"mf", pipe, "pipe.csv"},
		{"mf", zero, "zero.csv"},
		{"mf", "/dev/zero", "/dev/zero"},
		{"softmax", images, "t10k-labels-idx1-ubyte"},
		{"softmax", trees, "covtrain.csv"},
	} {
		wantRefused(t, exitError, regexp.QuoteMeta(c.want)+".*not a regular file",
			"train", c.workload, "--data", c.data, "--out", filepath.Join(dir, "out"))
	}
	for _, args := range []string{"train --from /dev/zero", "train --from " + pipe} {
		wantRefused(t, exitError, "not a regular file", strings.Fields(args)...)
	}
	for _, args := range []string{
		"train -f PIPE", "up --file=PIPE", "study PIPE", "coordinator --dir DIR/c --job PIPE",
		"host --dir DIR/h --join @PIPE", "train --init PIPE",
		"train mf --recovery stateless --log nats://127.0.0.1:1?creds=PIPE",
	} {
		args = strings.NewReplacer("PIPE", pipe, "DIR", dir).Replace(args)
		wantRefused(t, exitUsage, "it is a named pipe, not a regular file", strings.Fields(args)...)
	}
}

// TestDamagedLogFiles: inspecting a log whose files are not regular files ends immediately with a line that names the
// stream or the file. A missing index is no error, because it is rebuilt.
func TestDamagedLogFiles(t *testing.T) {
	t.Parallel()
	_, dir := trained(t, small("--recovery", "stateless", "--clocks", "10", "--shards", "2")...)
	streams, err := filepath.Glob(filepath.Join(dir, "log", "jetstream", "*", "streams", "*"))
	must(t, err)
	if len(streams) != 2 {
		t.Fatalf("want 2 streams, have %v", streams)
	}
	for _, name := range []string{"msgs/1.blk", "meta.inf", "msgs/index.db"} {
		path := filepath.Join(streams[0], filepath.FromSlash(name))
		good, err := os.ReadFile(path)
		must(t, err)
		for _, how := range []string{"a named pipe", "a link to /dev/zero", "a link to nothing"} {
			damages[how](t, path)
			code, _, stderr := invoke(t, "log", "verify", dir)
			must(t, os.Remove(path))
			must(t, os.WriteFile(path, good, 0o666))
			healed := name == "msgs/index.db" && code == 0
			if !healed && (code != 1 || !strings.Contains(stderr, filepath.Base(streams[0])) ||
				strings.Count(stderr, "\n") != 1) {
				t.Errorf("%s, %s: exit code %d and %q", name, how, code, stderr)
			}
		}
	}
}

package updatelog

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// content returns a description of each file in a directory, including its contents, by name.
func content(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		must(t, err)
		files[path] = fmt.Sprint(info.Mode())
		if d.Type().IsRegular() {
			b, err := os.ReadFile(path)
			must(t, err)
			files[path] += fmt.Sprintf(" %v %x", info.ModTime(), sha256.Sum256(b))
		}
		return nil
	}))
	return files
}

// account returns a line for each stream that an inspection finds, with its damage.
func account(t *testing.T, dir string) string {
	t.Helper()
	i, err := InspectFolder(t.Context(), dir, time.Minute, DialOptions{})
	must(t, err)
	streams, err := i.Streams(t.Context())
	must(t, err)
	var b strings.Builder
	for _, s := range streams {
		records := 0
		err := i.Records(t.Context(), s, func(Record) error { records++; return nil })
		if (err != nil || s.Damage != nil) && !errors.Is(err, ErrDamaged) ||
			err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("shard %d: %v and %v", s.Shard, s.Damage, err)
		}
		fmt.Fprintf(&b, "shard %d: %d to %d, %d records: %v; %v\n", s.Shard, s.First, s.Next, records, s.Damage, err)
	}
	must(t, i.Close())
	return b.String()
}

// wantAccount inspects a log twice. Both inspections must find the same, change nothing, and leave no temporary files.
func wantAccount(t *testing.T, dir string, parts ...string) {
	t.Helper()
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	before := content(t, dir)
	first := account(t, dir)
	for _, part := range parts {
		if !strings.Contains(first, part) {
			t.Errorf("without %q:\n%s", part, first)
		}
	}
	if second := account(t, dir); second != first {
		t.Errorf("first:\n%s\nthen:\n%s", first, second)
	}
	after := content(t, dir)
	for path := range before {
		if before[path] != after[path] {
			t.Errorf("%s changed from %q to %q", path, before[path], after[path])
		}
	}
	if len(after) != len(before) {
		t.Errorf("%d files and directories before, %d after", len(before), len(after))
	}
	if left := content(t, temporary); len(left) != 1 {
		t.Errorf("temporary files are left: %v", left)
	}
}

// spoil returns a func that changes the bytes of a file.
func spoil(change func(b []byte) []byte, name ...string) func(t *testing.T, dir string) {
	return func(t *testing.T, dir string) {
		file := filepath.Join(append([]string{dir, streamsDir}, name...)...)
		b, err := os.ReadFile(file)
		must(t, err)
		must(t, os.WriteFile(file, change(b), 0o600))
	}
}

// remove returns a func that removes a file or a directory.
func remove(name ...string) func(t *testing.T, dir string) {
	return func(t *testing.T, dir string) {
		path := filepath.Join(append([]string{dir, streamsDir}, name...)...)
		_, err := os.Stat(path)
		must(t, err)
		must(t, os.RemoveAll(path))
	}
}

func empty([]byte) []byte { return nil }

const wholeLog = "shard 0: 1 to 1, 0 records: <nil>; <nil>\nshard 1: 1 to 4, 3 records: <nil>; <nil>\n"

// damage describes a change to a copy of a log's directory and the text that an inspection must report.
type damage struct {
	from string
	do   func(t *testing.T, dir string)
	want string
}

// damages returns the cases for the directories of a killed and of a gracefully closed log, by name.
func damages(killed, closed string) map[string]damage {
	flip := func(b []byte) []byte { b[strings.Index(string(b), "second")]++; return b }
	half := func(b []byte) []byte { return append(b, b[:60]...) }
	zero, one := StreamName(job, 0), StreamName(job, 1)
	return map[string]damage{
		"killed":                {killed, func(*testing.T, string) {}, wholeLog},
		"closed":                {closed, func(*testing.T, string) {}, wholeLog},
		"killed, half a record": {killed, spoil(half, one, "msgs", "1.blk"), wholeLog},
		"killed, a record flipped": {
			killed, spoil(flip, one, "msgs", "1.blk"),
			"1 records: updatelog: damaged: stream " + one + ": " + "DIR/" + streamsDir + "/" + one +
				"/msgs/1.blk is damaged after ",
		},
		"closed, a record flipped": {
			closed, spoil(flip, one, "msgs", "1.blk"),
			"record 2 of stream " + one + " (shard 1) is damaged: ",
		},
		"killed, the file gone": {
			killed, remove(one, "msgs", "1.blk"),
			"stream " + one + ": no record file in DIR/",
		},
		"closed, the file gone": {
			closed, remove(one, "msgs", "1.blk"),
			"stream " + one + ": no record file in DIR/",
		},
		"closed, the file empty": {
			closed, spoil(empty, one, "msgs", "1.blk"),
			"stream " + one + ": its index.db lists record 3 as the last one, but the last record is 0;",
		},
		"closed, the end gone": {
			closed,
			spoil(func(b []byte) []byte { return b[:len(b)-2] }, one, "msgs", "1.blk"), "the last record is 2;",
		},
		"closed, the index gone": {closed, remove(one, "msgs", "index.db"), wholeLog},
		"closed, the index damaged": {
			closed,
			spoil(func(b []byte) []byte { b[9]++; return b }, one, "msgs", "index.db"), wholeLog,
		},
		"killed, the folder gone": {killed, remove(zero), "stream " + zero + ": it is gone, with all of its records;"},
		"a folder of any number": {killed, func(t *testing.T, dir string) {
			must(t, os.Mkdir(filepath.Join(dir, streamsDir, "perdure-x-999999999999"), 0o700))
		}, "shard 999999999999: 1 to 1, "},
		"closed, the folder gone": {
			closed, remove(zero),
			"stream " + zero + ": it is gone, with all of its records;",
		},
		"closed, the records gone": {
			closed, remove(one, "msgs"),
			"stream " + one + ": no record file in DIR/",
		},
		"killed, what it is cut short": {
			killed, spoil(func(b []byte) []byte { return b[:100] }, one, "meta.inf"),
			"stream " + one + " (shard 1) cannot be opened",
		},
	}
}

// TestInspectTwice inspects unserved logs, some of them killed or damaged. The result is the same every time, and
// nothing changes.
func TestInspectTwice(t *testing.T) {
	w := newServerBackend(t, SyncInterval)
	l := open1(t, w)
	for _, text := range []string{"first", "second", "third"} {
		put1(t, l, text)
	}
	killed, closed := t.TempDir(), t.TempDir()
	must(t, os.CopyFS(killed, os.DirFS(w.dir)))
	w.restart(t, func() { must(t, os.CopyFS(closed, os.DirFS(w.dir))) })
	for name, c := range damages(killed, closed) {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			must(t, os.CopyFS(dir, os.DirFS(c.from)))
			c.do(t, dir)
			wantAccount(t, dir, strings.ReplaceAll(c.want, "DIR", dir))
		})
	}
}

// TestInspectFiles inspects a log of several files whose first file is emptied or removed, and a trimmed log, which is
// not damage.
func TestInspectFiles(t *testing.T) {
	w := newServerBackend(t, SyncInterval)
	l := open1(t, w)
	for i := range 3 {
		put1(t, l, pattern(i, 8<<20))
	}
	copied := func() string {
		for {
			dir := t.TempDir()
			err := os.CopyFS(dir, os.DirFS(w.dir))
			if errors.Is(err, fs.ErrNotExist) {
				continue // the server deletes trimmed files concurrently
			}
			must(t, err)
			return dir
		}
	}
	dir, msgs := copied(), filepath.Join(StreamName(job, 1), "msgs")
	files, _ := filepath.Glob(filepath.Join(dir, streamsDir, msgs, "*.blk"))
	if len(files) < 3 {
		t.Fatalf("the stream has only the files %v", files)
	}
	spoil(empty, msgs, "1.blk")(t, dir)
	wantAccount(t, dir, msgs+"/1.blk is empty;")
	dir = copied()
	spoil(empty, msgs, "2.blk")(t, dir)
	wantAccount(t, dir, "is missing; later records cannot be replayed")
	dir = copied()
	remove(msgs, "2.blk")(t, dir)
	wantAccount(t, dir, "is missing; later records cannot be replayed")

	_, next, err := l.Extent(t.Context(), 1)
	must(t, err)
	for _, to := range []Position{2, next / 2, next - 1, next} {
		must(t, l.Trim(t.Context(), 1, to))
		want := fmt.Sprintf("shard 1: %d to %d, %d records: <nil>; <nil>\n", to, next, next-to)
		wantAccount(t, copied(), want)
		w.restart(t, func() { wantAccount(t, copied(), want) })
		wantAccount(t, copied(), want)
	}
}

// TestInspectAddress checks the errors for a URL file that is empty or invalid, and for a served log whose address is
// not written yet.
func TestInspectAddress(t *testing.T) {
	w := newServerBackend(t, SyncInterval)
	put1(t, open1(t, w), "a")
	file := filepath.Join(w.dir, URLFile)
	right, err := os.ReadFile(file)
	must(t, err)
	look := func(url string) error {
		must(t, os.WriteFile(file, []byte(url), 0o600))
		i, err := InspectFolder(t.Context(), w.dir, time.Minute, DialOptions{})
		if err == nil {
			must(t, i.Close())
		}
		return err
	}
	for _, bad := range []string{
		"\n", "rubbish\n", "\x00\x00\x00\n", "http://127.0.0.1:1\n", "nats://\n",
		"nats://%zz@x\n",
	} {
		wantError(t, fmt.Sprintf("%q of a log that is served", bad), look(bad), ErrRefused,
			file+" does not contain a valid log address")
	}
	wantError(t, "a starting log", look(""), ErrAway,
		"write its address into its empty file url again")
	must(t, look(string(right)))
	w.restart(t, func() {
		for _, bad := range []string{"", "nats://x@127.0.0.1:1", "\n", "rubbish\n"} {
			wantError(t, fmt.Sprintf("%q of a log that is not served", bad), look(bad), ErrRefused,
				file+" does not contain a valid log address")
		}
		must(t, look("nats://any@127.0.0.1:1\n"))
		must(t, look(string(right)))
	})
}

// TestInspectCopy checks that a failed copy is reported in one line and leaves no files.
func TestInspectCopy(t *testing.T) {
	w := newServerBackend(t, SyncInterval)
	put1(t, open1(t, w), "a")
	w.restart(t, func() {
		t.Setenv("TMPDIR", filepath.Join(w.dir, "nowhere"))
		_, err := InspectFolder(t.Context(), w.dir, time.Minute, DialOptions{})
		wantError(t, "no temporary directory", err, ErrRefused, "TMPDIR")
		temporary := t.TempDir()
		t.Setenv("TMPDIR", temporary)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := InspectFolder(ctx, w.dir, time.Minute, DialOptions{}); !errors.Is(err, context.Canceled) {
			t.Errorf("a canceled inspection returns %v", err)
		}
		if left := content(t, temporary); len(left) != 1 {
			t.Errorf("temporary files are left: %v", left)
		}
	})
}

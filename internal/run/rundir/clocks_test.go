package rundir

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// TestReadRecord: a reader gets every complete line once, in pieces of limited size.
func TestReadRecord(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, string(ClocksRecord))
	must(t, os.WriteFile(path, []byte("one\ntwo\nthree\nincompl"), 0o666))
	var got []string
	at := int64(0)
	for {
		lines, next, err := ReadRecord(dir, ClocksRecord, at, 8)
		must(t, err)
		if at = next; len(lines) == 0 {
			break
		}
		got = append(got, string(lines))
	}
	if len(got) != 2 || got[0] != "one\ntwo\n" || got[1] != "three\n" || at != 14 {
		t.Errorf("read %q, up to %d", got, at)
	}
	for from, want := range map[int64]int64{8: 14, 14: 14} { // the second line is not complete
		if lines, next, err := ReadRecord(dir, ClocksRecord, from, 2); err != nil || len(lines) > 0 || next != want {
			t.Errorf("a line that exceeds the limit, from %d: %q, %d, %v", from, lines, next, err)
		}
	}
	if _, _, err := ReadRecord(dir, ClocksRecord, 100, 8); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("past the end: %v", err)
	}
	if _, _, err := ReadRecord(dir, EventsRecord, 0, 8); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing record: %v", err)
	}
}

// TestReopenOlder: a run that began without clocks.csv gets the file with its header once.
func TestReopenOlder(t *testing.T) {
	d := create1(t)
	must(t, d.Close())
	path := filepath.Join(d.Path(), clocksFile)
	must(t, os.Remove(path))
	for range 2 {
		again, err := Reopen(d.Path())
		must(t, err)
		must(t, again.Close())
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != clocksHeader+"\n" {
		t.Errorf("%q, %v", b, err)
	}
}

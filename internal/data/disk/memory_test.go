package disk

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
)

func seeded(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }

// outcomes crashes a disk that prepare has set up, with many seeds. It returns how often state reported each result.
func outcomes(t *testing.T, prepare func(m *Memory), state func(m *Memory) string) map[string]int {
	t.Helper()
	seen := map[string]int{}
	for seed := range uint64(300) {
		m := NewMemory()
		prepare(m)
		m.Crash(seeded(seed))
		seen[state(m)]++
	}
	return seen
}

func contentOf(m *Memory, name string) string {
	b, err := m.ReadFile(name)
	if err != nil {
		return "missing"
	}
	return string(b)
}

func wantExactly(t *testing.T, got map[string]int, want ...string) {
	t.Helper()
	for _, w := range want {
		if got[w] == 0 {
			t.Errorf("no crash gives %q; they give %v", w, got)
		}
	}
	if len(got) != len(want) {
		t.Errorf("crashes give %v; want each of %q and no other", got, want)
	}
}

func TestCrashKeepsWhatWasSynced(t *testing.T) {
	got := outcomes(t, func(m *Memory) {
		put(t, m, "a", "ab")
		must(t, m.SyncDir("."))
	}, func(m *Memory) string { return contentOf(m, "a") })
	wantExactly(t, got, "ab")
}

func TestCrashLosesUnsyncedNames(t *testing.T) {
	got := outcomes(t, func(m *Memory) { put(t, m, "a", "ab") },
		func(m *Memory) string { return contentOf(m, "a") })
	wantExactly(t, got, "ab", "missing")
}

func TestCrashKeepsAPrefixOfUnsyncedBytes(t *testing.T) {
	got := outcomes(t, func(m *Memory) {
		f, err := m.Create("a")
		must(t, err)
		must(t, m.SyncDir("."))
		_, err = io.WriteString(f, "ab")
		must(t, err)
		must(t, f.Sync())
		_, err = io.WriteString(f, "cd")
		must(t, err)
	}, func(m *Memory) string { return contentOf(m, "a") })
	wantExactly(t, got, "ab", "abc", "abcd", "ab\x00", "ab\x00\x00", "abc\x00")
}

func TestCrashOfATruncatedFile(t *testing.T) {
	got := outcomes(t, func(m *Memory) {
		put(t, m, "a", "old")
		must(t, m.SyncDir("."))
		f, err := m.Create("a")
		must(t, err)
		_, err = io.WriteString(f, "n")
		must(t, err)
	}, func(m *Memory) string { return contentOf(m, "a") })
	wantExactly(t, got, "old", "", "n", "\x00")
}

func TestCrashKeepsAnyChangesOfAFolder(t *testing.T) {
	got := outcomes(t, func(m *Memory) {
		put(t, m, "a", "1")
		put(t, m, "b", "2")
		must(t, m.SyncDir("."))
		must(t, m.Rename("a", "b"))
		put(t, m, "c", "3")
	}, func(m *Memory) string {
		return contentOf(m, "a") + " " + contentOf(m, "b") + " " + contentOf(m, "c")
	})
	wantExactly(t, got, "1 2 missing", "missing 1 missing", "1 2 3", "missing 1 3")
}

func TestCrashIsAFunctionOfItsSeed(t *testing.T) {
	for seed := range uint64(20) {
		run := func() string {
			m := NewMemory()
			for i := range 10 {
				f, err := m.Create(fmt.Sprint(i))
				must(t, err)
				_, err = io.WriteString(f, "some content")
				must(t, err)
			}
			m.Crash(seeded(seed))
			names, err := m.List(".")
			must(t, err)
			for i, n := range names {
				names[i] = n + "=" + contentOf(m, n)
			}
			return strings.Join(names, ",")
		}
		if a, b := run(), run(); a != b {
			t.Fatalf("seed %d gives %q, then %q", seed, a, b)
		}
	}
}

func TestNothingWorksAfterTheStepThatFails(t *testing.T) {
	m := NewMemory()
	f, err := m.Create("a")
	must(t, err)
	m.FailAfter(2)
	_, err = f.Write([]byte("x"))
	must(t, err)
	_, listErr := m.List(".")
	must(t, listErr)
	syncErr := f.Sync()
	_, writeErr := f.Write([]byte("y"))
	_, readErr := m.ReadFile("a")
	_, listErr = m.List(".")
	for what, err := range map[string]error{
		"sync": syncErr, "write": writeErr, "read": readErr, "list": listErr,
		"rename": m.Rename("a", "b"), "remove": m.Remove("a"), "syncdir": m.SyncDir("."),
	} {
		if !errors.Is(err, ErrCrashed) {
			t.Errorf("%s gives %v", what, err)
		}
	}
	m.FailAfter(0)
	wantFile(t, m, "a", "x")
	m.Crash(seeded(1))
	if _, err := f.Write([]byte("z")); !errors.Is(err, ErrCrashed) {
		t.Errorf("a file that was open during the crash still accepts writes: %v", err)
	}
}

func TestLocksEndWithTheirProcess(t *testing.T) {
	for what, die := range map[string]func(m *Memory){
		"power cut":       func(m *Memory) { m.Crash(seeded(1)) },
		"process's death": func(m *Memory) { m.FailAfter(0) },
	} {
		m := NewMemory()
		held, err := m.Lock("lock", "me")
		must(t, err)
		m.FailAfter(1)
		if err := m.MkdirAll("a"); !errors.Is(err, ErrCrashed) {
			t.Fatal(err)
		}
		_, err = m.Lock("lock", "you")
		if !errors.Is(err, ErrCrashed) || !errors.Is(held.CheckHeld(), ErrCrashed) {
			t.Errorf("after a crash, Lock gives %v, Held gives %v", err, held.CheckHeld())
		}
		die(m)
		next, err := m.Lock("lock", "you")
		must(t, err)
		if held.CheckHeld() == nil {
			t.Errorf("a lock survives a %s", what)
		}
		must(t, held.Close())
		must(t, next.CheckHeld())
	}
}

func TestFullDisk(t *testing.T) {
	m := NewMemory()
	put(t, m, "old", "12345")
	m.SetLimit(10)
	err := WriteFile(m, "new", func(w io.Writer) error {
		_, err := io.WriteString(w, "123456")
		return err
	})
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "new") {
		t.Errorf("a full disk gives %v", err)
	}
	wantNames(t, m, ".", "old")
	m.SetLimit(11)
	must(t, WriteFile(m, "new", func(w io.Writer) error {
		_, err := io.WriteString(w, "123456")
		return err
	}))
}

// replaceEverywhere crashes replace at each of its steps with many seeds. It returns the contents that are neither old
// nor new, or old after a success.
func replaceEverywhere(t *testing.T, replace func(m *Memory) error) (bad []string) {
	t.Helper()
	for step := 1; ; step++ {
		done := false
		for seed := range uint64(40) {
			m := NewMemory()
			put(t, m, "a", "old")
			must(t, m.SyncDir("."))
			m.FailAfter(step)
			err := replace(m)
			if err != nil && !errors.Is(err, ErrCrashed) {
				t.Fatal(err)
			}
			done = err == nil
			m.Crash(seeded(seed))
			if got := contentOf(m, "a"); got != "new content" && (done || got != "old") {
				bad = append(bad, fmt.Sprintf("step %d, seed %d: %q", step, seed, got))
			}
		}
		if done {
			return bad
		}
	}
}

func writeNew(w io.Writer) error {
	_, err := io.WriteString(w, "new content")
	return err
}

func TestWriteFileCrashesAtEveryStep(t *testing.T) {
	if bad := replaceEverywhere(t, func(m *Memory) error { return WriteFile(m, "a", writeNew) }); bad != nil {
		t.Error(bad)
	}
}

// Negative controls: the same harness must detect every missing sync; otherwise the test above proves nothing.
func TestCrashesCatchMissingSyncs(t *testing.T) {
	write := func(m *Memory, name string, sync bool) error {
		f, err := m.Create(name)
		if err != nil {
			return err
		}
		if err := writeNew(f); err != nil || !sync {
			return err
		}
		return f.Sync()
	}
	for what, replace := range map[string]func(m *Memory) error{
		"in place": func(m *Memory) error { return write(m, "a", true) },
		"without sync": func(m *Memory) error {
			if err := write(m, "t", false); err != nil {
				return err
			}
			if err := m.Rename("t", "a"); err != nil {
				return err
			}
			return m.SyncDir(".")
		},
		"without syncing the folder": func(m *Memory) error {
			if err := write(m, "t", true); err != nil {
				return err
			}
			return m.Rename("t", "a")
		},
	} {
		if bad := replaceEverywhere(t, replace); bad == nil {
			t.Errorf("replacing a file %s was not detected", what)
		}
	}
}

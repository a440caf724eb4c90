package failurecost

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// pretend makes this test binary act as the program that is run: it prints its arguments and creates the directory that
// they end with.
const pretend = "FAILURECOST_TEST_PRETEND"

func TestMain(m *testing.M) {
	if os.Getenv(pretend) == "" {
		os.Exit(m.Run())
	}
	if slices.Contains(os.Args, "hang") {
		<-context.Background().Done()
	}
	_, _ = io.WriteString(os.Stdout, strings.Join(os.Args[1:3], " "))
	dir := os.Args[len(os.Args)-1]
	if os.Mkdir(dir, 0o777) != nil || os.WriteFile(filepath.Join(dir, "run.json"),
		[]byte(`{"version": "of a test"}`), 0o666) != nil {
		os.Exit(1)
	}
}

// TestRunProgram checks that leftovers are removed and the output is returned.
func TestRunProgram(t *testing.T) {
	t.Setenv(pretend, "yes")
	t.Setenv("GORACE", "atexit_sleep_ms=0") // else each process sleeps for a second at its end
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "runs", "first")
	args := []string{"train", "softmax", dir}
	if err := os.MkdirAll(filepath.Join(dir, "left"), 0o777); err != nil {
		t.Fatal(err)
	}
	output, late, err := RunProgram(context.Background(), self, args, dir, time.Minute)
	if err != nil || late || output != "train softmax" {
		t.Errorf("%q, late %v, %v", output, late, err)
	}
	if _, late, err := RunProgram(context.Background(), self, []string{"hang"}, dir, time.Millisecond); !late ||
		err == nil {
		t.Errorf("hanging program: late %v, %v", late, err)
	}
}

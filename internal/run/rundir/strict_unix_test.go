//go:build unix

package rundir

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestReadRunOddFiles checks that special files are rejected immediately, by name.
func TestReadRunOddFiles(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	must(t, syscall.Mkfifo(pipe, 0o666))
	link, lost := filepath.Join(dir, "link"), filepath.Join(dir, "lost")
	must(t, os.Symlink("/dev/zero", link))
	must(t, os.Symlink(filepath.Join(dir, "nothing"), lost))
	long := filepath.Join(dir, "long")
	must(t, os.WriteFile(long, nil, 0o666))
	must(t, os.Truncate(long, 1<<40))
	for file, want := range map[string]string{
		"/dev/zero": "a device, not a regular file", link: "a device, not a regular file",
		pipe: "a named pipe, not a regular file",
		lost: "no such file", dir: "is a directory", long: "more than 67108864 bytes",
	} {
		err := ReadRun(file, &asked{})
		if err == nil || !strings.HasPrefix(err.Error(), file+" is not a run's settings file: ") ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %s", file, err, want)
		}
	}
}

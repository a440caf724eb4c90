package study

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Folder is a run's folder in parent: its name ends in a hash of the arguments, so
// that a run with others has another.
func Folder(parent, name string, args []string) string {
	sum := sha256.Sum256([]byte(strings.Join(args, "\n")))
	return filepath.Join(parent, fmt.Sprintf("%s-%x", name, sum[:4]))
}

// Run runs program with args and --out folder, and returns what it printed. What an
// earlier attempt left in the folder is removed. A program that takes longer than
// timeout is asked to end: late. err is the program's, or the system's.
func Run(
	ctx context.Context, program string, args []string, folder string, timeout time.Duration,
) (output string, late bool, err error) {
	if err := os.RemoveAll(folder); err != nil {
		return "", false, err
	}
	if err := os.MkdirAll(filepath.Dir(folder), 0o777); err != nil {
		return "", false, err
	}
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	command := exec.CommandContext(limited, program, append(args, "--out", folder)...)
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) } // it ends its own processes
	command.WaitDelay = 10 * time.Second
	text, err := command.CombinedOutput()
	return string(text), limited.Err() != nil, err
}

// Version is the version of the program that a run's folder is of; "": the run ended
// before it wrote that down.
func Version(folder string) (string, error) {
	file := filepath.Join(folder, "run.json")
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	var asked struct {
		Version string `json:"version"`
	}
	if err == nil {
		err = json.Unmarshal(text, &asked)
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", file, err)
	}
	return asked.Version, nil
}

// Sweep does what is to be done for each run, in their order, and prints a line of
// what do says of it and how long the others will take, by weights that grow with
// the time of a run. The first error ends it.
func Sweep[R any](screen io.Writer, runs []R, weight func(R) float64, do func(R) (line string, err error)) error {
	left, done := 0.0, 0.0
	for _, r := range runs {
		left += weight(r)
	}
	started := time.Now()
	for i, r := range runs {
		line, err := do(r)
		if err != nil {
			return err
		}
		done, left = done+weight(r), left-weight(r)
		wait := time.Duration(float64(time.Since(started)) * left / done)
		fmt.Fprintf(screen, "%4d/%d  %s; %s left\n", i+1, len(runs), line, Roughly(wait))
	}
	return nil
}

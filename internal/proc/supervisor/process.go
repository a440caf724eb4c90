package supervisor

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/perdure/perdure/internal/data/disk"
)

// startLocked starts the place's process. The caller must hold group.mu.
func (k *child) startLocked() (err error) {
	if len(k.spec.Command) == 0 {
		return errors.New("no command")
	}
	cmd := exec.Command(k.spec.Command[0], k.spec.Command[1:]...)
	line := fmt.Sprintf("%s=%d:%d", lifelineEnv, firstFile+len(k.spec.Files), os.Getpid())
	cmd.Env = append(slices.Concat(os.Environ(), k.spec.Env), line)
	cmd.ExtraFiles = append(slices.Clone(k.spec.Files), k.group.lifeline)
	cmd.SysProcAttr = processAttributes()
	if k.spec.Output != nil {
		cmd.Stdout, cmd.Stderr = k.spec.Output, k.spec.Output
	}
	if k.spec.LogPath != "" {
		log, err := k.openLog()
		if err != nil {
			return err
		}
		defer log.Close() // the process has its own descriptor, and this process buffers nothing
		cmd.Stdout, cmd.Stderr = log, log
	}
	if err := k.group.onThread(cmd.Start); err != nil {
		return err
	}
	k.cmd, k.used, k.born = cmd, Usage{}, time.Now()
	k.starts++
	return nil
}

// openLog opens the log for the place's next process and writes a header line. The process writes to the file directly,
// not through a pipe to the supervisor. So no output is lost and no process blocks if the supervisor is slow or dead.
func (k *child) openLog() (*os.File, error) {
	log, err := os.OpenFile(k.spec.LogPath, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	_, err = fmt.Fprintf(log, "=== %s: process %d started at %s\n", k.id, k.starts+1,
		time.Now().UTC().Format(time.RFC3339Nano))
	if err == nil || disk.IsFull(err) { // a full disk must not prevent a process from running
		k.logStart, err = log.Seek(0, io.SeekEnd)
	}
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	return log, nil
}

// wait waits for the place's process to end.
func (k *child) wait() Exit {
	g := k.group
	g.mu.Lock()
	cmd := k.cmd
	g.mu.Unlock()
	err := cmd.Wait() // may be an *exec.ExitError; ProcessState below has the details
	e := Exit{Role: k.spec.Role, Index: k.spec.Index, PID: cmd.Process.Pid, Code: -1, At: time.Now()}

	g.mu.Lock()
	e.Uptime = e.At.Sub(k.born)
	k.cmd = nil
	if s := cmd.ProcessState; s != nil {
		k.used.CPU = s.UserTime() + s.SystemTime()
		g.spent[k.spec.Role] = g.spent[k.spec.Role].plus(k.used)
	}
	g.mu.Unlock()

	if s := cmd.ProcessState; s == nil {
		e.Description = fmt.Sprintf("lost: cannot wait for the process: %v", err)
	} else if e.Code, e.Signal = s.ExitCode(), signalOf(s); e.Signal != "" {
		e.Description = "killed by " + e.Signal
	} else {
		e.Description = fmt.Sprintf("ended with code %d", e.Code)
	}
	if k.spec.LogPath != "" {
		e.LastLine, e.Tail = lastLines(k.spec.LogPath, k.logStart)
	}
	return e
}

// signalLocked sends a signal to the place's process. The caller must hold group.mu.
func (k *child) signalLocked(sig os.Signal) error {
	if k.cmd == nil {
		return fmt.Errorf("%w: %s", ErrNotRunning, k.id)
	}
	err := k.cmd.Process.Signal(sig)
	if errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("%w: %s", ErrNotRunning, k.id)
	}
	if err != nil {
		return fmt.Errorf("supervisor: signal %s: %w", k.id, err)
	}
	return nil
}

// pidLocked returns the ID of the place's process, or 0. The caller must hold group.mu.
func (k *child) pidLocked() int {
	if k.cmd == nil {
		return 0
	}
	return k.cmd.Process.Pid
}

const (
	tailBytes    = 256 << 10 // enough for a panic with the stacks of many goroutines
	maxLineBytes = 500
	// tailLines is enough for a traceback that includes the causing error.
	tailLines = 20
)

// lastLines reads a log from the given byte on. It returns the line that explains why the process ended, and the last
// lines.
//
// The explanation is the last line with a letter or a digit, with two exceptions. If Go's runtime ended the process, it
// is the line with the reason. If a Python launcher only reports that one of its processes failed, it is that process's
// exception. Both results are "" if there are no lines or the log cannot be read.
func lastLines(path string, from int64) (last, tail string) {
	f, err := os.Open(path)
	if err != nil {
		return "", ""
	}
	defer f.Close() // opened read-only
	if end, err := f.Seek(0, io.SeekEnd); err == nil {
		from = max(from, end-tailBytes)
	}
	text, err := io.ReadAll(io.NewSectionReader(f, from, tailBytes))
	if err != nil {
		return "", ""
	}
	var lines []string
	panicked, says := "", ""
	var python tracebacks
	for line := range bytes.Lines(text) {
		line = bytes.TrimRight(line, " \r\n")
		if len(line) == 0 {
			continue
		}
		if panicked == "" && goPanic(line) {
			panicked = printable(line)
		}
		if lines = append(lines, printable(line)); len(lines) > tailLines {
			lines = lines[1:]
		}
		if text := lines[len(lines)-1]; strings.ContainsFunc(text, wordRune) {
			says = text
		}
		python.read(lines[len(lines)-1])
	}
	if len(lines) == 0 {
		return "", ""
	}
	last = cmp.Or(panicked, python.hiddenByLauncher(), says, lines[len(lines)-1])
	return strings.TrimSpace(last), strings.Join(lines, "\n")
}

// tracebacks finds the exceptions that ended Python processes, in a log that they share.
type tracebacks struct {
	inside   bool   // inside a traceback, before its exception
	raised   string // the last exception that is not a launcher's
	launcher bool   // a launcher's exception followed
}

var (
	// rankPrefix starts each traceback line of a process that torchrun started, once the process knows its rank.
	rankPrefix = regexp.MustCompile(`^\[rank\d+\]:\s?`)
	exception  = regexp.MustCompile(`^[A-Za-z_][\w.]*(: |:?$)`)
	// launchers matches the exceptions that torchrun and accelerate launch raise for a failed process.
	launchers = regexp.MustCompile(`^(torch\.distributed\..*\.ChildFailedError|subprocess\.CalledProcessError)\b`)
)

func (t *tracebacks) read(line string) {
	line = rankPrefix.ReplaceAllString(line, "")
	switch {
	case line == "Traceback (most recent call last):":
		t.inside = true
	case !t.inside || !exception.MatchString(line):
	case launchers.MatchString(line):
		t.inside, t.launcher = false, true
	default:
		t.inside, t.launcher = false, false
		if !strings.HasPrefix(t.raised, usageError) { // other ranks fail as a consequence
			t.raised = line
		}
	}
}

// hiddenByLauncher returns the exception that a launcher's report hides, or "".
func (t *tracebacks) hiddenByLauncher() string {
	if !t.launcher {
		return ""
	}
	return t.raised
}

func wordRune(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }

// goPanic reports whether a line states why Go's runtime ended the process.
func goPanic[T string | []byte](line T) bool {
	return strings.HasPrefix(string(line), "panic: ") || strings.HasPrefix(string(line), "fatal error: ")
}

// printable truncates a log line, and removes terminal control characters.
func printable(line []byte) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\t' {
			return -1
		}
		return r
	}, strings.ToValidUTF8(string(line[:min(len(line), maxLineBytes)]), ""))
}

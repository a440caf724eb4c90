package main

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/perdure/perdure/internal/proc/keys"
)

// leaks looks for keys and secrets where they must not be. It is safe for concurrent use.
type leaks struct {
	t       testing.TB
	needles map[string][]byte // by description

	mu       sync.Mutex     // guards searched, bytes
	searched map[string]int // number of files, outputs and so on
	bytes    int64
}

// leaksOf returns a search for the keys and secrets in some directories.
func leaksOf(t testing.TB, folders ...string) *leaks {
	t.Helper()
	l := &leaks{t: t, needles: map[string][]byte{}, searched: map[string]int{}}
	for _, dir := range folders {
		l.walk(dir, func(path string, text []byte) {
			if isSecret(path) {
				l.secret(path, strings.TrimSpace(string(text)))
			}
			for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
				if strings.HasSuffix(block.Type, "PRIVATE KEY") {
					l.key(path, block)
				}
			}
		})
	}
	return l
}

// isSecret reports whether a file is meant to contain a secret.
func isSecret(path string) bool {
	name := filepath.Base(path)
	return name == keys.SecretFile || name == keys.SecretFile+keys.ServersExt
}

// secret adds a secret to the search, as written and in other encodings.
func (l *leaks) secret(path, text string) {
	l.needles[path] = []byte(text)
	l.needles[path+" in base64"] = []byte(base64.StdEncoding.EncodeToString([]byte(text)))
	l.needles[path+" in hexadecimal"] = []byte(hex.EncodeToString([]byte(text)))
	if raw, err := hex.DecodeString(text); err == nil {
		l.needles[path+" as bytes"] = raw
		l.needles[path+", its bytes in base64"] = []byte(base64.StdEncoding.EncodeToString(raw))
	}
}

// key adds a private key to the search: as bytes, in hexadecimal, and each line of its file.
func (l *leaks) key(path string, block *pem.Block) {
	l.needles[path+" as bytes"] = block.Bytes
	l.needles[path+" in hexadecimal"] = []byte(hex.EncodeToString(block.Bytes))
	for line := range strings.Lines(string(pem.EncodeToMemory(block))) {
		if line = strings.TrimSpace(line); len(line) >= 20 && !strings.HasPrefix(line, "-----") {
			l.needles[path+": "+line[:4]+"…"] = []byte(line)
		}
	}
}

// in searches one text.
func (l *leaks) in(kind, what string, text []byte) {
	l.t.Helper()
	for name, needle := range l.needles {
		if bytes.Contains(text, needle) {
			l.t.Errorf("%s %s contains a secret or a key: that of %s", kind, what, name)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.searched[kind]++
	l.bytes += int64(len(text))
}

// inFolder searches all files and their names, except files that are meant to contain a secret. Only the owner may be
// able to read those.
func (l *leaks) inFolder(dir string) {
	l.t.Helper()
	l.walk(dir, func(path string, text []byte) {
		l.in("the name", "of "+path, []byte(path))
		if !isSecret(path) {
			l.in("file", path, l.trim(text))
		} else if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o077 != 0 {
			l.t.Errorf("other users can read %s: %v", path, info.Mode())
		}
	})
}

// trim cuts most zeros off the end of a file, because etcd preallocates files with many. It keeps as many as the
// longest needle has bytes, since a needle may end in zeros.
func (l *leaks) trim(text []byte) []byte {
	most := 0
	for _, needle := range l.needles {
		most = max(most, len(needle))
	}
	return text[:min(len(text), len(bytes.TrimRight(text, "\x00"))+most)]
}

// walk reads all files in a directory. Files may disappear meanwhile.
func (l *leaks) walk(dir string, read func(path string, text []byte)) {
	l.t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return ignoreGone(err)
		}
		text, err := os.ReadFile(path)
		if err == nil {
			read(path, text)
		}
		return ignoreGone(err)
	})
	must(l.t, err)
}

func ignoreGone(err error) error {
	if os.IsNotExist(err) {
		return nil
	}
	return err
}

// inOutput searches the output of a process.
func (l *leaks) inOutput(p *process) {
	l.t.Helper()
	name := strings.Join(p.Args[1:], " ")
	l.in("standard output of", name, []byte(p.stdout.String()))
	l.in("standard error of", name, []byte(p.stderr.String()))
}

// inProcesses searches the command lines and environments of all running processes, where the system exposes them as
// files.
func (l *leaks) inProcesses() {
	l.t.Helper()
	for _, file := range []string{"cmdline", "environ"} {
		found, _ := filepath.Glob("/proc/[0-9]*/" + file) // the pattern is right
		for _, path := range found {
			if text, err := os.ReadFile(
				path,
			); err == nil &&
				len(text) > 0 { // the process may have ended or belong to another user
				l.in(file, path, text)
			}
		}
	}
}

// TestLeaks: a secret or a key is found wherever it leaks and in whatever encoding.
func TestLeaks(t *testing.T) {
	t.Parallel()
	ring := newKeys(t)
	needles := leaksOf(t, ring).needles
	needles["a key that ends in zeros"] = append(bytes.Repeat([]byte("key"), 10), make([]byte, 10)...)
	for name, needle := range needles {
		if len(needle) < 20 {
			t.Errorf("%s has only %d bytes: other texts may contain it", name, len(needle))
		}
		caught := &catches{TB: t}
		l := leaksOf(t, ring)
		l.needles[name] = needle
		l.t = caught
		dir := t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, "log"), append([]byte("level=INFO key="), needle...), 0o600))
		must(t,
			os.WriteFile(filepath.Join(dir, keys.SecretFile), needle, 0o600)) // this file is meant to contain a secret
		l.inFolder(dir)
		if caught.errors == 0 {
			t.Errorf("%s is not found in a file", name)
		}
	}
	caught := &catches{TB: t}
	l := leaksOf(t, ring)
	l.t = caught
	open := filepath.Join(t.TempDir(), keys.SecretFile)
	must(t, os.WriteFile(open, nil, 0o600))
	must(t, os.Chmod(open, 0o640))
	l.inFolder(filepath.Dir(open))
	if caught.errors != 1 {
		t.Errorf("a secret that other users can read: %d errors", caught.errors)
	}
	if n := len(l.needles); n < 30 {
		t.Errorf("only %d texts are searched for", n)
	}
}

// catches counts the errors that a test reports.
type catches struct {
	testing.TB
	errors int
}

func (c *catches) Errorf(string, ...any) { c.errors++ }

package testcluster_test

import (
	"bufio"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	calls  = 500 // of each part, as in testdata/path
	looked = 6   // a package with fewer executed code blocks does not take part in the path
)

// TestPath runs updates and reads with coverage counters, and compares the packages whose code runs for each call with
// those that docs/architecture.md lists.
func TestPath(t *testing.T) {
	dir := t.TempDir()
	run := func(name string, args ...string) {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Env = append(os.Environ(), "GOCOVERDIR="+dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
	}
	binary := filepath.Join(dir, "path.exe")
	run("go", "build", "-cover", "-covermode=atomic", "-coverpkg=github.com/perdure/perdure/...", "-o", binary,
		"./testdata/path")
	run(binary, dir)
	counts := func(part string) map[string]int {
		text := filepath.Join(dir, part+".txt")
		run("go", "tool", "covdata", "textfmt", "-i="+filepath.Join(dir, part), "-o="+text)
		f, err := os.Open(text)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		of := map[string]int{} // executions of each block
		for s := bufio.NewScanner(f); s.Scan(); {
			if w := strings.Fields(s.Text()); len(w) == 3 {
				n, err := strconv.Atoi(w[2])
				if err != nil {
					t.Fatalf("%s: %v", s.Text(), err)
				}
				of[w[0]] += n
			}
		}
		return of
	}
	page, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	before, after := counts("before"), counts("after") // heartbeats, for example
	for part, most := range map[string]int{"update": 10, "read": 10, "cached": 4} {
		blocks := map[string]int{} // by package, those that run for every call
		for b, n := range counts(part) {
			dir := path.Dir(strings.TrimPrefix(b[:strings.Index(b, ":")], "github.com/perdure/perdure/"))
			if n-max(before[b], after[b]) >= calls && dir != "." && !strings.HasPrefix(dir, "internal/testcluster") {
				blocks[path.Base(dir)]++
			}
		}
		var passed []string
		for name, n := range blocks {
			if n >= looked {
				passed = append(passed, name)
			}
		}
		slices.Sort(passed)
		line := regexp.MustCompile(`(?m)^\| ` + part + ` \|.*$`).FindString(string(page))
		var listed []string
		for _, m := range regexp.MustCompile("`([a-z]+)`").FindAllStringSubmatch(line, -1) {
			listed = append(listed, m[1])
		}
		slices.Sort(listed)
		if !slices.Equal(passed, listed) {
			t.Errorf("%s: it passes through %v, the page lists %v; blocks: %v", part, passed, listed, blocks)
		}
		if len(passed) > most {
			t.Errorf("%s: it passes through %d packages, at most %d are allowed", part, len(passed), most)
		}
	}
}

package perdure_test

import (
	"fmt"
	"go/ast"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// maxParts is the max number of parts of make check-all. make check runs one part a day, so all of them run within two
// weeks.
const maxParts = 14

// ranPart is a line of tools/check/parts.
type ranPart struct {
	number int
	dir    string
	tests  *regexp.Regexp
	names  []string // alternatives of the expression
}

// TestParts checks the lists of tests in the Makefile and tools/check/parts. Packages that run without the race
// detector start no goroutines, every test that uses testing.Short is in a part of make check-all, and every name and
// expression matches a test.
func TestParts(t *testing.T) {
	files, err := repository()
	if err != nil {
		t.Fatal(err)
	}
	plain, calm := makeVariable(t, "PLAIN"), makeVariable(t, "CALM")
	all := map[string][]string{} // tests by directory
	var brief [][2]string        // directory and test
	for _, s := range files {
		if s.file == nil {
			continue
		}
		dir := path.Dir(s.path)
		module := path.Join("github.com/perdure/perdure", dir)
		if plain.MatchString(module) && dir != "cmd/perdure" && dir != "." {
			for _, line := range s.started() {
				t.Errorf("%s:%d: a package that PLAIN in the Makefile names starts a goroutine", s.path, line)
			}
		}
		for name, short := range s.tests {
			all[dir] = append(all[dir], name)
			if short {
				brief = append(brief, [2]string{dir, name})
			}
			if calm.MatchString(name) && plain.MatchString(module) {
				t.Errorf("%s: CALM in the Makefile means a test of this name in another package", s.path)
			}
		}
	}
	parts := readParts(t)
	for _, p := range parts {
		for _, name := range p.names {
			if alone := regexp.MustCompile("^(" + name + ")$"); !slices.ContainsFunc(all[p.dir], alone.MatchString) {
				t.Errorf("part %d: no test in %s matches %s", p.number, p.dir, name)
			}
		}
	}
	for _, b := range brief {
		if !slices.ContainsFunc(parts, func(p ranPart) bool { return p.dir == b[0] && p.tests.MatchString(b[1]) }) {
			t.Errorf("%s looks at testing.Short, and tools/check/parts does not name it with %s", b[1], b[0])
		}
	}
	for _, name := range strings.Split(strings.Trim(calm.String(), "^()$"), "|") {
		of := 0
		for _, names := range all {
			if slices.Contains(names, name) {
				of++
			}
		}
		if of != 1 {
			t.Errorf("CALM in the Makefile: %d packages have a test %s, want 1", of, name)
		}
	}
}

// makeVariable returns the regular expression in a variable of the Makefile.
func makeVariable(t *testing.T, name string) *regexp.Regexp {
	t.Helper()
	text, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^` + name + ` *:= (.*)$`).FindSubmatch(text)
	if m == nil {
		t.Fatalf("the Makefile has no %s", name)
	}
	return regexp.MustCompile(strings.ReplaceAll(string(m[1]), "$$", "$"))
}

// started returns the lines on which a file starts goroutines.
func (s source) started() (lines []int) {
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			lines = append(lines, s.line(n.Pos()))
		case *ast.CallExpr:
			if sel, ok := n.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "Go" {
				lines = append(lines, s.line(n.Pos()))
			}
		}
		return true
	})
	return lines
}

// tests yields the tests of a file, and whether each of them uses testing.Short itself.
func (s source) tests(yield func(name string, short bool) bool) {
	if !s.isTest() {
		return
	}
	for _, d := range s.file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Recv != nil || !strings.HasPrefix(f.Name.Name, "Test") || f.Name.Name == "TestMain" {
			continue
		}
		short := false
		ast.Inspect(f.Body, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			id, ok := call.Fun.(*ast.Ident)
			short = short || s.refersTo(call.Fun, "testing", "Short") ||
				ok && (id.Name == "onlyAll" || id.Name == "brief")
			return true
		})
		if !yield(f.Name.Name, short) {
			return
		}
	}
}

// readParts reads tools/check/parts, whose numbers must count from 0.
func readParts(t *testing.T) (parts []ranPart) {
	t.Helper()
	text, err := os.ReadFile("tools/check/parts")
	if err != nil {
		t.Fatal(err)
	}
	last := -1
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if strings.HasPrefix(line, "#") {
			continue
		}
		if len(f) < 4 || f[1] != "plain" && f[1] != "race" {
			t.Fatalf("tools/check/parts: %q is not a part, plain or race, a package and tests", line)
		}
		n, err := strconv.Atoi(f[0])
		if err != nil || n != last && n != last+1 || n >= maxParts {
			t.Fatalf("tools/check/parts: part %s after part %d; parts count from 0 to %d", f[0], last, maxParts-1)
		}
		last = n
		parts = append(parts, ranPart{
			n, path.Clean(f[2]), regexp.MustCompile(fmt.Sprintf("^(%s)$", f[3])), strings.Split(f[3], "|"),
		})
	}
	return parts
}

package perdure_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"path"
	"slices"
	"strings"
	"testing"
)

// layers lists the layers of docs/architecture.md from the lowest to the highest, each with its packages. A name that
// ends in a slash stands for all packages below it.
var layers = []struct {
	name     string
	packages []string
}{
	{"vocabulary", []string{"."}},
	{"cores", []string{"internal/core/"}},
	{"data", []string{"internal/data/"}},
	{"shells", []string{"internal/proc/", "worker", "store"}},
	{"runs", []string{"internal/run/", "watch"}},
	{"commands", []string{"cmd", "examples", "studies"}},
	{"tests", []string{"internal/testcluster", "internal/sim"}},
}

// layerOf returns the number of a package's layer, or -1 if it has none.
func layerOf(pkg string) int {
	for i, f := range layers {
		for _, r := range f.packages {
			if pkg == r || strings.HasSuffix(r, "/") && strings.HasPrefix(pkg, r) {
				return i
			}
		}
	}
	return -1
}

// upward lists the accepted imports from a higher layer, with the reason.
var upward = map[[2]string]string{
	{"internal/core/reads", "internal/data/table"}:   "rows are what it is about; table is pure",
	{"internal/core/reads", "internal/data/wire"}:    "an answer is read where it lies; wire is pure",
	{"internal/core/replica", "internal/data/table"}: "rows are what it is about; table is pure",
	{"internal/core/replica", "internal/data/wire"}:  "an update is read where it lies; wire is pure",
	{"internal/core/outbox", "internal/data/table"}:  "updates are merged row by row; table is pure",
	{"internal/core/outbox", "internal/data/wire"}:   "an update is kept as it is sent; wire is pure",
	{"internal/core/scar", "internal/data/table"}:    "rows are what it is about; table is pure",
	{"internal/core/chain", "internal/data/wire"}:    "it makes the frames of a chain; wire is pure",
}

// checkLayers rejects imports from a higher layer. Import ranks alone would accept an import of a low-ranked package of
// a high layer.
func checkLayers(files []source) (found []string) {
	for _, s := range files {
		if s.file == nil || s.isTest() {
			continue
		}
		from := s.pkg()
		layer := layerOf(from)
		if layer < 0 {
			found = append(found, fmt.Sprintf("%s: package %s has no layer", s.path, from))
			continue
		}
		for p, line := range s.imports {
			to, ours := importedPackage(p)
			if at := layerOf(to); ours && at > layer && upward[[2]string{from, to}] == "" {
				found = append(found, fmt.Sprintf("%s:%d: %s (layer of %s) must not import %s (layer of %s)", s.path,
					line, from, layers[layer].name, to, layers[at].name))
			}
		}
	}
	return found
}

// impureImports lists imports that give access to time, randomness, other goroutines, files, sockets or properties of
// the process.
var impureImports = []string{
	"os", "net", "context", "log", "sync", "math/rand", "crypto/rand", "time", "runtime", "syscall",
	"io/fs", "io/ioutil", "path/filepath", "embed", "expvar", "plugin", "testing", "unique", "weak",
	"golang.org/x/sys/unix", "golang.org/x/sys/windows", "golang.org/x/sync",
}

// spoken lists functions that print or wait for input, in packages that a pure package may otherwise import.
var spoken = map[string][]string{"fmt": {"Print*", "Scan", "Scanf", "Scanln"}}

// goroutines lists the files of pure packages that may use synchronisation between goroutines, with the reason.
var goroutines = map[string]string{
	"internal/data/table/snapshot.go": "a list of free memory that a process has once, for whoever takes " +
		"snapshots: which piece one gets decides nothing",
}

// checkPurity rejects impure imports and operations in pure packages, and third-party modules in the root package.
func checkPurity(files []source) (found []string) {
	for _, s := range files {
		if s.file == nil || s.isTest() || !pure(s.pkg()) {
			continue
		}
		for p, line := range s.imports {
			impure := slices.ContainsFunc(impureImports, func(i string) bool {
				return p == i || strings.HasPrefix(p, i+"/")
			})
			if impure {
				found = append(found, fmt.Sprintf("%s:%d: a pure package must not import %s", s.path, line, p))
			}
			if s.pkg() == "." && strings.Contains(topLevel(p), ".") {
				found = append(found,
					fmt.Sprintf("%s:%d: the root imports the standard library only, not %s", s.path, line, p))
			}
		}
		for n := range ast.Preorder(s.file) {
			if does := s.acts(n); does != "" {
				found = append(found, fmt.Sprintf("%s:%d: a pure package must not %s", s.path, s.line(n.Pos()), does))
			}
		}
	}
	return found
}

// acts describes the forbidden operation of a node in a pure package, or returns "".
func (s source) acts(n ast.Node) string {
	for p, names := range spoken {
		if s.refersTo(n, p, names...) {
			return "print, or wait for input"
		}
	}
	switch n := n.(type) {
	case *ast.CallExpr:
		if f, ok := n.Fun.(*ast.Ident); ok && (f.Name == "print" || f.Name == "println") {
			return "print, or wait for input"
		}
	case *ast.FuncDecl:
		if n.Recv == nil && n.Name.Name == "init" {
			return "act before it is asked"
		}
	}
	if goroutines[s.path] != "" {
		return ""
	}
	switch n := n.(type) {
	case *ast.GoStmt:
		return "start a goroutine"
	case *ast.SelectStmt:
		return "wait for another goroutine"
	case *ast.ChanType:
		return "have a channel"
	case *ast.SendStmt:
		return "send on a channel"
	case *ast.UnaryExpr:
		if n.Op == token.ARROW {
			return "receive from a channel"
		}
	}
	return ""
}

var layerCases = []ruleCase{
	{"worker/a.go", importing(module + "/internal/data/wire"), ""},
	{"worker/a.go", importing(module + "/internal/proc/server"), ""},
	{"worker/a.go", importing(module + "/internal/run/rundir"), "(layer of shells) must not import internal/run"},
	{"internal/core/membership/a.go", importing(module + "/internal/data/wire"), "must not import internal/data/wire"},
	{"internal/core/chain/a.go", importing(module + "/internal/data/wire"), ""},
	{"internal/core/chain/a.go", importing(module + "/internal/data/disk"), "must not import internal/data/disk"},
	{"internal/data/table/a.go", importing(module + "/internal/proc/server"), "must not import internal/proc/server"},
	{
		"internal/run/workload/mf/a.go", importing(module + "/cmd/perdure/x"),
		"internal/run/workload (layer of runs) must not import cmd",
	},
	{"internal/run/workload/mf/a_test.go", importing(module + "/cmd/perdure/x"), ""},
	{"a.go", importing(module + "/internal/core/mutation"), ". (layer of vocabulary) must not import"},
	{"attic/a.go", importing("bytes"), "attic has no layer"},
	{"internal/sim/a.go", importing(module + "/internal/testcluster"), ""},
	{"internal/simple/a.go", importing("bytes"), "internal/simple has no layer"},
}

var purityCases = []ruleCase{
	{"internal/data/wire/a.go", importing("encoding/binary"), ""},
	{"internal/data/wire/a_test.go", importing("os"), ""},
	{"internal/core/itercost/a.go", importing("math/rand/v2"), "must not import math/rand/v2"},
	{"internal/proc/server/a.go", importing("time"), ""},
	{"internal/data/table/a.go", importing("golang.org/x/sys/cpu"), ""},
	{"internal/data/table/a.go", importing("sync/atomic"), "must not import sync/atomic"},
	{"internal/core/chain/a.go", importing("math/rand/v2"), "must not import math/rand/v2"},
	{"internal/core/membership/a.go", importing("time"), "must not import time"},
	{"a.go", importing("log/slog"), "must not import log/slog"},
	{"a.go", importing("runtime/metrics"), "must not import runtime/metrics"},
	{"a.go", importing("golang.org/x/sys/cpu"), "standard library only"},
	{"internal/core/chain/a.go", "package x\nfunc f() { go f() }", "a.go:2: a pure package must not start a goroutine"},
	{"internal/proc/server/a.go", "package x\nfunc f() { go f() }", ""},
	{"internal/core/chain/a_test.go", "package x\nfunc f() { go f() }", ""},
	{"internal/core/chain/a.go", "package x\nfunc f() { select {} }", "wait for another goroutine"},
	{"internal/core/chain/a.go", "package x\nfunc f(c <-chan int) {}", "have a channel"},
	{"internal/core/chain/a.go", "package x\nfunc f() { c <- 1 }", "send on a channel"},
	{"internal/core/chain/a.go", "package x\nfunc f() { <-c }", "receive from a channel"},
	{"internal/data/table/snapshot.go", "package x\nvar c chan int", ""},
	{"internal/core/chain/a.go", "package x\nfunc init() { f() }", "act before it is asked"},
	{"internal/core/chain/a.go", "package x\nfunc (t) init() {}", ""},
	{"internal/core/chain/a.go", "package x\nfunc f() { println() }", "print"},
	{"internal/core/chain/a.go", "package x\nimport \"fmt\"\nfunc f() { fmt.Println() }", "a.go:3: a pure"},
	{"internal/core/chain/a.go", "package x\nimport \"fmt\"\nfunc f() { fmt.Sprint(fmt.Sscanf) }", ""},
}

// TestLightClient checks that packages for users' programs, and those compiled to WebAssembly, do not depend on clients
// of etcd or S3, on the NATS server, or on JSON Web Tokens. Programs without package watch do not depend on the
// Prometheus client either.
func TestLightClient(t *testing.T) {
	files, err := repository()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		heavy string
		light []string
		has   string // a package that does depend on it
	}{
		{
			"go.etcd.io/",
			[]string{".", "worker", "watch", "internal/testcluster", "internal/sim"},
			"internal/run/role",
		},
		{"github.com/prometheus/", []string{".", "worker", "internal/testcluster", "internal/sim"}, "watch"},
		{"github.com/nats-io/nats-server/", []string{".", "worker"}, "internal/proc/logserver"},
		{"github.com/minio/", []string{".", "worker"}, "store/s3"},
		{"github.com/golang-jwt/", []string{".", "worker"}, "internal/proc/control"},
	} {
		for _, light := range c.light {
			if by := reaches(files, light, c.heavy); by != "" {
				t.Errorf("%s has %s in it, by %s", light, c.heavy, by)
			}
		}
		if reaches(files, c.has, c.heavy) == "" {
			t.Errorf("%s has no %s: it is not found", c.has, c.heavy)
		}
	}
}

// reaches returns the directory through which the non-test files of the package in from import a path with the prefix
// start, or "".
func reaches(files []source, from, start string) (by string) {
	imports := map[string][]string{} // by directory
	for _, s := range files {
		if s.file == nil || s.isTest() {
			continue
		}
		for p := range s.imports {
			dir := path.Dir(s.path)
			imports[dir] = append(imports[dir], p)
		}
	}
	seen, next := map[string]bool{from: true}, []string{from}
	for len(next) > 0 {
		dir := next[0]
		next = next[1:]
		for _, p := range imports[dir] {
			to, ours := strings.CutPrefix(p, module+"/")
			switch {
			case strings.HasPrefix(p, start):
				return dir
			case p == module:
				to, ours = ".", true
			}
			if ours && !seen[to] {
				seen[to] = true
				next = append(next, to)
			}
		}
	}
	return ""
}

// TestExceptions checks that every exception is needed, and that without any files none is.
func TestExceptions(t *testing.T) {
	files, err := repository()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range checkExceptions(files) {
		t.Error(f)
	}
	if n := len(checkExceptions(nil)); n != len(upward)+len(goroutines)+len(ceilings) {
		t.Errorf("of no files at all, %d exceptions are not needed", n)
	}
}

// checkExceptions reports exceptions that are not needed: an unused exception would hide the next mistake.
func checkExceptions(files []source) (found []string) {
	imports, there := map[[2]string]bool{}, map[string]bool{}
	for _, s := range files {
		there[s.path] = true
		if s.file == nil || s.isTest() {
			continue
		}
		for p := range s.imports {
			if to, ours := importedPackage(p); ours {
				imports[[2]string{s.pkg(), to}] = true
			}
		}
	}
	for pair := range upward {
		if !imports[pair] {
			found = append(found, fmt.Sprintf("upward: %s does not import %s", pair[0], pair[1]))
		}
	}
	for file := range goroutines {
		if !there[file] {
			found = append(found, "goroutines: there is no "+file)
		}
	}
	sizes := shapes(files)
	for what := range ceilings {
		dir, name := what[strings.Index(what, " ")+1:], ""
		if i := strings.LastIndex(dir, "."); i >= 0 {
			dir, name = dir[:i], dir[i+1:]
		}
		if s := sizes[dir]; s == nil || name != "" && s.structs[name] == nil {
			found = append(found, "ceilings: there is no "+what)
		}
	}
	slices.Sort(found)
	return found
}

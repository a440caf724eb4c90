package perdure_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"
)

// The rules of the repository. Each rule is a pure function of parsed files. TestRules checks that each rule finds its
// violations.

const module = "github.com/perdure/perdure"

// importRanks orders the packages: a package imports only packages of strictly lower rank. A package is a top-level
// directory or a directory of a layer of internal, including its subdirectories. docs/architecture.md describes the
// layers.
var importRanks = map[string]int{
	".": 0, // the vocabulary

	"internal/core/protocol": 1, // protocol messages

	"internal/data/packed": 1, // packs rows without their zeros, for messages and programs

	// Pure cores.
	"internal/core/consistency":     2,
	"internal/core/placement":       1,
	"internal/core/availability":    0, // apart from failuredetector, which worker must not reach
	"internal/core/chain":           4,
	"internal/core/membership":      3,
	"internal/core/recovery":        2,
	"internal/core/failuredetector": 1,
	"internal/core/mutation":        0,
	"internal/core/slotstate":       2,
	"internal/core/itercost":        0, // measures series of any training; independent of any job

	// Pure cores over rows and frames.
	"internal/core/reads":   3,
	"internal/core/replica": 3,
	"internal/core/outbox":  3,
	"internal/core/scar":    2,

	// Rows and bytes.
	"internal/data/table":       1,
	"internal/data/wire":        2,
	"internal/data/disk":        0,
	"internal/data/safetensors": 1,
	"internal/data/checkpoint":  4,
	"internal/data/updatelog":   1,
	"internal/data/registry":    1,
	"internal/data/dataset":     1,
	"internal/data/store":       3,

	// Shells: the packages that use time, sockets, goroutines and disks.
	"internal/proc/transport":   3,
	"internal/proc/server":      6,
	"internal/proc/coordinator": 5,
	"internal/proc/machine":     2,
	"internal/proc/control":     2,
	"worker":                    5,
	"internal/proc/supervisor":  4,
	"internal/proc/keys":        1,
	"internal/proc/admission":   4,
	"internal/proc/shardstore":  5,
	"internal/proc/httpdebug":   0,
	"internal/proc/logauth":     2,
	"internal/proc/hooks":       4,
	"internal/proc/statestore":  4, // only for worker, which it would fill up to its limit; store has no retries

	// Building blocks of commands, and the commands.
	"internal/run/rundir":      2,
	"internal/run/workload":    2,
	"internal/run/humanize":    5,
	"internal/run/plot":        6,
	"internal/run/modelfile":   6,
	"internal/run/settings":    7,
	"internal/run/metrics":     7,
	"internal/run/locate":      8,
	"internal/run/role":        9,
	"internal/run/terminal":    8,
	"internal/run/checkpoints": 8,
	"internal/run/agent":       6,
	"watch":                    8,
	"store":                    4,
	"internal/run/runs":        9,
	"internal/run/dashboard":   9,
	"internal/run/localrun":    10,
	"internal/run/bench":       11,
	"internal/run/study":       10,
	"internal/run/report":      10,
	"internal/run/host":        11,
	"cmd":                      20,
	"examples":                 20,
	"studies":                  20,

	// Used only by tests: processes in memory, and whole clusters in virtual time.
	"internal/testcluster":    7,
	"internal/sim":            8,
	"internal/proc/logserver": 3,
}

// forbidden lists imports that are forbidden regardless of rank, with the reason.
var forbidden = map[[2]string]string{
	{"worker", "internal/proc/server"}:                   "the client must not pull the server into every program",
	{"worker", "internal/data/registry"}:                 "nor etcd's client, which no program that trains needs",
	{"internal/core/chain", "internal/data/updatelog"}:   "they are rival strategies; neither may lean on the other",
	{"internal/data/updatelog", "internal/core/chain"}:   "they are rival strategies; neither may lean on the other",
	{"internal/proc/control", "internal/proc/transport"}: "the control plane is HTTP; frames are for data",
}

// Pure packages take time, randomness and messages as arguments and start no goroutines. A script can test them, and
// every run can be replayed.
var (
	pureLayers   = []string{"internal/core/"}
	purePackages = []string{".", "internal/data/packed", "internal/data/table", "internal/data/wire"}
)

// vagueNames lists package names that do not describe a purpose.
var vagueNames = []string{"util", "utils", "common", "helpers", "types", "manager"}

// privatePaths exist only on one developer's machine. They are concatenated here so that this file does not contain
// them.
var privatePaths = []string{"/" + "work/", "/" + "root/"}

// Size limits, in lines. A longer function or file can be split where a decision ends.
const (
	maxFuncLines     = 70
	maxFileLines     = 600
	maxTestFileLines = 900
	maxColumns       = 120 // of pages
	maxPageLines     = 400
)

// ignoredFolders lists names of directories, at any depth, that contain build products or no code of this project.
// ignoredPaths lists such directories by path.
var ignoredFolders = []string{".git", ".venv", "testdata", "node_modules", "target"}

var ignoredPaths = []string{"bin", "runs", "data"}

// source is one file of the repository.
type source struct {
	path string // relative to the repository's root, with forward slashes
	text []byte
	fset *token.FileSet
	file *ast.File // nil: not Go, or another module
}

func (s source) isTest() bool      { return strings.HasSuffix(s.path, "_test.go") }
func (s source) isGenerated() bool { return ast.IsGenerated(s.file) }
func (s source) line(p token.Pos) int {
	return s.fset.Position(p).Line
}

// pkg returns the directory of the file's package; "." is the root.
func (s source) pkg() string { return packageOf(path.Dir(s.path)) }

func topLevel(dir string) string {
	top, _, _ := strings.Cut(dir, "/")
	return top
}

// packageOf returns the package that a directory belongs to. Below internal it is LAYER/PACKAGE, or testcluster or sim,
// which are layers of their own.
func packageOf(dir string) string {
	parts := strings.Split(dir, "/")
	switch {
	case parts[0] != "internal":
		return parts[0]
	case len(parts) > 1 && (parts[1] == "testcluster" || parts[1] == "sim"):
		return "internal/" + parts[1]
	}
	return strings.Join(parts[:min(3, len(parts))], "/")
}

// pure reports whether a package must be pure.
func pure(pkg string) bool {
	return slices.Contains(purePackages, pkg) ||
		slices.ContainsFunc(pureLayers, func(layer string) bool { return strings.HasPrefix(pkg, layer) })
}

// importedPackage returns this module's package for an import path.
func importedPackage(importPath string) (pkg string, ours bool) {
	if importPath == module {
		return ".", true
	}
	rest, ours := strings.CutPrefix(importPath, module+"/")
	return packageOf(rest), ours
}

// imports yields the file's import paths with their positions.
func (s source) imports(yield func(importPath string, line int) bool) {
	for _, i := range s.file.Imports {
		p, err := strconv.Unquote(i.Path.Value)
		if err != nil || !yield(p, s.line(i.Pos())) {
			return
		}
	}
}

// localName returns the name by which the file refers to an imported package of the standard library, or "" if the file
// does not import it.
func (s source) localName(importPath string) string {
	for _, i := range s.file.Imports {
		if i.Path.Value == strconv.Quote(importPath) {
			if i.Name != nil {
				return i.Name.Name
			}
			return path.Base(importPath)
		}
	}
	return ""
}

// refersTo reports whether n is importPath.name for one of the names. A name that ends in "*" is a prefix.
func (s source) refersTo(n ast.Node, importPath string, names ...string) bool {
	sel, ok := n.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	x, ok := sel.X.(*ast.Ident)
	if !ok || x.Name != s.localName(importPath) {
		return false
	}
	return slices.ContainsFunc(names, func(name string) bool {
		prefix, many := strings.CutSuffix(name, "*")
		return sel.Sel.Name == name || many && strings.HasPrefix(sel.Sel.Name, prefix)
	})
}

// A rule returns its findings, one line each.
type rule func(files []source) []string

// rules are the rules by name.
var rules = map[string]rule{
	"import ranks":    checkImportRanks,
	"layers":          checkLayers,
	"purity":          checkPurity,
	"exits":           eachGo(checkExits),
	"wall clocks":     checkWallClocks,
	"package comment": checkPackageComments,
	"package name":    eachGo(checkPackageName),
	"sleep":           eachGo(checkSleep),
	"size":            eachGo(checkSize),
	"types":           checkTypes,
	"private path":    checkPrivatePaths,
	"page commands":   checkPageCommands,
	"page links":      checkPageLinks,
	"page columns":    checkPageColumns,
	"page lines":      checkPageLines,
	"page names":      checkPageNames,
	"columns":         eachGo(checkColumns),
	"prose":           checkProse,
	"standard output": eachGo(checkStdout),
}

// eachGo converts a check of a single Go file into a rule for all files that are not generated.
func eachGo(check func(s source) []string) rule {
	return func(files []source) (found []string) {
		for _, s := range files {
			if s.file != nil && !s.isGenerated() {
				found = append(found, check(s)...)
			}
		}
		return found
	}
}

// checkImportRanks compares imports with the table of ranks. Test files may import any package except sim. Only tests
// and sim may import testcluster.
func checkImportRanks(files []source) (found []string) {
	for _, s := range files {
		if s.file == nil {
			continue
		}
		from := s.pkg()
		rank, known := importRanks[from]
		if !known {
			found = append(found, fmt.Sprintf("%s: package %s is not in the table of import ranks", s.path, from))
			continue
		}
		for p, line := range s.imports {
			to, ours := importedPackage(p)
			if !ours || to == from {
				continue
			}
			reason, banned := forbidden[[2]string{from, to}]
			switch {
			case to == "internal/sim":
				found = append(found, fmt.Sprintf("%s:%d: nothing imports sim", s.path, line))
			case to == "internal/testcluster" && from != "internal/sim" && !s.isTest():
				found = append(found, fmt.Sprintf("%s:%d: only tests and sim import testcluster", s.path, line))
			case s.isTest():
			case banned:
				found = append(found, fmt.Sprintf("%s:%d: %s must not import %s: %s", s.path, line, from, to, reason))
			case importRanks[to] >= rank:
				found = append(found,
					fmt.Sprintf("%s:%d: %s (rank %d) must not import %s (rank %d)", s.path, line, from, rank, to,
						importRanks[to]))
			}
		}
	}
	return found
}

// checkExits allows only commands to end the process: a library returns an error.
func checkExits(s source) (found []string) {
	if s.file.Name.Name == "main" || s.isTest() {
		return nil
	}
	for n := range ast.Preorder(s.file) {
		if s.refersTo(n, "os", "Exit") || s.refersTo(n, "log", "Fatal*") {
			found = append(found, fmt.Sprintf("%s:%d: only a command ends the process; return an error", s.path,
				s.line(n.Pos())))
		}
	}
	return found
}

// checkPackageComments requires every package to have a comment, in a file that is not a test unless it has only tests.
func checkPackageComments(files []source) (found []string) {
	commented := map[string]bool{} // by directory
	product := map[string]bool{}
	for _, s := range files {
		if s.file != nil && !s.isTest() {
			product[path.Dir(s.path)] = true
		}
	}
	for _, s := range files {
		dir := path.Dir(s.path)
		if s.file == nil || s.isTest() && product[dir] {
			continue
		}
		name := s.file.Name.Name
		text := s.file.Doc.Text()
		commented[dir] = commented[dir] || strings.HasPrefix(text, "Package "+name+" ") || name == "main" && text != ""
	}
	for _, dir := range slices.Sorted(maps.Keys(commented)) {
		if !commented[dir] {
			found = append(found, dir+`: no package comment that begins "Package NAME "`)
		}
	}
	return found
}

// checkPackageName rejects names that fit any content.
func checkPackageName(s source) (found []string) {
	name := strings.TrimSuffix(s.file.Name.Name, "_test")
	if slices.Contains(vagueNames, name) || slices.Contains(vagueNames, path.Base(path.Dir(s.path))) {
		found = append(found, fmt.Sprintf("%s: name the package for what it provides, not %s", s.path, name))
	}
	return found
}

// checkSleep rejects sleeping in real time in tests. A Sleep directly inside synctest.Test advances virtual time and
// costs nothing.
func checkSleep(s source) (found []string) {
	if !s.isTest() {
		return nil
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && s.refersTo(call.Fun, "testing/synctest", "Test") {
			return false
		}
		if s.refersTo(n, "time", "Sleep") {
			found = append(found, fmt.Sprintf("%s:%d: a test must not sleep; use testing/synctest or a channel",
				s.path, s.line(n.Pos())))
		}
		return true
	})
	return found
}

// checkSize limits the length of functions and files.
func checkSize(s source) (found []string) {
	most := maxFileLines
	if s.isTest() {
		most = maxTestFileLines
	}
	if n := bytes.Count(s.text, []byte("\n")); n > most {
		found = append(found, fmt.Sprintf("%s: %d lines; a file has at most %d", s.path, n, most))
	}
	for _, d := range s.file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		first, last := s.line(f.Pos()), s.line(f.End())
		if n := last - first + 1; n > maxFuncLines {
			found = append(found, fmt.Sprintf("%s:%d: %s has %d lines; a function has at most %d", s.path, first,
				f.Name.Name, n, maxFuncLines))
		}
	}
	return found
}

// checkPrivatePaths checks every text file, in any language.
func checkPrivatePaths(files []source) (found []string) {
	for _, s := range files {
		for i, line := range strings.Split(string(s.text), "\n") {
			for _, p := range privatePaths {
				if strings.Contains(line, p) {
					found = append(found, fmt.Sprintf("%s:%d: %s is a path of one machine", s.path, i+1, p))
				}
			}
		}
	}
	return found
}

// checkStdout requires commands to print through a writer that detects write errors.
func checkStdout(s source) (found []string) {
	if s.pkg() != "cmd" || s.isTest() || path.Base(s.path) == "stdout.go" {
		return nil
	}
	for n := range ast.Preorder(s.file) {
		if s.refersTo(n, "fmt", "Print*") || s.refersTo(n, "os", "Stdout") {
			found = append(found, fmt.Sprintf("%s:%d: a command prints to stdout, not to os.Stdout: see stdout.go",
				s.path, s.line(n.Pos())))
		}
	}
	return found
}

// pageCommand matches a line of a code block that shows one of our commands.
var pageCommand = regexp.MustCompile(`^\s*(\$ |((bin/)?perdure|make|curl|go run) [a-z$-])`)

// checkPageCommands requires every code block of a page that shows commands to declare, by the second word after its
// fence, whether a test runs or parses them. "text" marks blocks that only look like commands.
func checkPageCommands(files []source) (found []string) {
	for _, s := range files {
		if !strings.HasSuffix(s.path, ".md") {
			continue
		}
		info, open, sent := "", false, false
		for i, line := range strings.Split(string(s.text), "\n") {
			if rest, fence := strings.CutPrefix(strings.TrimSpace(line), "```"); fence {
				info, open, sent = rest, !open, false
				continue
			}
			if !open || sent || !pageCommand.MatchString(line) {
				continue
			}
			language, mark, _ := strings.Cut(info, " ")
			marked := (language == "sh" || language == "console") && (mark == "run" || mark == "parse")
			if sent = !marked && info != "text" && info != "go"; sent {
				found = append(found,
					fmt.Sprintf("%s:%d: a block with commands begins with sh or console, and then run or parse; or "+
						"text, if it shows none", s.path, i+1))
			}
		}
	}
	return found
}

// pageLink matches a link to a file of this repository, to an anchor of a page, or to both.
var pageLink = regexp.MustCompile(`\]\(([^():# ]*)(#[^() ]+)?\)`)

// checkPageLinks rejects links to missing files and anchors.
func checkPageLinks(files []source) (found []string) {
	exists, anchors := map[string]bool{}, map[string]map[string]bool{}
	for _, s := range files {
		for p := s.path; p != "."; p = path.Dir(p) {
			exists[p] = true
		}
		if strings.HasSuffix(s.path, ".md") {
			anchors[s.path] = anchorsOf(string(s.text))
		}
	}
	for _, s := range files {
		if !strings.HasSuffix(s.path, ".md") {
			continue
		}
		for i, line := range strings.Split(string(s.text), "\n") {
			for _, m := range pageLink.FindAllStringSubmatch(line, -1) {
				to := s.path
				if m[1] != "" {
					to = path.Join(path.Dir(s.path), m[1])
				}
				switch {
				case to != "." && !exists[to]:
					found = append(found, fmt.Sprintf("%s:%d: there is no %s", s.path, i+1, to))
				case m[2] != "" && anchors[to] != nil && !anchors[to][m[2][1:]]:
					found = append(found, fmt.Sprintf("%s:%d: %s has no heading for %s", s.path, i+1, to, m[2]))
				}
			}
		}
	}
	return found
}

var (
	anchorTag  = regexp.MustCompile(`<a (?:id|name)="([^"]+)"`)
	headingRef = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`) // a link in a heading
	notInSlug  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchorsOf returns the anchors of a page, as code hosts and the documentation site make them from headings.
func anchorsOf(text string) map[string]bool {
	of, block := map[string]bool{}, false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			block = !block
		}
		for _, m := range anchorTag.FindAllStringSubmatch(line, -1) {
			of[m[1]] = true
		}
		if block || !strings.HasPrefix(line, "#") {
			continue
		}
		title := headingRef.ReplaceAllString(strings.TrimSpace(strings.TrimLeft(line, "#")), "$1")
		slug := strings.ReplaceAll(notInSlug.ReplaceAllString(strings.ToLower(title), ""), " ", "-")
		for n, s := 1, slug; ; n++ {
			if !of[s] {
				of[s] = true
				break
			}
			s = fmt.Sprintf("%s-%d", slug, n)
		}
	}
	return of
}

// unbreakable matches text that cannot be wrapped: links and long code.
var unbreakable = regexp.MustCompile("`[^`]{60,}`|\\]\\([^)]*\\)")

// checkPageColumns bounds lines of pages that are written by hand, but for tables, blocks
// and what cannot be broken.
func checkPageColumns(files []source) (found []string) {
	for _, s := range files {
		if !strings.HasSuffix(s.path, ".md") || strings.HasPrefix(s.path, "docs/studies/") {
			continue
		}
		block := false
		for i, line := range strings.Split(string(s.text), "\n") {
			trimmed := strings.TrimSpace(line)
			if strings.HasPrefix(trimmed, "```") {
				block = !block
			}
			if n := utf8.RuneCountInString(unbreakable.ReplaceAllString(line, "")); n > maxColumns && !block &&
				!strings.HasPrefix(trimmed, "|") {
				found = append(found,
					fmt.Sprintf("%s:%d: %d columns; a line of a page has at most %d", s.path, i+1, n, maxColumns))
			}
		}
	}
	return found
}

// repository reads this repository, once.
var repository = sync.OnceValues(func() ([]source, error) { return readRepository(os.DirFS(".")) })

// TestRepository applies all rules to the repository.
func TestRepository(t *testing.T) {
	files, err := repository()
	if err != nil {
		t.Fatal(err)
	}
	// A walk that finds no files would satisfy every rule.
	for _, must := range []string{
		"doc.go", "internal/proc/transport/transport.go", "internal/data/wire/frame.go",
		"repo_test.go",
	} {
		if !slices.ContainsFunc(files, func(s source) bool { return s.path == must && s.file != nil }) {
			t.Fatalf("%s was not found among %d files", must, len(files))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(rules)) {
		for _, f := range rules[name](files) {
			t.Errorf("%s: %s", name, f)
		}
	}
}

// readRepository reads every text file below the root and parses the Go files of this module.
func readRepository(root fs.FS) (files []source, err error) {
	fset := token.NewFileSet()
	err = fs.WalkDir(root, ".", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && p != "." && (slices.Contains(ignoredFolders, d.Name()) || slices.Contains(ignoredPaths, p)):
			return fs.SkipDir
		case !d.Type().IsRegular() || p == ".git": // .git is a file in a linked worktree
			return nil
		}
		text, err := fs.ReadFile(root, p)
		if err != nil {
			return err
		}
		if bytes.IndexByte(text, 0) >= 0 { // binary; pages may link to it
			text = nil
		}
		s := source{path: p, text: text, fset: fset}
		if strings.HasSuffix(p, ".go") && !strings.HasPrefix(p, "tools/") {
			s.file, err = parser.ParseFile(fset, p, text, parser.ParseComments)
		}
		files = append(files, s)
		return err
	})
	return files, err
}

// TestRules checks, for each rule, what it reports and what it accepts.
func TestRules(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(ruleCases)) {
		for i, c := range ruleCases[name] {
			fset := token.NewFileSet()
			s := source{path: c.path, text: []byte(c.text), fset: fset}
			if strings.HasSuffix(c.path, ".go") {
				file, err := parser.ParseFile(fset, c.path, c.text, parser.ParseComments)
				if err != nil {
					t.Fatalf("%s %d: %v", name, i, err)
				}
				s.file = file
			}
			found := rules[name]([]source{s})
			if c.want == "" && len(found) > 0 ||
				c.want != "" && (len(found) != 1 || !strings.Contains(found[0], c.want)) {
				t.Errorf("%s: %s\n%.200s\nfound %q, want %q", name, c.path, c.text, found, c.want)
			}
		}
	}
	for name := range rules {
		if !slices.ContainsFunc(ruleCases[name], func(c ruleCase) bool { return c.want != "" }) {
			t.Errorf("rule %s has no case that it catches", name)
		}
	}
}

// ruleCase is one file and the expected finding; "": none.
type ruleCase struct{ path, text, want string }

func importing(importPath string) string { return "package x\nimport _ " + strconv.Quote(importPath) }

func lines(n int) string { return strings.Repeat("\n", n) }

var ruleCases = map[string][]ruleCase{
	"standard output": {
		{
			"cmd/perdure/a.go", "package main\nimport \"fmt\"\nfunc f() { fmt.Println() }",
			"a.go:3: a command prints to stdout",
		},
		{"cmd/perdure/a.go", "package main\nimport \"os\"\nvar f = os.Stdout", "a.go:3: a command prints to stdout"},
		{"cmd/perdure/a.go", "package main\nimport (\"fmt\"; \"os\")\nfunc f() { fmt.Fprintln(os.Stderr) }", ""},
		{"cmd/perdure/stdout.go", "package main\nimport \"os\"\nvar f = os.Stdout", ""},
		{"examples/a.go", "package main\nimport \"os\"\nvar f = os.Stdout", ""},
	},
	"page links": {
		{"docs/a.md", "see [it](b.md)", "docs/a.md:1: there is no docs/b.md"},
		{"docs/a.md", "x\n![it](../c/d.svg#part)", "docs/a.md:2: there is no c/d.svg"},
		{
			"docs/a.md", "# Here\n<a id=\"there\"></a>\n# `Here`, too\nsee [it](a.md#here), [here](#there), " +
				"[2](#here-too), [that](https://x.org/b.md), [all](.)", "",
		},
		{"docs/a.md", "# Here\nsee [it](a.md#there)", "docs/a.md:2: docs/a.md has no heading for #there"},
		{"docs/a.md", "```sh\n# Here\n```\nsee [it](#here)", "docs/a.md:4: docs/a.md has no heading for #here"},
	},
	"types":   typeCases,
	"columns": columnCases,
	"prose":   proseCases,
	"page lines": {
		{"docs/a.md", strings.Repeat("a\n", maxPageLines), ""},
		{"docs/a.md", strings.Repeat("a\n", maxPageLines+1), "docs/a.md: 401 lines"},
		{"docs/bench/2026-11-21.md", strings.Repeat("a\n", maxPageLines+1), ""},
		{"docs/bench/how.md", strings.Repeat("a\n", maxPageLines+1), "docs/bench/how.md: 401 lines"},
	},
	"page columns": {
		{"a.md", strings.Repeat("ä", maxColumns), ""},
		{"a.md", "x\n" + strings.Repeat("a ", maxColumns), "a.md:2: 240 columns"},
		{"a.md", "| " + strings.Repeat("a ", maxColumns), ""},
		{"a.md", "```\n" + strings.Repeat("a ", maxColumns) + "\n```\n", ""},
		{"a.md", "run `perdure " + strings.Repeat("a ", maxColumns) + "` [so](" + strings.Repeat("b", maxColumns) +
			")", ""},
		{"docs/studies/x/a.md", strings.Repeat("a ", maxColumns), ""},
	},
	"page commands": {
		{"a.md", "```\nperdure train\n```\n", "a.md:2: a block with commands begins"},
		{"a.md", "```console\n$ ls\n```\n", "a.md:2: a block"},
		{"a.md", "  ```sh look\n  make x\n  make y\n  ```\n", "a.md:2: a block"},
		{"a.md", "```sh run\nbin/perdure train\n```\n", ""},
		{"a.md", "```console parse\n$ perdure up\nx\n```\n", ""},
		{"a.md", "```text\nperdure train\n```\nperdure train\n", ""},
		{"a.md", "```\nperdure: it is full\n```\n", ""},
	},
	"wall clocks": {
		{"internal/proc/server/a.go", "package a\n\nvar x = y.UnixNano()\n", "reads the wall clock"},
		{"worker/a.go", "package a\n\nvar x = y.ModTime()\n", "reads the wall clock"},
		{"worker/a.go", "package a\n\nvar x = y.Sub(z)\n", ""},
		{"worker/a_test.go", "package a\n\nvar x = y.UnixNano()\n", ""},
	},
	"import ranks": {
		{"internal/proc/server/a.go", importing(module + "/internal/data/wire"), ""},
		{"internal/proc/control/a.go", importing(module + "/internal/proc/control/v1"), ""},
		{"internal/core/membership/a.go", importing(module + "/internal/core/placement"), ""},
		{"internal/data/wire/a.go", importing("bytes"), ""},
		{
			"internal/data/wire/a.go", importing(module + "/internal/proc/transport"),
			"must not import internal/proc/transport",
		},
		{
			"internal/core/placement/a.go", importing(module + "/internal/core/membership"),
			"must not import internal/core/membership",
		},
		{"a.go", importing(module + "/internal/data/wire"), ". (rank 0) must not import internal/data/wire"},
		{
			"internal/data/wire/v2/a.go", importing(module + "/internal/proc/server/x"),
			"must not import internal/proc/server",
		},
		{"internal/data/wire/a_test.go", importing(module + "/internal/proc/server"), ""},
		{"worker/a.go", importing(module + "/internal/proc/server"), "every program"},
		{"internal/data/updatelog/a.go", importing(module + "/internal/core/chain"), "rival"},
		{"internal/core/chain/a.go", importing(module + "/internal/data/updatelog"), "rival"},
		{"cmd/perdure/a.go", importing(module + "/internal/sim"), "nothing imports sim"},
		{"internal/proc/server/a_test.go", importing(module + "/internal/sim"), "nothing imports sim"},
		{"internal/sim/a_test.go", importing(module + "/internal/proc/server"), ""},
		{"cmd/perdure/a.go", importing(module + "/internal/testcluster"), "only tests and sim import testcluster"},
		{"worker/a_test.go", importing(module + "/internal/testcluster"), ""},
		{"internal/sim/a.go", importing(module + "/internal/testcluster"), ""},
		{"attic/a.go", importing("bytes"), "attic is not in the table of import ranks"},
		{"internal/attic/a.go", importing("bytes"), "internal/attic is not in the table of import ranks"},
	},
	"purity":     purityCases,
	"page names": pageNameCases,
	"layers":     layerCases,
	"exits": {
		{"server/a.go", "package x\nimport \"os\"\nfunc f() { os.Exit(1) }", "server/a.go:3: only a command"},
		{"server/a.go", "package x\nimport \"log\"\nfunc f() { log.Fatalf(\"\") }", "only a command"},
		{"server/a.go", "package x\nimport o \"os\"\nvar f = o.Exit", "only a command"},
		{"server/a.go", "package x\nimport \"os\"\nfunc f() { os.Getpid() }", ""},
		{"server/a.go", "package x\nfunc f(os interface{ Exit(int) }) { os.Exit(1) }", ""},
		{"cmd/perdure/a.go", "package main\nimport \"os\"\nfunc f() { os.Exit(1) }", ""},
	},
	"package comment": {
		{"wire/a.go", "// Package wire says why.\npackage wire", ""},
		{"wire/a.go", "package wire", "wire: no package comment"},
		{"wire/a.go", "// Wire.\npackage wire", "wire: no package comment"},
		{"cmd/perdure/a.go", "// Perdure trains.\npackage main", ""},
		{"cmd/perdure/a.go", "package main", "cmd/perdure: no package comment"},
		{"sim/a_test.go", "package sim", "sim: no package comment"},
		{"sim/a_test.go", "// Package sim is tests.\npackage sim", ""},
	},
	"package name": {
		{"wire/a.go", "package wire", ""},
		{"wire/util/a.go", "package wireutil", "not wireutil"},
		{"common/a_test.go", "package common_test", "not common"},
	},
	"sleep": {
		{
			"wire/a_test.go", "package x\nimport \"time\"\nfunc f() { time.Sleep(1) }",
			"a_test.go:3: a test must not sleep",
		},
		{"wire/a_test.go", "package x\nimport (\"time\"; \"testing/synctest\")\nfunc f() { synctest.Test(nil, " +
			"func() { time.Sleep(1) }) }", ""},
		{"wire/a_test.go", "package x\nimport (\"time\"; \"testing/synctest\")\nfunc f() { synctest.Wait(); " +
			"time.Sleep(1) }", "must not sleep"},
		{"server/a.go", "package x\nimport \"time\"\nfunc f() { time.Sleep(1) }", ""},
	},
	"size": {
		{"wire/a.go", "package x" + lines(maxFileLines), ""},
		{"wire/a.go", "package x" + lines(maxFileLines+1), "601 lines; a file"},
		{"wire/a_test.go", "package x" + lines(maxTestFileLines), ""},
		{"wire/a_test.go", "package x" + lines(maxTestFileLines+1), "901 lines; a file"},
		{"wire/a.go", "// Code generated by x. DO NOT EDIT.\npackage x" + lines(maxFileLines+1), ""},
		{"wire/a.go", "package x\nfunc f() {" + lines(maxFuncLines-1) + "}", ""},
		{"wire/a.go", "package x\nfunc f() {" + lines(maxFuncLines) + "}", "f has 71 lines"},
	},
	"private path": {
		{"README.md", "a\nsee " + privatePaths[0] + "x", "README.md:2: "},
		{"README.md", "cd ~/work && ls /tmp/work", ""},
	},
}

package perdure_test

import (
	"fmt"
	"go/ast"
	"path"
	"regexp"
	"strings"
)

// namingPages lists the pages that describe where things are. The names on them must exist.
var namingPages = []string{"docs/architecture.md", "docs/DESIGN.md", "CONTRIBUTING.md", "docs/design/"}

// planned lists names on these pages for features that do not exist yet, with a description.
var planned = map[string]string{"LastSaved": "a fate, if rows are saved by bytes"}

var (
	quoted     = regexp.MustCompile("`([^`]+)`")
	pathOfCode = regexp.MustCompile(`^(internal|cmd|worker|watch|examples|studies|docs|tools)/[\w./-]+$`)
	goFile     = regexp.MustCompile(`^\w+\.go$`)
	goName     = regexp.MustCompile(`^[A-Za-z]\w*(\.[A-Za-z]\w*)*$`)
	goCase     = regexp.MustCompile(`\.|[A-Z]\w*[a-z]|[a-z]\w*[A-Z]`) // else it is a plain word, or stands for one
	noName     = regexp.MustCompile(`\.(md|json)$|NAME|/testdata/`)
)

// checkPageNames asks that paths, files and Go names in backquotes are there.
func checkPageNames(files []source) (found []string) {
	there, declared := map[string]bool{}, map[string]bool{}
	for _, s := range files {
		for p := s.path; p != "."; p = path.Dir(p) {
			there[p] = true
		}
		there[path.Base(s.path)] = true
		if s.file != nil {
			declare(s.file, declared)
		}
	}
	for _, s := range files {
		if !strings.HasSuffix(s.path, ".md") || !namesThings(s.path) {
			continue
		}
		block := false
		for i, line := range strings.Split(string(s.text), "\n") {
			if strings.HasPrefix(strings.TrimSpace(line), "```") {
				block = !block
			}
			if block {
				continue
			}
			for _, m := range quoted.FindAllStringSubmatch(line, -1) {
				if name := missing(m[1], there, declared); name != "" {
					found = append(found, fmt.Sprintf("%s:%d: there is no %s", s.path, i+1, name))
				}
			}
		}
	}
	return found
}

func namesThings(page string) bool {
	if page == "docs/design/pytorch.md" { // its names are Python's
		return false
	}
	for _, p := range namingPages {
		if page == p || strings.HasSuffix(p, "/") && strings.HasPrefix(page, p) {
			return true
		}
	}
	return false
}

// missing returns the part of a text in backquotes that does not exist, or "".
func missing(text string, there, declared map[string]bool) string {
	text, _, _ = strings.Cut(text, "(") // only the name of a call
	switch {
	case planned[text] != "", noName.MatchString(text):
	case goFile.MatchString(text), pathOfCode.MatchString(text):
		if !there[strings.TrimSuffix(text, "/")] {
			return text
		}
	case goName.MatchString(text) && goCase.MatchString(text):
		for _, part := range strings.Split(text, ".") {
			if !declared[part] {
				return text
			}
		}
	}
	return ""
}

// declare adds the names that a file declares, including its package name.
func declare(f *ast.File, names map[string]bool) {
	names[f.Name.Name] = true
	for n := range ast.Preorder(f) {
		switch n := n.(type) {
		case *ast.FuncDecl:
			names[n.Name.Name] = true
		case *ast.TypeSpec:
			names[n.Name.Name] = true
		case *ast.ValueSpec:
			for _, name := range n.Names {
				names[name.Name] = true
			}
		case *ast.Field:
			for _, name := range n.Names {
				names[name.Name] = true
			}
		}
	}
}

var pageNameCases = []ruleCase{
	{"docs/architecture.md", "x\nsee `internal/core/attic`", "docs/architecture.md:2: there is no internal/core/attic"},
	{"docs/architecture.md", "see `attic.go` in `docs/DESIGN.md`", "there is no attic.go"},
	{"docs/architecture.md", "it calls `Replica.Settle()`", "there is no Replica.Settle"},
	{"docs/architecture.md", "`lower`, `--flag`, `a b`, `x:Y`, `SCENARIO`, `run.json`, `core/NAME.go`", ""},
	{"docs/architecture.md", "```\n`Nowhere`\n```\n", ""},
	{"docs/guide/start.md", "`Nowhere`", ""},
}

// measured matches pages without a length limit: results written by a program or on a single day, and the reference of
// the commands, which is generated from their help.
var measured = regexp.MustCompile(`^docs/(studies/|bench/\d{4}-\d\d-\d\d\.md$|guide/commands\.md$)`)

// checkPageLines limits the length of pages: a longer page answers several questions.
func checkPageLines(files []source) (found []string) {
	for _, s := range files {
		n := strings.Count(string(s.text), "\n")
		page := strings.HasSuffix(s.path, ".md") && s.path != "CHANGELOG.md" && !measured.MatchString(s.path)
		if page && n > maxPageLines {
			found = append(found, fmt.Sprintf("%s: %d lines; a page has at most %d", s.path, n, maxPageLines))
		}
	}
	return found
}

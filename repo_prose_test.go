package perdure_test

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

var updateProse = flag.Bool("prose.update", false, "lower the numbers in "+proseFile)

// proseFile holds the number of phrasings that each directory may still contain. The numbers may only decrease.
const proseFile = "repo_prose.txt"

// phrasings lists expressions that a native technical writer would not use, each with a replacement. A match of the
// group is correct usage.
var phrasings = []struct{ write, find string }{
	{"name the process or the user", `\b[Ww]ho(?:ever)?\b( wrote| maintains)?`},
	{"use the noun", `\b[Ww]hat (?:is|are|was|were|has|had|have|of|comes?|came|it|they|he|there|each|all|others|` +
		`follows|stands|lies|belongs|a \w+)\b`},
	{"name the process or the user", `\b(?:[Nn]o|[Ss]ome|[Ee]very|[Aa]ny)body\b`},
	{"use a common word", `\b(?:anew|likewise|amid|thereby|therein|hitherto|whither|nought|alike)\b`},
	{"is not a, there is no", `\b(?:is|are|was|were) (?:no|none)\b( longer| more| less)?`},
	{"next to, compared with, besides", `\b[Bb]eside\b`},
	{"after", `\bbehind (?:the|it|a|an|this|that|them|each|its|which|one)\b`},
	{"rolls back, returns", `\b(?:go|goes|went|gone|going) back\b`},
	{"must, should, will", `\b(?:is|are|was|were) to (?:be|have|do|go|end|say|hold|come|take|keep|stay|get|make|` +
		`tell|wait|leave|survive|begin|send)\b`},
	{"also", `, too[.,;:)]`},
	{"reach, result in", `\b(?:come|comes|came) (?:to|of) (an end|a halt|rest)?`},
	{"they, it", `\b(?:[Hh]e|his|him|himself)\b`},
	{"split the sentence", `\b(?:of|by|with|upon|behind|beside|while|to) (?:which|whom)\b`},
	{"immediately, permanently, instead", `\bas ever\b|\bin (?:the )?place of\b|\bat once\b|\bfor good\b`},
	{"is notified, receives", `\b(?:is|are|was|were) (?:told|heard)\b|\bhas (?:heard|told)\b|\b(?:hears|tells) of\b`},
	{"continue, resume", `\b(?:go|goes|went|going) on\b`},
}

var (
	findPhrasing = func() (all []*regexp.Regexp) {
		for _, p := range phrasings {
			all = append(all, regexp.MustCompile(p.find))
		}
		return all
	}()
	goComment  = regexp.MustCompile(`(?:^|\s)//\s?(.*)$`)
	pyComment  = regexp.MustCompile(`#\s?(.*)$`)
	textInCode = regexp.MustCompile(`"((?:[^"\\]|\\.)*)"`)
	codeSpan   = regexp.MustCompile("`[^`]*`|\\]\\([^)]*\\)|https?://\\S+")
)

// proseOf returns the lines of a file that people read: comments, docstrings, Markdown, and string literals of four
// words or more. Others are empty.
func proseOf(s source) (lines []string) {
	fence, doc := false, false
	for line := range strings.Lines(string(s.text)) {
		line, prose := strings.TrimRight(line, "\r\n"), ""
		quoted := func() (all string) {
			for _, m := range textInCode.FindAllStringSubmatch(line, -1) {
				if strings.Count(m[1], " ") >= 3 {
					all += m[1] + "\n"
				}
			}
			return all
		}
		switch path.Ext(s.path) {
		case ".md":
			if mark := strings.HasPrefix(strings.TrimSpace(line), "```"); mark {
				fence = !fence
			} else if !fence {
				prose = line
			}
		case ".go":
			if m := goComment.FindStringSubmatch(line); m == nil {
				prose = quoted()
			} else if !strings.HasPrefix(m[1], "go:") {
				prose = m[1]
			}
		case ".py":
			switch n := strings.Count(line, `"""`); {
			case doc || n > 0:
				prose, doc = line, doc != (n%2 == 1)
			default:
				if m := pyComment.FindStringSubmatch(line); m != nil {
					prose = m[1] + "\n"
				}
				prose += quoted()
			}
		}
		lines = append(lines, codeSpan.ReplaceAllString(prose, " "))
	}
	return lines
}

// checkProse counts the phrasings in each directory, and reports directories whose number differs from proseFile.
func checkProse(files []source) (found []string) {
	counts, examples := map[string]int{}, map[string][]string{}
	for _, s := range files {
		switch {
		case s.file != nil && s.isGenerated(), strings.Contains(s.path, "testdata/"), s.path == "repo_prose_test.go":
			continue
		}
		dir := path.Dir(s.path)
		for i, line := range proseOf(s) {
			if line == "" {
				continue
			}
			for k, find := range findPhrasing {
				for _, m := range find.FindAllStringSubmatch(line, -1) {
					if len(m) > 1 && m[1] != "" {
						continue
					}
					counts[dir]++
					examples[dir] = append(examples[dir],
						fmt.Sprintf("\n\t%s:%d: %q: %s", s.path, i+1, m[0], phrasings[k].write))
				}
			}
		}
	}
	allowed := readProse()
	for _, dir := range slices.Sorted(maps.Keys(counts)) {
		if n := counts[dir]; n > allowed[dir] {
			found = append(found, fmt.Sprintf("%s: %d odd phrasings, %d are allowed; rewrite sentences such as:%s", dir,
				n, allowed[dir], strings.Join(examples[dir][:min(n, 40)], "")))
		}
	}
	for dir, most := range allowed {
		if n := counts[dir]; len(files) > 1 && n < most {
			found = append(found, fmt.Sprintf("%s: %d odd phrasings, %d are allowed: lower that, as go test . "+
				"-prose.update does", dir, n, most))
		}
	}
	if *updateProse && len(files) > 1 {
		return writeProse(counts, allowed)
	}
	return found
}

// readProse returns how many phrasings each directory may contain.
func readProse() map[string]int {
	allowed := map[string]int{}
	text, err := os.ReadFile(proseFile)
	if err != nil {
		return allowed
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		var dir string
		var n int
		if _, err := fmt.Sscan(lines.Text(), &n, &dir); err == nil {
			allowed[dir] = n
		}
	}
	return allowed
}

// writeProse lowers the allowed numbers to the actual ones. It raises none.
func writeProse(counts, allowed map[string]int) []string {
	var b strings.Builder
	for _, dir := range slices.Sorted(maps.Keys(counts)) {
		n := counts[dir]
		if most, known := allowed[dir]; known {
			n = min(n, most)
		} else if len(allowed) > 0 {
			continue
		}
		fmt.Fprintf(&b, "%d %s\n", n, dir)
	}
	if err := os.WriteFile(proseFile, []byte(b.String()), 0o600); err != nil {
		return []string{err.Error()}
	}
	return nil
}

var proseCases = []ruleCase{
	{"a/a.go", "package a\n\n// It tells who waits.", `a/a.go:3: "who": name the process or the user`},
	{"a/a.go", "package a\n\nvar s = \"it is to be done by the worker\"", "must, should, will"},
	{"a/a.go", "package a\n\n// The user who wrote it is no longer there. It comes to an end.\nvar s = \"who\"", ""},
	{"a/a.md", "The worker goes on.\n\n```sh\nwho goes on\n```", "1 odd phrasings"},
	{"a/a.md", "Run `who`, see [x](who.md).", ""},
	{"a/a.py", "x = 1  # it is told", "a/a.py:1"},
	{"a/a.py", "\"\"\"Nobody\n\nwaits.\"\"\"\nx = 'nobody'", "a/a.py:1"},
}

// tabColumns is the width of a tab.
const tabColumns = 4

// checkColumns limits the line length of code that is not generated.
func checkColumns(s source) (found []string) {
	for i, line := range strings.Split(string(s.text), "\n") {
		n := utf8.RuneCountInString(line) + strings.Count(line, "\t")*(tabColumns-1)
		if n > maxColumns {
			found = append(found, fmt.Sprintf("%s:%d: %d columns; a line has at most %d", s.path, i+1, n, maxColumns))
		}
	}
	return found
}

var columnCases = []ruleCase{
	{"a.go", "package a\n\n// " + strings.Repeat("ä", maxColumns-3), ""},
	{"a.go", "package a\n\n\t// " + strings.Repeat("a", maxColumns-3), "a.go:3: 124 columns"},
}

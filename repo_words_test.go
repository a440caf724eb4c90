package perdure_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// retired are phrases that once stood in comments and pages and made them hard to read. What
// to say instead stands beside each.
var retired = map[string]string{
	"so many":      "name the number: n clocks, count rows",
	"of no one":    "say to what it belongs",
	"what of a":    "say which part is meant",
	"a picture of": "a snapshot",
}

// checkWords keeps retired phrases out of comments and pages.
func checkWords(files []source) (found []string) {
	phrases := slices.Sorted(maps.Keys(retired))
	find := regexp.MustCompile(`(?i)\b(` + strings.Join(phrases, "|") + `)\b`)
	for _, s := range files {
		switch {
		case s.path == "repo_words_test.go", strings.HasPrefix(s.path, "docs/studies/"):
		case s.file != nil && !s.isGenerated():
			for _, group := range s.file.Comments {
				text := strings.Join(strings.Fields(group.Text()), " ") // a phrase may go over two lines
				if was := strings.ToLower(find.FindString(text)); was != "" {
					found = append(found, fmt.Sprintf("%s:%d: %q is retired: %s",
						s.path, s.line(group.Pos()), was, retired[was]))
				}
			}
		case strings.HasSuffix(s.path, ".md"):
			for i, line := range strings.Split(string(s.text), "\n") {
				if was := strings.ToLower(find.FindString(line)); was != "" {
					found = append(found, fmt.Sprintf("%s:%d: %q is retired: %s", s.path, i+1, was, retired[was]))
				}
			}
		}
	}
	return found
}

// tabColumns is how wide a tab counts.
const tabColumns = 4

// checkColumns bounds the lines of code that is written by hand.
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

var wordCases = []ruleCase{
	{"a.go", "package a\n\n// It waits for So Many clocks.", `a.go:3: "so many" is retired`},
	{"a.go", "package a\n\n// It waits for so\n// many clocks.", `a.go:3: "so many" is retired`},
	{"a.go", "package a\n\n// It waits for so manyfold.\nvar s = `so many`", ""},
	{"a.md", "x\nthe rows of no one slot", `a.md:2: "of no one" is retired`},
	{"docs/studies/a.md", "so many", ""},
}

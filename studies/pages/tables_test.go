package main

import (
	"encoding/csv"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/study"
	"github.com/perdure/perdure/internal/run/study/failurecost"
)

var writeTables = flag.Bool("tables.write", false, "write the recomputed figures into docs/studies and docs/STUDIES.md")

const (
	publishedDir = "../../docs/studies"
	indexPage    = "../../docs/STUDIES.md"
)

var (
	bannerFormat = regexp.MustCompile(`\*\*Measured \d{4}-\d\d-\d\d\*\* .* until measured again.*\n> .*\*\*Limits:`)
	trialsText   = regexp.MustCompile(`\*\*n = [^.]*\.`)
	sourcesText  = regexp.MustCompile("(?s)\n`make study-tables` .*?\n\n")
	absentName   = regexp.MustCompile(`\*([^*]+)\*|\d+ of \d+ rows`)
	studyLink    = regexp.MustCompile(`\(studies/([a-z-]+)/`)
)

// TestTables recomputes the tables of all study pages from the published files. The files lack the summaries and the
// series of the runs, so some columns cannot be recomputed. Each page has a paragraph that lists these columns. If all
// tables are equal, it prints their number for users of make study-tables.
func TestTables(t *testing.T) {
	all, pages, tables := map[string]*outcome{}, map[string]string{}, 0
	for _, name := range slices.Sorted(maps.Keys(writers)) {
		file := filepath.Join(publishedDir, name, pageName)
		b, err := os.ReadFile(file)
		must(t, err)
		s, err := published(filepath.Join(publishedDir, name))
		must(t, err)
		p, err := s.page()
		must(t, err)
		text, again := string(b), string(p.files[pageName])
		fixed, absent := checkTables(t, file, text, again)
		tables += len(tablesOf(fixed))
		sources := sourcesText.FindString(text)
		if sources != sourcesText.FindString(again) {
			t.Errorf("%s: the paragraph about make study-tables differs from the template's", file)
		}
		if listed := absentNames(sources); !slices.Equal(listed, absent) {
			t.Errorf("%s: the paragraph about make study-tables lists %q; the published files lack %q", file, listed,
				absent)
		}
		n := trialsText.FindString(unquoted(again))
		if banner := bannerFormat.FindString(unquoted(text)); !strings.Contains(banner, n) {
			t.Errorf("%s: the banner lacks a date, limits, %q or that figures stand until measured again", file, n)
		}
		all[name], pages[name] = s, fixed
	}
	b, err := os.ReadFile(indexPage)
	must(t, err)
	fixed, _ := checkTables(t, indexPage, string(b), indexAgain(string(b), all, pages))
	if tables += len(tablesOf(fixed)); !t.Failed() {
		fmt.Printf("%d tables on %d pages equal those recomputed from the published files\n", tables, len(pages)+1)
	}
}

// checkTables compares the tables of a page with recomputed ones. It returns the page with the recomputed figures, and
// the names of the columns, rows or sections that cannot be recomputed.
func checkTables(t *testing.T, file, text, again string) (fixed string, absent []string) {
	fixed, found, absent := compareTables(text, again)
	if *writeTables && fixed != text {
		must(t, os.WriteFile(file, []byte(fixed), 0o666))
		return fixed, absent
	}
	for _, f := range found {
		t.Errorf("%s:%s; to write it into the page: make study-tables UPDATE=1", strings.TrimPrefix(file, "../../"), f)
	}
	return fixed, absent
}

// absentNames returns the columns, sections and numbers of rows that a paragraph lists as not published.
func absentNames(paragraph string) (names []string) {
	for _, m := range absentName.FindAllStringSubmatch(strings.Join(strings.Fields(paragraph), " "), -1) {
		if m[1] == "" {
			m[1] = m[0]
		}
		names = append(names, m[1])
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// unquoted returns a text with the lines of each block quote joined.
func unquoted(text string) string { return strings.ReplaceAll(text, "\n> ", " ") }

// published reads the published files of a study: the figures in runs.csv and, in a study of losses, the trials of each
// problem.
func published(dir string) (*outcome, error) {
	rows, err := readCSV(filepath.Join(dir, "runs.csv"))
	if err != nil {
		return nil, err
	}
	first := slices.Index(rows[0], "state") + 1 // column of the figures
	s := &outcome{Results: study.Results{Name: filepath.Base(dir), Axes: rows[0][1 : first-3]}, folder: dir}
	if end := first + len(study.Figures); len(rows[0]) < end || !slices.Equal(rows[0][first:end], study.Figures) {
		return nil, fmt.Errorf("%s: the figures in runs.csv are not %q", dir, study.Figures)
	}
	var c *cell
	for _, row := range rows[1:] {
		if c == nil || c.name != row[0] {
			c = s.addCell(&study.CellResult{Name: row[0], Choices: row[1 : first-3], Failures: row[first-3]})
			if c.losses, err = publishedTrials(filepath.Join(dir, c.name+".csv")); err != nil {
				return nil, err
			}
			if c.losses != nil {
				s.Kind = study.KindLosses
			}
		}
		seed, err := strconv.ParseUint(row[first-2], 10, 64)
		if err != nil {
			return nil, err
		}
		if row[first-1] != "done" {
			c.failed = append(c.failed, study.FailedRun{Seed: seed, Why: row[len(row)-1]})
			continue
		}
		figures := map[string]float64{}
		for i, name := range study.Figures {
			if text := row[first+i]; text != "" {
				if figures[name], err = strconv.ParseFloat(text, 64); err != nil {
					return nil, err
				}
			}
		}
		c.trials = append(c.trials, &trial{figures: figures})
	}
	return s, nil
}

// publishedTrials reads the published trials of a problem. It returns nil if the file is missing. The result has no
// number of bytes.
func publishedTrials(file string) (*failurecost.Result, error) {
	rows, err := readCSV(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r := &failurecost.Result{}
	if !slices.Equal(rows[0], r.Rows()[0]) {
		return nil, fmt.Errorf("%s: the columns are %q", file, rows[0])
	}
	number := func(text string) (v float64) {
		v, failed := strconv.ParseFloat(text, 64)
		err = errors.Join(err, failed)
		return v
	}
	for _, row := range rows[1:] {
		of := failurecost.Trial{
			Strategy: row[0], Lost: number(row[1]), Seed: uint64(number(row[2])), Cost: int(number(row[7])),
			Censored: row[8] == "true",
		}
		for i, clock := range strings.Split(row[3], ";") {
			if clock != "" {
				norm := number(strings.Split(row[6], ";")[i])
				of.Failures = append(of.Failures, failurecost.Failure{Clock: perdure.Clock(number(clock)), Norm: norm})
			}
		}
		if row[9] != "" {
			bound := int(number(row[9]))
			of.Bound = &bound
		}
		if row[10] != "" {
			bound := number(row[10])
			of.SimpleBound = &bound
		}
		if !slices.ContainsFunc(r.Twins, func(w failurecost.Twin) bool { return w.Seed == of.Seed }) {
			r.Twins = append(r.Twins, failurecost.Twin{Seed: of.Seed})
		}
		r.Trials = append(r.Trials, of)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	r, err = failurecost.Pool([]*failurecost.Result{r})
	if err == nil {
		r.Bytes = nil
	}
	return r, err
}

func readCSV(file string) ([][]string, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return csv.NewReader(f).ReadAll()
}

// mdTable is a table of a page. rows starts with the headings and the line below them.
type mdTable struct {
	section string // heading above it
	line    int    // of the headings, from 0
	rows    [][]string
}

func tablesOf(text string) (all []mdTable) {
	section, inside := "", false
	for i, line := range strings.Split(text, "\n") {
		was := inside
		if inside = strings.HasPrefix(line, "|"); !inside {
			if strings.HasPrefix(line, "#") {
				section = strings.TrimLeft(line, "# ")
			}
			continue
		}
		if !was {
			all = append(all, mdTable{section: section, line: i})
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for k := range cells {
			cells[k] = strings.TrimSpace(cells[k])
		}
		last := &all[len(all)-1]
		last.rows = append(last.rows, cells)
	}
	return all
}

// compareTables compares the tables of a page with recomputed ones. It returns the page with the recomputed figures,
// the differences with their lines, and the names of the columns, rows or sections that cannot be recomputed.
func compareTables(text, again string) (fixed string, found, absent []string) {
	lines, have, want := strings.Split(text, "\n"), tablesOf(text), tablesOf(again)
	if len(have) != len(want) {
		return text, []string{fmt.Sprintf("1: %d tables; recomputed %d", len(have), len(want))}, nil
	}
	for i, is := range have {
		if len(is.rows) != len(want[i].rows) || !slices.Equal(is.rows[0], want[i].rows[0]) {
			found = append(found, fmt.Sprintf("%d: %d rows of %q; recomputed %d of %q", is.line+1, len(is.rows)-2,
				is.rows[0], len(want[i].rows)-2, want[i].rows[0]))
			continue
		}
		differ := is.compare(want[i].rows, lines)
		found, absent = append(found, differ...), append(absent, is.absent(want[i].rows)...)
	}
	slices.Sort(absent)
	return strings.Join(lines, "\n"), found, slices.Compact(absent)
}

// compare returns the cells that differ from the recomputed ones, and writes the recomputed ones to lines.
func (t *mdTable) compare(want [][]string, lines []string) (found []string) {
	for y, row := range want[2:] {
		is := t.rows[y+2]
		for x, cell := range row {
			if is[x] != cell && !unknown(cell) {
				found = append(found, fmt.Sprintf("%d: row %s, column %q: %q; recomputed %q", t.line+y+3, is[0],
					t.rows[0][x], is[x], cell))
				is[x] = cell
				lines[t.line+y+2] = "| " + strings.Join(is, " | ") + " |"
			}
		}
	}
	return found
}

// absent names what recomputed rows lack: a number of rows if a column is known in other rows, the table's section if
// all columns are unknown, or the columns.
func (t *mdTable) absent(want [][]string) (names []string) {
	some, rows := false, map[int]bool{}
	for x, heading := range t.rows[0] {
		has, lacks := 0, 0
		for y, row := range want[2:] {
			switch {
			case !unknown(row[x]):
				has++
			case t.rows[y+2][x] != row[x]:
				lacks++
				rows[y] = true
			}
		}
		if lacks > 0 {
			names = append(names, heading)
		}
		some = some || has > 0 && lacks > 0
	}
	switch {
	case some:
		return []string{fmt.Sprintf("%d of %d rows", len(rows), len(want)-2)}
	case len(names) == len(t.rows[0])-1:
		return []string{t.section}
	}
	return names
}

// unknown reports whether a recomputed cell has no value.
func unknown(cell string) bool { return cell == "–" || cell == "– times" || cell == incomparable }

// indexAgain recomputes what the list of claims takes from the pages: the numbers of trials, and of verdicts.
func indexAgain(index string, all map[string]*outcome, pages map[string]string) string {
	lines := strings.Split(index, "\n")
	for i, line := range lines {
		m := studyLink.FindStringSubmatch(line)
		cells := strings.Split(line, " | ")
		if m == nil || len(cells) != 6 {
			continue
		}
		s := all[m[1]]
		if s == nil {
			continue // a study of another program, which writes its page
		}
		n, verdicts := s.trialCount(), &cells[4]
		if s.Kind == study.KindLosses {
			n = fmt.Sprint(s.cells[0].losses.Cells[0].Trials)
		}
		switch {
		case strings.HasPrefix(*verdicts, "reproduced on "):
			so, not, rest, of := verdictsIn(pages[m[1]], "paper: 78% to 95%")
			*verdicts = fmt.Sprintf("reproduced on %d of %d problems, not on %d, inconclusive on %d", so, of, not, rest)
		case strings.HasPrefix(*verdicts, "reproduced for "):
			so, _, _, of := verdictsIn(pages[m[1]], "continuing is cheaper, ranges disjoint")
			*verdicts = fmt.Sprintf("reproduced for %d of %d recovery strategies", so, of)
		}
		cells[5] = n + " |"
		lines[i] = strings.Join(cells, " | ")
	}
	return strings.Join(lines, "\n")
}

// verdictsIn counts the verdicts in a column of a page's tables.
func verdictsIn(text, heading string) (so, not, rest, all int) {
	for _, t := range tablesOf(text) {
		x := slices.Index(t.rows[0], heading)
		if x < 0 {
			continue
		}
		for _, row := range t.rows[2:] {
			all++
			switch row[x] {
			case reproduced:
				so++
			case notReproduced:
				not++
			default:
				rest++
			}
		}
	}
	return so, not, rest, all
}

// TestCompareTables checks that a table that differs from the recomputed one is reported and corrected, and that what
// cannot be recomputed is named and left unchanged.
func TestCompareTables(t *testing.T) {
	table := func(rows ...string) string {
		return "# Page\n\n## Part\n\n| | x | y |\n|---|--:|--:|\n" + strings.Join(rows, "\n") + "\n\nEnd.\n"
	}
	page := table("| `a` | 1 | 7 |", "| `b` | – | 8 |")
	for name, c := range map[string]struct{ again, fixed, found, absent string }{
		"same":    {page, page, "", ""},
		"column":  {table("| `a` | 1 | – |", "| `b` | – | – |"), page, "", "y"},
		"section": {table("| `a` | – | – |", "| `b` | – | not comparable |"), page, "", "Part"},
		"rows":    {table("| `a` | 1 | 7 |", "| `b` | – | – |"), page, "", "1 of 2 rows"},
		"figure": {
			table("| `a` | 1 | – |", "| `b` | 2 | – |"), table("| `a` | 1 | 7 |", "| `b` | 2 | 8 |"),
			"8: row `b`, column \"x\": \"–\"; recomputed \"2\"", "y",
		},
		"fewer rows": {table("| `a` | 1 | 7 |"), page, `5: 2 rows of ["" "x" "y"]; recomputed 1 of ["" "x" "y"]`, ""},
		"no table":   {"# Page\n", page, "1: 1 tables; recomputed 0", ""},
	} {
		fixed, found, absent := compareTables(page, c.again)
		if fixed != c.fixed || strings.Join(found, "\n") != c.found || strings.Join(absent, "\n") != c.absent {
			t.Errorf("%s: %q, absent %q, page:\n%s", name, found, absent, fixed)
		}
	}
}

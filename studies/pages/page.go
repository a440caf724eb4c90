package main

import (
	"embed"
	"fmt"
	"math"
	"strings"
	"text/template"
	"unicode/utf8"

	"github.com/perdure/perdure/internal/run/plain"
	"github.com/perdure/perdure/internal/run/plot"
	"github.com/perdure/perdure/internal/run/study"
)

// page collects the text of a page and the files that it links to.
type page struct {
	*outcome
	text  strings.Builder
	files map[string][]byte // pictures and tables that the page leads to, by name
}

//go:embed *.md.tmpl
var texts embed.FS

// fill writes the page's text, NAME.md.tmpl, which may call functions: those of all pages, and its own.
func (p *page) fill(name string, own template.FuncMap) {
	t := template.New(name + ".md.tmpl").Funcs(template.FuncMap{
		"atATime": p.atATime, "facts": p.facts,
		"command": func() string { return "```sh parse\nperdure study studies/" + p.Name + ".yaml\n```" },
		"runs":    func() string { return "[runs.csv](runs.csv) has a line for each run." },
	}).Funcs(own)
	t = template.Must(t.ParseFS(texts, name+".md.tmpl"))
	if err := t.Execute(&p.text, p.Results); err != nil { // the text does not fit its functions
		panic(err)
	}
}

// facts writes what the study ran on and how, what ran it, and how often.
func (p *page) facts(how string) string {
	trials, runs, quick, rest := "trials", "runs ", "", ""
	if p.Kind == study.OfLosses {
		trials, runs = "twins", ""
	}
	if p.Quick {
		quick = "; **tried out with --quick: no figure here means anything**"
	}
	if p.Missing > 0 {
		rest = fmt.Sprintf("; **%d of %d %sare still to be done**", p.Missing, p.Runs, runs)
	}
	return fmt.Sprintf("| | |\n|---|---|\n| machine | %d cores, %s; %s |\n| program | perdure %s, %s%s |\n"+
		"| %s | %s of each%s |\n", p.Machine.Cores, p.Machine.CPU, how, p.Version, p.date, quick, trials,
		p.tried(), rest)
}

// percent is the format of shares; others are those of fmt, and "" is four digits.
const percent = "percent"

// column is one of a table or a picture. With failures it shows the cell that differs from the row's cell only in its
// plan of failures, which is this one.
type column struct {
	heading  string
	of       measure
	format   string
	failures string
}

// col is a column of the cell itself.
func col(heading string, of measure, format string) column { return column{heading, of, format, ""} }

// spread is the column's value of a cell.
func (s *outcome) spread(c *cell, col *column) plot.Spread {
	if col.failures != "" {
		c = s.under(c, col.failures)
	}
	return c.spread(col.of)
}

// table writes a table: a row for each cell, by its labels of some axes, and columns.
func (p *page) table(cells []*cell, axes []string, columns ...column) string {
	text := "| |"
	for _, col := range columns {
		text += " " + col.heading + " |"
	}
	text += "\n|---|" + strings.Repeat("--:|", len(columns)) + "\n"
	for _, c := range cells {
		text += "| `" + p.named(c, axes...) + "` |"
		for i := range columns {
			text += " " + show(p.spread(c, &columns[i]), columns[i].format) + " |"
		}
		text += "\n"
	}
	return text + "\n"
}

// show writes the median of a spread, and its range where that is not one number.
func show(v plot.Spread, format string) string {
	if !known(v) {
		return "–"
	}
	return v.Text(func(x float64) string { return shown(x, format) })
}

// show writes the median and the range of a measure in the trials of a cell.
func (c *cell) show(of measure, format string) string { return show(c.spread(of), format) }

func shown(x float64, format string) string {
	switch {
	case format == "" || math.IsNaN(x) || math.IsInf(x, 0):
		return plain.Short(x)
	case format == percent:
		return plain.Percent1(x)
	}
	return fmt.Sprintf(format, x)
}

func known(v plot.Spread) bool { return !math.IsNaN(v.Mid) }

// Verdicts about the claims of a paper.
const (
	reproduced    = "reproduced"
	notReproduced = "not reproduced"
	incomparable  = "not comparable"
)

// A single trial says nothing of chance, so it reproduces nothing.
const (
	soOnce    = "so in one trial"
	notSoOnce = "not so in one trial"
)

// verdict says whether trials reproduce a claim; once: there was a single trial, which cannot.
func verdict(so, once bool) string {
	switch {
	case so && once:
		return soOnce
	case so:
		return reproduced
	case once:
		return notSoOnce
	}
	return notReproduced
}

// falls is the verdict about a fall: every trial falls, and further than each of those that nothing happened to.
func falls(found, calm plot.Spread) string {
	if !known(found) || !known(calm) {
		return incomparable
	}
	return verdict(found.High < 0 && found.High < calm.Low, found.N == 1 || calm.N == 1)
}

// rises is the verdict about a rise: every trial rises.
func rises(found plot.Spread) string {
	if !known(found) {
		return incomparable
	}
	return verdict(found.Low > 0, found.N == 1)
}

// above is the verdict about being above others: the median is, and the trials' ranges do not meet.
func above(found, others plot.Spread) string {
	if !known(found) || !known(others) {
		return incomparable
	}
	return verdict(found.Mid >= others.Mid && found.Low > others.High, found.N == 1 || others.N == 1)
}

// within is the verdict about a size: it is within a factor of 2 of the paper's, and of the same sign.
func within(paper, found float64) string {
	ratio := found / paper
	switch {
	case math.IsNaN(ratio) || math.IsInf(ratio, 0):
		return incomparable
	case ratio >= 0.5 && ratio <= 2:
		return reproduced
	}
	return notReproduced
}

// times says how many times as large as the paper's a size is.
func times(paper, found float64) string {
	ratio := found / paper
	switch {
	case math.IsNaN(ratio) || math.IsInf(ratio, 0):
		return "–"
	case ratio < 0:
		return "the other way"
	}
	return fmt.Sprintf("%.2f times", ratio)
}

// lineColumns is how long a line of text may be.
const lineColumns = 118

// tidy wraps paragraphs and items of lists. Blocks are separated by empty lines; tables, headings, pictures and code
// stay unchanged.
func tidy(text string) string {
	var blocks []string
	for block := range strings.SplitSeq(text, "\n\n") {
		block = strings.Trim(block, "\n")
		switch {
		case block == "":
			continue
		case !strings.ContainsAny(block[:1], "|#!") && !strings.HasPrefix(block, "```"):
			var lines []string
			for i, part := range strings.Split("\n"+block, "\n- ") {
				if i > 0 {
					lines = append(lines, wrap("- "+part, "  "))
				} else if part != "" {
					lines = append(lines, wrap(part, ""))
				}
			}
			block = strings.Join(lines, "\n")
		}
		blocks = append(blocks, block)
	}
	return strings.Join(blocks, "\n\n") + "\n"
}

// wrap breaks a text into lines, of which all but the first are indented.
func wrap(text, indent string) string {
	var out strings.Builder
	at := 0
	for i, w := range strings.Fields(text) {
		n := utf8.RuneCountInString(w)
		switch {
		case i > 0 && at+1+n > lineColumns:
			out.WriteString("\n" + indent)
			at = len(indent)
		case i > 0:
			out.WriteByte(' ')
			at++
		}
		out.WriteString(w)
		at += n
	}
	return out.String()
}

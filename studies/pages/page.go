package main

import (
	"cmp"
	"embed"
	"fmt"
	"math"
	"strings"
	"text/template"
	"unicode/utf8"

	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/plot"
	"github.com/perdure/perdure/internal/run/study"
)

// page collects the text of a page and the files that it links to.
type page struct {
	*outcome
	text  strings.Builder
	files map[string][]byte // linked pictures and tables, by name
}

//go:embed *.md.tmpl
var texts embed.FS

// fill executes the template NAME.md.tmpl. The template may call the functions that all pages share, and those in own.
func (p *page) fill(name string, own template.FuncMap) {
	t := template.New(name + ".md.tmpl").Funcs(template.FuncMap{
		"atATime": p.atATime, "banner": p.banner,
		"command": func() string { return "```sh parse\nperdure study studies/" + p.Name + ".yaml\n```" },
	}).Funcs(own)
	t = template.Must(t.ParseFS(texts, name+".md.tmpl"))
	if err := t.Execute(&p.text, p.Results); err != nil { // the template does not match its functions
		panic(err)
	}
}

// banner returns a block quote with the date, the program's version, the machine, how the study ran on it, the number
// of trials, and the limits of the results.
func (p *page) banner(how, limits string) string {
	n := "n = " + p.trialCount() + "** trials per cell"
	cells := "Cells show the median and, in parentheses, the minimum and maximum of the trials; the text gives medians."
	switch {
	case p.Kind == study.KindLosses:
		n = "n = " + p.trialCount() + "** twins per problem, with 5 failures each"
		cells = "Brackets hold 95% confidence intervals, by bootstrap."
	case p.hasSingleTrials():
		n, cells = "n = 1** trial per cell", "A single trial says nothing about chance."
	}
	state := " These figures stand until measured again: later versions may differ."
	if p.Quick {
		state = " **Made with --quick: the figures mean nothing.**"
	}
	if p.Missing > 0 {
		state += fmt.Sprintf(" **%d of %d runs are missing.**", p.Missing, p.Runs)
	}
	when := fmt.Sprintf("> **Measured %s** with perdure %s on %d cores (%s), %s. **%s.%s", cmp.Or(p.date, "never"),
		p.Version, p.Machine.Cores, p.Machine.CPU, how, n, state)
	return wrap(when, "> ") + "\n>\n" + wrap("> "+cells+" **Limits:** "+limits, "> ")
}

// percent is the format of shares. Other formats are those of fmt; "" prints four digits.
const percent = "percent"

// column is a column of a table or a picture. If failures is set, the column shows the cell that differs from the row's
// cell only in its failure plan.
type column struct {
	heading  string
	of       measure
	format   string
	failures string
}

// col returns a column that shows the row's own cell.
func col(heading string, of measure, format string) column { return column{heading, of, format, ""} }

// spread returns the column's values for a cell.
func (s *outcome) spread(c *cell, col *column) plot.Spread {
	if col.failures != "" {
		c = s.withFailures(c, col.failures)
	}
	return c.spread(col.of)
}

// table formats a table with one row per cell, named by its labels of the given axes.
func (p *page) table(cells []*cell, axes []string, columns ...column) string {
	text := "| |"
	for _, col := range columns {
		text += " " + col.heading + " |"
	}
	text += "\n|---|" + strings.Repeat("--:|", len(columns)) + "\n"
	for _, c := range cells {
		text += "| `" + p.nameOf(c, axes...) + "` |"
		for i := range columns {
			text += " " + show(p.spread(c, &columns[i]), columns[i].format) + " |"
		}
		text += "\n"
	}
	return text + "\n"
}

// show formats the median of a spread, and its range if it has more than one value.
func show(v plot.Spread, format string) string {
	if !known(v) {
		return "–"
	}
	return v.Text(func(x float64) string { return shown(x, format) })
}

// show formats the median and the range of a measure over the trials of a cell.
func (c *cell) show(of measure, format string) string { return show(c.spread(of), format) }

// median formats the median of a measure over the trials of a cell. Sentences use it; tables show the range as well.
func (c *cell) median(of measure, format string) string {
	if v := c.mid(of); !math.IsNaN(v) {
		return shown(v, format)
	}
	return "–"
}

func shown(x float64, format string) string {
	switch {
	case format == "" || math.IsNaN(x) || math.IsInf(x, 0):
		return humanize.Short(x)
	case format == percent:
		return humanize.Percent1(x)
	}
	return fmt.Sprintf(format, x)
}

func known(v plot.Spread) bool { return !math.IsNaN(v.Mid) }

// Verdicts about a paper's claims.
const (
	reproduced    = "reproduced"
	notReproduced = "not reproduced"
	incomparable  = "not comparable"
)

// Verdicts from a single trial. It shows nothing about chance, so it cannot reproduce a claim.
const (
	trueInOneTrial  = "so in one trial"
	falseInOneTrial = "not so in one trial"
)

// verdict returns whether the trials reproduce a claim. once is set if there was only one trial, which is not enough.
func verdict(so, once bool) string {
	switch {
	case so && once:
		return trueInOneTrial
	case so:
		return reproduced
	case once:
		return falseInOneTrial
	}
	return notReproduced
}

// falls returns the verdict about a fall: every trial falls, and by more than every trial without failures.
func falls(found, calm plot.Spread) string {
	if !known(found) || !known(calm) {
		return incomparable
	}
	return verdict(found.High < 0 && found.High < calm.Low, found.N == 1 || calm.N == 1)
}

// rises returns the verdict about a rise: every trial rises, and by more than every trial without failures.
func rises(found, calm plot.Spread) string {
	if !known(found) || !known(calm) {
		return incomparable
	}
	return verdict(found.Low > 0 && found.Low > calm.High, found.N == 1 || calm.N == 1)
}

// above returns the verdict about being higher: the median is higher, and the ranges of the trials do not overlap.
func above(found, others plot.Spread) string {
	if !known(found) || !known(others) {
		return incomparable
	}
	return verdict(found.Mid >= others.Mid && found.Low > others.High, found.N == 1 || others.N == 1)
}

// within returns the verdict about a size: it has the sign of the paper's size and is within a factor of 2 of it.
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

// times formats the ratio of the size found to the paper's.
func times(paper, found float64) string {
	ratio := found / paper
	switch {
	case math.IsNaN(ratio) || math.IsInf(ratio, 0):
		return "–"
	case ratio < 0:
		return "opposite"
	}
	return fmt.Sprintf("%.2f times", ratio)
}

// lineColumns is the maximum length of a line of text.
const lineColumns = 118

// tidy wraps paragraphs and list items. Blocks are separated by empty lines. Tables, headings, pictures, quotes and
// code are left unchanged.
func tidy(text string) string {
	var blocks []string
	for block := range strings.SplitSeq(text, "\n\n") {
		block = strings.Trim(block, "\n")
		switch {
		case block == "":
			continue
		case !strings.ContainsAny(block[:1], "|#!>") && !strings.HasPrefix(block, "```"):
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

// wrap breaks text into lines and indents all but the first.
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

// Package page writes the page of a study from a template: what was found in sentences, tables and pictures, of
// whatever its author asks for. A template is Markdown with the actions of text/template; the functions that it
// has stand in functions, and in docs/guide/studies.md. What it asks of a run is a measure: see measure.
//
// A page is a function of the study's folder and the template alone. It is written whole, or not at all.
package page

import (
	"cmp"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
	"unicode/utf8"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/run/losses"
	"github.com/perdure/perdure/internal/run/plain"
	"github.com/perdure/perdure/internal/run/sweep"
)

// Study is what a template is given.
type Study struct {
	sweep.Results
	Date string // of the newest run

	folder string
	cells  []*Cell
	files  map[string][]byte // that the page names, by name
}

// Cell is what is the same in some runs but for their seeds.
type Cell struct {
	Name   string
	Trials []*Trial
	Failed []sweep.Failed

	labels map[string]string // by axis, and "failures"
	place  map[string]int    // of these among the axis' labels
	losses *losses.Result    // of all its trials; nil: it is of no study of losses, or has none
}

// Trial is a run.
type Trial struct {
	Seed    uint64
	figures map[string]float64
	summary any
	columns []string
	rows    [][]string
}

// mostSummary bounds what is read of a run.
const mostSummary = 64 << 20

// Open reads the runs in a study's folder, of which the study has these results.
func Open(folder string, r *sweep.Results) (*Study, error) {
	s := &Study{Results: *r, folder: folder, files: map[string][]byte{}}
	s.Results.Cells = slices.Clone(r.Cells)
	for i := range s.Results.Cells {
		s.Results.Cells[i].Choices = slices.Clone(s.Results.Cells[i].Choices)
	}
	s.shorten()
	for i := range s.Results.Cells {
		if err := s.open(&s.Results.Cells[i]); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// shorten leaves of the labels of an axis the first word, where that tells them apart: a choice of several settings is
// called by all of them.
func (s *Study) shorten() {
	for axis := range s.Axes {
		full := map[string]string{} // by first word
		unique := true
		for i := range s.Results.Cells {
			label := s.Results.Cells[i].Choices[axis]
			word, _, _ := strings.Cut(label, " ")
			if known, is := full[word]; is && known != label {
				unique = false
			}
			full[word] = label
		}
		for i := range s.Results.Cells {
			if c := s.Results.Cells[i].Choices; unique {
				c[axis], _, _ = strings.Cut(c[axis], " ")
			}
		}
	}
}

// open reads the runs of a cell.
func (s *Study) open(r *sweep.CellResult) error {
	c := &Cell{
		Name: r.Name, Failed: r.Failed, labels: map[string]string{"failures": r.Failures}, place: map[string]int{},
	}
	for i, axis := range s.Axes {
		c.labels[axis] = r.Choices[i]
	}
	var twins []*losses.Result
	for _, of := range r.Trials {
		t := &Trial{Seed: of.Seed, figures: of.Figures}
		run := filepath.Join(s.folder, r.Name, fmt.Sprintf("seed-%d", of.Seed))
		if s.Kind == sweep.OfLosses {
			twin, err := losses.Read(run)
			if err != nil {
				return err
			}
			twins, c.Trials = append(twins, twin), append(c.Trials, t)
			s.dated(filepath.Join(run, "costs.json"))
			continue
		}
		b, err := disk.ReadRegular(filepath.Join(run, "summary.json"), mostSummary)
		if err == nil {
			err = json.Unmarshal(b, &t.summary)
		}
		if err == nil {
			t.columns, t.rows, err = readSeries(filepath.Join(run, "series.csv"))
		}
		if err != nil {
			return fmt.Errorf("the run %s cannot be read: %w; delete its folder and run the study again", run,
				plain.Cause(err))
		}
		s.dated(filepath.Join(run, "summary.json"))
		c.Trials = append(c.Trials, t)
	}
	if len(twins) > 0 {
		all, err := losses.Pool(twins)
		if err != nil {
			return err
		}
		c.losses = all
	}
	for axis, label := range c.labels {
		c.place[axis] = len(s.By(axis))
		for i, known := range s.By(axis) {
			if known == label {
				c.place[axis] = i
			}
		}
	}
	s.cells = append(s.cells, c)
	return nil
}

// dated notes when a run's file was written.
func (s *Study) dated(file string) {
	if info, err := os.Stat(file); err == nil {
		s.Date = max(s.Date, info.ModTime().Format("2006-01-02"))
	}
}

func readSeries(path string) (columns []string, rows [][]string, err error) {
	f, err := disk.OpenRegular(path)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = f.Close() }() // only read
	all, err := csv.NewReader(f).ReadAll()
	if err != nil || len(all) == 0 {
		return nil, nil, cmp.Or(err, errors.New("series.csv is empty"))
	}
	return all[0], all[1:], nil
}

// AtATime says how many runs went on at the same time.
func (s *Study) AtATime() string {
	if s.AtOnce > 1 {
		return fmt.Sprintf("up to %d runs at a time", s.AtOnce)
	}
	return "one run at a time"
}

// By are the labels of an axis, or of "failures", in the order of the study's file.
func (s *Study) By(axis string) (labels []string) {
	for _, c := range s.cells {
		label, known := c.labels[axis]
		seen := false
		for _, l := range labels {
			seen = seen || l == label
		}
		if known && !seen {
			labels = append(labels, label)
		}
	}
	return labels
}

// mostTemplate bounds the template of a page, in bytes.
const mostTemplate = 1 << 20

// Write writes the page and its pictures into a folder: README.md, SVG files, and runs.csv.
func (s *Study) Write(templateFile, to string) error {
	text, err := disk.ReadRegular(templateFile, mostTemplate)
	if err != nil {
		return fmt.Errorf("%w: the page's template %s: %w", perdure.ErrUsage, templateFile, plain.Cause(err))
	}
	name := filepath.Base(templateFile)
	t, err := template.New(name).Option("missingkey=error").Funcs(s.functions()).Parse(string(text))
	if err != nil {
		return fmt.Errorf("%w: the page's template: %s", perdure.ErrUsage, oneLine(err))
	}
	var page strings.Builder
	if err := t.Execute(&page, s); err != nil {
		return fmt.Errorf("%w: the page's template: %s", perdure.ErrUsage, oneLine(err))
	}
	if err := os.MkdirAll(to, 0o777); err != nil {
		return err
	}
	files := map[string][]byte{"README.md": []byte(tidy(page.String()))}
	for file, b := range s.files {
		files[file] = b
	}
	if err := s.WriteRuns(to); err != nil {
		return err
	}
	for file, b := range files {
		err := disk.WriteFile(disk.OS(), filepath.ToSlash(filepath.Join(to, file)), func(w io.Writer) error {
			_, err := w.Write(b)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// columns is how long a line of text may be.
const columns = 118

// tidy breaks paragraphs anew, which a template has broken by its actions, and leaves tables, headings and code as they
// are; more than one empty line is one.
func tidy(text string) string {
	var out strings.Builder
	var words []string
	indent := ""
	end := func() {
		at := 0
		for i, w := range words {
			n := utf8.RuneCountInString(w)
			switch {
			case i > 0 && at+1+n > columns:
				out.WriteString("\n" + indent)
				at = len(indent)
			case i > 0:
				out.WriteByte(' ')
				at++
			}
			out.WriteString(w)
			at += n
		}
		if len(words) > 0 {
			out.WriteByte('\n')
		}
		words, indent = nil, ""
	}
	code, empty := false, false
	for line := range strings.SplitSeq(strings.TrimRight(text, "\n")+"\n", "\n") {
		line = strings.TrimRight(line, " ")
		fence := strings.HasPrefix(line, "```")
		item := strings.HasPrefix(line, "- ")
		plain := !code && !fence && line != "" && !strings.ContainsAny(line[:1], "|#!<")
		if !plain || item {
			end()
		}
		if line == "" && !code {
			empty = true
			continue
		}
		if empty && out.Len() > 0 {
			end()
			out.WriteByte('\n')
		}
		empty = false
		if fence {
			code = !code
		}
		if !plain {
			out.WriteString(line + "\n")
			continue
		}
		if item {
			indent = "  "
		}
		words = append(words, strings.Fields(line)...)
	}
	end()
	return out.String()
}

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/run/page"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/sweep"
)

// TestStudiesHere: the studies of this repository can be run, as they are and with --quick, and their templates make
// pages, also of a study of which nothing is done yet.
func TestStudiesHere(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../studies/*.yaml")
	must(t, err)
	if len(files) < 5 {
		t.Fatalf("studies %v", files)
	}
	kinds := studyKinds()
	for i, k := range kinds {
		kinds[i].Check = func(args []string) (settings.Run, error) { return k.Check(withoutData(args)) }
	}
	labels := map[string][]string{} // by template, AXIS=LABEL of all studies that are told by it
	for _, file := range files {
		for _, quick := range []bool{false, true} {
			f, err := sweep.Read(file, kinds, quick)
			must(t, err)
			s, err := f.Check()
			if err != nil {
				t.Errorf("%s, quick %t: %v", file, quick, err)
				continue
			}
			if s.Page == "" {
				t.Errorf("%s has no page", file)
				continue
			}
			n := len(s.Cells)
			r := sweep.Results{Schema: sweep.Schema, Kind: s.Kind.Name, Name: s.Name, Runs: n, Missing: n, Quick: quick}
			for _, a := range s.Vary {
				r.Axes = append(r.Axes, a.Name)
			}
			for _, c := range s.Cells {
				r.Cells = append(r.Cells, sweep.CellResult{Name: c.Name, Choices: c.Labels, Failures: c.Plan})
			}
			folder := t.TempDir()
			p, err := page.Open(folder, &r)
			must(t, err)
			for _, a := range s.Vary {
				for _, label := range p.By(a.Name) {
					labels[s.Page] = append(labels[s.Page], a.Name+"="+label)
				}
			}
			if err := p.Write(s.Page, filepath.Join(folder, "page")); err != nil {
				t.Errorf("%s, quick %t: %v", file, quick, err)
				continue
			}
			text := fileOf(t, folder, "page", "README.md")
			if !strings.HasPrefix(text, "# ") || strings.Contains(text, "NaN") || strings.Contains(text, "no value") {
				t.Errorf("%s, quick %t:\n%s", file, quick, text)
			}
		}
	}
	for template, known := range labels {
		labelsAreKnown(t, template, known)
	}
}

// condition is one in a template, of an axis that has no quotes in its labels.
var condition = regexp.MustCompile(
	`"(consistency|recovery|on-outage|clock-fraction|problem)=([^"=]+(?: [a-z-]+=[^"]+)?)"`)

// labelsAreKnown: a condition that no cell can meet would leave a hole in the page, and no error.
func labelsAreKnown(t *testing.T, template string, known []string) {
	b, err := os.ReadFile(template)
	must(t, err)
	for _, m := range condition.FindAllStringSubmatch(string(b), -1) {
		for label := range strings.SplitSeq(m[2], "|") {
			if label != "" && !slices.Contains(known, m[1]+"="+label) {
				t.Errorf("%s: no choice is %s=%s", template, m[1], label)
			}
		}
	}
}

// withoutData leaves out where data are, which need not be here.
func withoutData(args []string) (rest []string) {
	for _, a := range args {
		if !strings.HasPrefix(a, "--data=data/") {
			rest = append(rest, a)
		}
	}
	return rest
}

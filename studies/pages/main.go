// Command pages writes the page of one of this repository's studies: its findings in sentences, tables and pictures.
//
//	go run ./studies/pages runs/grid docs/studies/grid
//
// It reads study.json and the runs from the directory that perdure study has written, and writes README.md, pictures
// and runs.csv to another directory. Each study has a template here, NAME.md.tmpl, and a function that fills it in. A
// page depends only on the study's directory. If a run cannot be read, nothing is written.
package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/perdure/perdure/internal/data/disk"
)

// writers maps a study's name to the function that writes its page.
var writers = map[string]func(*page){
	"bound": bound, "consistency": consistency, "failure": failure, "failure-paper": failure, "grid": grid,
	"regret": regret, "scar": scar, "spot": spot, "topics": topics,
}

// pageName is the name of a page's file.
const pageName = "README.md"

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: pages STUDY-DIRECTORY PAGE-DIRECTORY")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "pages: "+err.Error())
		os.Exit(1)
	}
}

// run reads the study in folder and writes its page to the directory to.
func run(dir, to string) error {
	results, err := readResults(dir)
	if err != nil {
		return err
	}
	s, err := open(dir, results)
	if err != nil {
		return err
	}
	err = s.write(to)
	if len(s.unknown) > 0 && !s.Quick { // a quick study has fewer cells than the page
		fmt.Fprintf(os.Stderr, "pages: no cell has %s; the page is incomplete\n", strings.Join(s.unknown, ", "))
	}
	return err
}

// page returns the study's page with its pictures and tables.
func (s *outcome) page() (*page, error) {
	writer := writers[s.Name]
	if writer == nil {
		return nil, fmt.Errorf("no page for the study %q; studies with a page: %s", s.Name,
			strings.Join(slices.Sorted(maps.Keys(writers)), ", "))
	}
	p := &page{outcome: s, files: map[string][]byte{}}
	writer(p)
	p.files[pageName] = []byte(tidy(p.text.String()))
	return p, nil
}

// write writes the study's page with its pictures, tables and runs.csv.
func (s *outcome) write(to string) error {
	p, err := s.page()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(to, 0o777); err != nil {
		return err
	}
	err = s.WriteRuns(to)
	for file, b := range p.files {
		path := filepath.ToSlash(filepath.Join(to, file))
		err = errors.Join(err, disk.WriteFile(disk.OS(), path, func(w io.Writer) error {
			_, err := w.Write(b)
			return err
		}))
	}
	return err
}

// Command pages writes the page of one of this repository's studies: its findings in sentences, tables and pictures.
//
//	go run ./studies/pages runs/grid docs/studies/grid
//
// It reads study.json and the runs from the folder that perdure study has written, and writes README.md, pictures and
// runs.csv into another folder. Each study has a text here, NAME.md.tmpl, and a function that fills it in. A page
// depends on the study's folder alone, and nothing is written if a run cannot be read.
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

// writers are the functions that write a page, by the study's name.
var writers = map[string]func(*page){
	"bound": bound, "consistency": consistency, "failure": failure, "failure-paper": failure, "grid": grid,
	"regret": regret, "scar": scar, "spot": spot, "topics": topics,
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: pages FOLDER-OF-A-STUDY FOLDER-OF-ITS-PAGE")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "pages: "+err.Error())
		os.Exit(1)
	}
}

// run writes the page of the study in a folder into another folder.
func run(folder, to string) error {
	results, err := readResults(folder)
	if err != nil {
		return err
	}
	s, err := open(folder, results)
	if err != nil {
		return err
	}
	err = s.write(to)
	if len(s.unknown) > 0 && !s.Quick { // which has fewer cells than the page
		fmt.Fprintf(os.Stderr, "pages: no cell has %s; the page lacks it\n", strings.Join(s.unknown, ", "))
	}
	return err
}

// write writes the study's page, its pictures and tables, and runs.csv.
func (s *outcome) write(to string) error {
	writer := writers[s.Name]
	if writer == nil {
		return fmt.Errorf("the study %q has no page here; those of %s have", s.Name,
			strings.Join(slices.Sorted(maps.Keys(writers)), ", "))
	}
	p := &page{outcome: s, files: map[string][]byte{}}
	writer(p)
	if err := os.MkdirAll(to, 0o777); err != nil {
		return err
	}
	p.files["README.md"] = []byte(tidy(p.text.String()))
	err := s.WriteRuns(to)
	for file, b := range p.files {
		path := filepath.ToSlash(filepath.Join(to, file))
		err = errors.Join(err, disk.WriteFile(disk.OS(), path, func(w io.Writer) error {
			_, err := w.Write(b)
			return err
		}))
	}
	return err
}

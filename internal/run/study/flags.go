package study

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/humanize"
)

// Flags holds the flags of perdure study.
type Flags struct {
	Out       string `help:"@study_out" placeholder:"DIR" type:"path"`
	KeepGoing bool   `help:"Continue after a run has failed."`
	Mixed     bool   `help:"@study_mixed"`
	Parallel  int    `help:"@study_parallel (default ${default})." default:"1" placeholder:"N"`
	Report    bool   `help:"@study_report"`
	JSON      bool   `name:"json" help:"Print JSON, for programs."`
}

// Check returns an error if the flags are invalid.
func (a *Flags) Check() error {
	if a.Parallel < 1 || a.Parallel > 1000 {
		return perdure.Usagef("invalid --parallel %d; choose at least 1", a.Parallel)
	}
	return nil
}

// Run runs the missing runs of a study with the program at path or, with Report, only collects the finished ones. It
// writes the results to the study's directory and prints them.
func (s *Study) Run(ctx context.Context, a *Flags, path, version string, out, screen io.Writer) error {
	how := ExecuteOptions{Folder: a.Out, Parallel: a.Parallel, KeepGoing: a.KeepGoing, Mixed: a.Mixed, Screen: screen}
	if how.Folder == "" {
		how.Folder = filepath.Join("runs", s.Name)
		if s.Quick {
			how.Folder += "-quick"
		}
	}
	var results *Results
	var err error
	if a.Report {
		results, err = s.Collect(how.Folder)
	} else if how.Program, err = OpenProgram(path, version); err == nil {
		results, err = s.Execute(ctx, how)
	}
	if results == nil {
		return err
	}
	if err2 := results.Write(how.Folder); err2 != nil {
		return errors.Join(err, err2)
	}
	if a.JSON {
		return errors.Join(err, humanize.JSON(out, results))
	}
	if err2 := results.Print(out); err2 != nil || err != nil {
		return errors.Join(err, err2)
	}
	fmt.Fprintf(out, "wrote %s to %s\n", results.files(), how.Folder)
	return nil
}

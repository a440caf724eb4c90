package page

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/plain"
	"github.com/perdure/perdure/internal/run/sweep"
)

// Asked is how somebody asks a study to be run, as flags of perdure study.
type Asked struct {
	Out       string `help:"@study_out" placeholder:"DIR" type:"path"`
	KeepGoing bool   `help:"Go on after a run that has failed."`
	Mixed     bool   `help:"@study_mixed"`
	Parallel  int    `help:"@study_parallel (default ${default})." default:"1" placeholder:"N"`
	Report    bool   `help:"@study_report"`
	Page      string `help:"@study_page" placeholder:"DIR" type:"path"`
	JSON      bool   `name:"json" help:"Print JSON, for programs."`
}

// Check says what cannot be asked.
func (a *Asked) Check() error {
	if a.Parallel < 1 || a.Parallel > 1000 {
		return fmt.Errorf("%w: --parallel %d; choose at least 1", perdure.ErrUsage, a.Parallel)
	}
	return nil
}

// Program is the command that a study runs.
type Program struct{ Path, Version string }

// Conduct runs a study, as far as it is not done, prints what it has found, and writes its page.
func Conduct(ctx context.Context, s *sweep.Study, a *Asked, by Program, out, screen io.Writer) error {
	if a.Page != "" && s.Page == "" {
		return fmt.Errorf("%w: --page, and the study %s names no template of a page; add page: to its file, or use "+
			"perdure report", perdure.ErrUsage, s.Name)
	}
	how := sweep.Conducting{
		Folder: a.Out, Parallel: a.Parallel, KeepGoing: a.KeepGoing, Mixed: a.Mixed, Screen: screen,
	}
	if how.Folder == "" {
		how.Folder = filepath.Join("runs", s.Name)
		if s.Quick {
			how.Folder += "-quick"
		}
	}
	if a.Report {
		results, err := s.Collect(how.Folder)
		if err != nil {
			return err
		}
		return a.make(s, how.Folder, results, out)
	}
	var err error
	if how.Program, err = sweep.OpenProgram(by.Path, by.Version); err != nil {
		return err
	}
	results, err := s.Conduct(ctx, how)
	if results == nil {
		return err
	}
	if err2 := results.Write(how.Folder); err2 != nil {
		return errors.Join(err, err2)
	}
	if a.JSON {
		return errors.Join(err, plain.JSON(out, results))
	}
	if err2 := results.Print(out); err2 != nil || err != nil {
		return errors.Join(err, err2)
	}
	fmt.Fprintf(out, "study.json and runs.csv are in %s\n", how.Folder)
	return a.make(s, how.Folder, results, out)
}

// make writes the page of the study in a folder, if it has one.
func (a *Asked) make(s *sweep.Study, folder string, results *sweep.Results, out io.Writer) error {
	if s.Page == "" {
		return nil
	}
	of, err := Open(folder, results)
	if err != nil {
		return err
	}
	to := cmp.Or(a.Page, filepath.Join(folder, "page"))
	if err := of.Write(s.Page, to); err != nil {
		return err
	}
	if !a.JSON {
		fmt.Fprintf(out, "the page is %s\n", filepath.Join(to, "README.md"))
	}
	return nil
}

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/alecthomas/kong"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/page"
	"github.com/perdure/perdure/internal/run/plain"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/sweep"
)

type studyCmds struct {
	Run  studyCmd     `cmd:"" default:"withargs" help:"@study_run"`
	Init studyInitCmd `cmd:"" help:"@study_init"`
	Loss lossesCmd    `cmd:"" name:"losses" help:"@study_losses"`
}

type studyInitCmd struct {
	File string `arg:"" optional:"" help:"The file (default ${default})." default:"study.yaml"`
}

func (c *studyInitCmd) Run() error {
	if err := sweep.Init(c.File); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%s is written; perdure study %s --list says what it would run\n", c.File, c.File)
	return nil
}

type studyCmd struct {
	File      string `arg:"" help:"The study's file; see perdure study init."`
	Out       string `help:"@study_out" placeholder:"DIR" type:"path"`
	Quick     bool   `help:"@study_quick"`
	List      bool   `help:"Say what would be run, and run nothing."`
	KeepGoing bool   `help:"Go on after a run that has failed."`
	Busy      bool   `help:"Run although the machine is busy with something else."`
	Mixed     bool   `help:"@study_mixed"`
	Parallel  int    `help:"@study_parallel (default ${default})." default:"1" placeholder:"N"`
	Report    bool   `help:"@study_report"`
	Page      string `help:"@study_page" placeholder:"DIR" type:"path"`
	JSON      bool   `name:"json" help:"Print JSON, for programs."`
}

func (c *studyCmd) Run(ctx context.Context) error {
	if c.Parallel < 1 || c.Parallel > 1000 {
		return fmt.Errorf("%w: --parallel %d; choose at least 1", perdure.ErrUsage, c.Parallel)
	}
	file, err := sweep.Read(c.File, jobKeys(), c.Quick)
	if err != nil {
		return err
	}
	var busy error
	if !c.Busy && !c.Quick && !c.Report && !c.List { // looked at before this program is what makes it busy
		busy = sweep.Idle()
	}
	s, err := file.Check(trainSettings)
	if err != nil {
		return err
	}
	if busy != nil { // told after mistakes, which waiting does not mend
		return busy
	}
	if c.List {
		return s.List(stdout)
	}
	if c.Page != "" && s.Page == "" {
		return fmt.Errorf("%w: --page, and %s names no template of a page; add page: to it, or use perdure report",
			perdure.ErrUsage, c.File)
	}
	return c.conduct(ctx, s)
}

func (c *studyCmd) conduct(ctx context.Context, s *sweep.Study) error {
	how := sweep.Conducting{
		Folder: c.Out, Parallel: c.Parallel, KeepGoing: c.KeepGoing, Mixed: c.Mixed, Screen: os.Stderr,
	}
	if how.Folder == "" {
		how.Folder = filepath.Join("runs", s.Name)
		if c.Quick {
			how.Folder += "-quick"
		}
	}
	if c.Report {
		results, err := s.Collect(how.Folder)
		if err != nil {
			return err
		}
		return c.page(s, how.Folder, results)
	}
	path, err := os.Executable()
	if err == nil {
		how.Program, err = sweep.OpenProgram(path, version)
	}
	if err != nil {
		return err
	}
	results, err := s.Conduct(ctx, how)
	if results == nil {
		return err
	}
	if err2 := results.Write(how.Folder); err2 != nil {
		return errors.Join(err, err2)
	}
	if c.JSON {
		return errors.Join(err, plain.JSON(stdout, results))
	}
	if err2 := results.Print(stdout); err2 != nil || err != nil {
		return errors.Join(err, err2)
	}
	fmt.Fprintf(stdout, "study.json and runs.csv are in %s\n", how.Folder)
	return c.page(s, how.Folder, results)
}

// page writes the page of the study in a folder, if it has one.
func (c *studyCmd) page(s *sweep.Study, folder string, results *sweep.Results) error {
	if s.Page == "" {
		return nil
	}
	of, err := page.Open(folder, results)
	if err != nil {
		return err
	}
	to := cmp.Or(c.Page, filepath.Join(folder, "page"))
	if err := of.Write(s.Page, to); err != nil {
		return err
	}
	if !c.JSON {
		fmt.Fprintf(stdout, "the page is %s\n", filepath.Join(to, "README.md"))
	}
	return nil
}

// notOfStudies are flags of train that a study's job cannot have: the study sees to these itself.
var notOfStudies = []string{
	"help", "out", "quiet", "json", "resume", "fork", "from", "file", "listen", "version", "help-all",
}

// jobKeys are the keys that a study's job may have: the workload, and train's flags.
func jobKeys() []string {
	var c cli
	root := newParser(context.Background(), &c).Model.Node
	train := root.Children[slices.IndexFunc(root.Children, func(n *kong.Node) bool { return n.Name == "train" })]
	keys := []string{"workload"}
	for _, n := range append([]*kong.Node{train}, train.Children...) {
		for _, f := range n.Flags {
			if !slices.Contains(notOfStudies, f.Name) && !f.Hidden && !slices.Contains(keys, f.Name) {
				keys = append(keys, f.Name)
			}
		}
	}
	return keys
}

// trainSettings are the settings of a command line of perdure train, or what is wrong with it.
func trainSettings(args []string) (s settings.Run, err error) {
	var c cli
	parser := newParser(context.Background(), &c)
	k, err := parser.Parse(append([]string{"train"}, args...))
	if err != nil {
		return s, fmt.Errorf("%w: %w", perdure.ErrUsage, err)
	}
	return c.Train.settings(k)
}

package main

import (
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/alecthomas/kong"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/study"
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
	if err := study.Init(c.File); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "wrote %s; to see what it would run: perdure study %s --list\n", c.File, c.File)
	return nil
}

type studyCmd struct {
	File  string      `arg:"" help:"The study's file; see perdure study init."`
	Quick bool        `help:"@study_quick"`
	List  bool        `help:"List what would be run, without running it."`
	Busy  bool        `help:"Run even if other programs keep the machine busy."`
	Asked study.Flags `embed:""`
}

func (c *studyCmd) Run(ctx context.Context) error {
	if err := c.Asked.Check(); err != nil {
		return err
	}
	file, err := study.Read(c.File, studyKinds(), c.Quick)
	if err != nil {
		return err
	}
	var busy error
	timed := file.Kind.Name == study.KindTrain                      // an in-memory study does not measure time
	if timed && !c.Busy && !c.Quick && !c.Asked.Report && !c.List { // before this program makes it busy
		busy = study.Idle()
	}
	s, err := file.Check()
	if err != nil {
		return err
	}
	if busy != nil { // reported after mistakes in the file, which waiting does not fix
		return busy
	}
	if c.List {
		return s.List(stdout)
	}
	path, err := os.Executable()
	if err != nil {
		return err
	}
	return s.Run(ctx, &c.Asked, path, version, stdout, os.Stderr)
}

// studyKinds returns the kinds of studies.
func studyKinds() []study.Kind {
	keys := jobKeys()
	return []study.Kind{
		{Name: study.KindTrain, Command: []string{"train"}, Keys: keys, Check: trainSettings},
		{
			Name: study.KindLosses, Command: []string{"study", "losses", "--twins=1"}, Own: lossesKeys(), Keys: keys,
			Check: lossesSettings,
		},
	}
}

// excludedForStudies are flags of train that a study's job cannot set because the study sets them.
var excludedForStudies = []string{
	"help", "out", "quiet", "json", "resume", "fork", "from", "file", "listen", "version", "help-all",
}

// excludedForLosses are flags of study losses that a study sets itself: it runs a twin for each seed.
var excludedForLosses = []string{"help", "help-all", "out", "json", "twins", "parallel", "version"}

// jobKeys returns the keys that a study's job may have: the workload and train's flags.
func jobKeys() []string {
	train := commandNamed("train")
	return keysOf([]string{"workload"}, excludedForStudies, append([]*kong.Node{train}, train.Children...)...)
}

// lossesKeys returns the flags of study losses that a study's job may have.
func lossesKeys() []string { return keysOf(nil, excludedForLosses, commandNamed("study", "losses")) }

// commandNamed returns a command of this program.
func commandNamed(names ...string) *kong.Node {
	var c cli
	at := newParser(context.Background(), &c).Model.Node
	for _, name := range names {
		at = at.Children[slices.IndexFunc(at.Children, func(n *kong.Node) bool { return n.Name == name })]
	}
	return at
}

// keysOf appends the flags of commands, except those in without and hidden ones, to keys.
func keysOf(keys, without []string, commands ...*kong.Node) []string {
	for _, n := range commands {
		for _, f := range n.Flags {
			if !slices.Contains(without, f.Name) && !f.Hidden && !slices.Contains(keys, f.Name) {
				keys = append(keys, f.Name)
			}
		}
	}
	return keys
}

// trainSettings returns the run settings of a command line of perdure train.
func trainSettings(args []string) (s settings.Run, err error) {
	var c cli
	parser := newParser(context.Background(), &c)
	k, err := parser.Parse(append([]string{"train"}, args...))
	if err != nil {
		return s, perdure.Usagef("%w", err)
	}
	return c.Train.settings(k)
}

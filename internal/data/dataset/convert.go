package dataset

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/perdure/perdure"
)

// A conversion is a set that no package registry has: users download its original distribution, and Convert writes the
// files that workloads and studies read.
type conversion struct {
	name     string
	summary  string // one-line description
	original string // file to download
	url      string // where the original is
	workload string // workload that it is for
	target   string // file or directory that is written, below the directory of all sets
	// files are the files that are written. Their sums are those of the uncompressed content in the published studies.
	files []pinnedFile
	// write reads the original and creates the files. It may unpack archives into the directory temp.
	write func(from, temp string, to *staging) error
}

var conversions = []conversion{
	{
		name:     "jester",
		summary:  "Jester 1: 1.8 million ratings of 100 jokes by 24,983 users, for mf (research use, with citation)",
		original: "jester_dataset_1_1.zip",
		url:      "https://eigentaste.berkeley.edu/dataset/",
		workload: "mf",
		target:   "jester1.csv.gz",
		files: []pinnedFile{
			{"jester1.csv.gz", "050e1c48cc13e68ff02a234327cb19db437ad3ba02b5c82e006f0a224852ca61"},
		},
		write: jesterShape{users: 24983, ratings: 1810455}.convert,
	},
	{
		name:     "20news",
		summary:  "20 Newsgroups by date: 11,269 + 7,505 texts, 61,188 words, 20 classes, for lda and logreg",
		original: "20news-bydate-matlab.tgz and vocabulary.txt",
		url:      "http://qwone.com/~jason/20Newsgroups/",
		workload: "lda",
		target:   "20news",
		files: []pinnedFile{
			{"train.ldac.gz", "2a005971709cd3ea2f5782c537067175762906ac908834e1e8323b8a9dda9c90"},
			{"train.labels", "90e46f67c51005c7bb707a61cd4a49bd996bc98c5c2acaaa36fbd22dc179101f"},
			{"test.ldac.gz", "fd1f2ff6860c5dfb0d003f71d2ddb9ad80bcdf4b234c65945e66a8988b174c9a"},
			{"test.labels", "5eb0491245caaffb86980dcd7b707e65815ae0a600b214ac99e62fa5a713e6e1"},
			{"vocab.txt", "3c0f0d64a814ba8836334a0f23925cef751fb3636baea55772f1f8ede4b791bc"},
		},
		write: newsShape{words: 61188, train: 11269, test: 7505}.convert,
	},
	{
		name:     "covtype",
		summary:  "CoverType: its first 11,340 + 3,780 rows, 54 numbers, 7 classes, for softmax and logreg",
		original: "covtype.data.gz",
		url:      "https://archive.ics.uci.edu/dataset/31/covertype",
		workload: "softmax",
		target:   "covtype",
		files: []pinnedFile{
			{covertypeTrain + ".gz", "b0c93d5788adbe3191d7cdf00faa24e27f8f662bec02e7315271d2adbcae88df"},
			{covertypeTest + ".gz", "832e3a186cd0efbd50699f8ec64b591882370ac904c995f13b5a2ec8e77d1fa9"},
		},
		write: forestShape{train: 11340, test: 3780, rows: 581012}.convert,
	},
}

// Convertible lists the sets that Convert can write.
func Convertible() []Set {
	sets := make([]Set, len(conversions))
	for i, c := range conversions {
		sets[i] = Set{c.name, c.summary}
	}
	return sets
}

// Convert reads the original distribution of the named set (one of Convertible) and writes the files that workloads and
// studies read into the directory dir. It validates the original strictly, and writes the same bytes every time.
//
// The files appear completely or not at all, and replace nothing. Convert reports to progress whether their content is
// that of the published studies.
func Convert(name, from, dir string, progress io.Writer) error {
	if c := findConversion(name); c != nil {
		return convert(c, from, dir, progress)
	}
	return unknownSet(name, Convertible())
}

func findConversion(name string) *conversion {
	if i := slices.IndexFunc(conversions, func(c conversion) bool { return c.name == name }); i >= 0 {
		return &conversions[i]
	}
	return nil
}

func convert(c *conversion, from, dir string, progress io.Writer) error {
	target := filepath.Join(dir, c.target)
	if _, err := os.Lstat(target); err == nil {
		return perdure.Usagef("%s already exists; remove it, or choose another --dir", target)
	}
	if _, err := os.Stat(from); err != nil {
		return openError(from, err)
	}
	to := &staging{}
	err := inTemp(dir, ".convert-"+c.name+"-", func(temp string) error {
		to.dir = filepath.Join(temp, "stage")
		if err := os.Mkdir(to.dir, 0o755); err != nil {
			return err
		}
		printProgress(progress, "converting %s", from)
		if err := to.close(c.write(from, temp, to)); err != nil {
			return err
		}
		return to.publish(c, target)
	})
	if _, is := errors.AsType[*FileError](err); is {
		return err // it names the file
	} else if err != nil {
		return fmt.Errorf("dataset: convert %s: %w", c.name, err)
	}
	same := true
	for i, f := range to.files {
		if got, want := f.sha256(), c.files[i].sha256; got != want {
			same = false
			printProgress(progress, "warning: %s differs from the file that the published studies used: the SHA-256 "+
				"of its content is %s…, not %s…", f.name, got[:12], want[:12])
		}
	}
	if same {
		printProgress(progress, "the content is the same as in the published studies")
	}
	printProgress(progress, "%s is ready; train %s with --data %s", c.name, c.workload, target)
	return nil
}

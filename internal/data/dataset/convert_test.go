package dataset

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure"
)

// smallConversion returns a conversion of a set with the same format as the named one, but a smaller size. Its pinned
// sums are those of the given contents, in the order of its files.
func smallConversion(name string, contents ...string) *conversion {
	c := *findConversion(name)
	c.write = map[string]func(from, temp string, to *staging) error{
		"jester":  jesterShape{users: 2, ratings: 4}.convert,
		"20news":  newsShape{words: 4, train: 2, test: 1}.convert,
		"covtype": forestShape{train: 2, test: 1, rows: 5}.convert,
	}[name]
	c.files = nil
	for i, f := range findConversion(name).files {
		sum := sha256.Sum256([]byte(contents[i]))
		c.files = append(c.files, pinnedFile{f.name, hex.EncodeToString(sum[:])})
	}
	return &c
}

// jesterLine returns a user's line with the given ratings of the first jokes.
func jesterLine(count string, ratings ...string) string {
	given := strings.Join(append([]string{count}, ratings...), ",")
	return given + strings.Repeat(",99", jesterJokes-len(ratings)) + "\n"
}

// newsArchive returns a compressed archive with the given files in 20 Newsgroups' directory.
func newsArchive(t *testing.T, files map[string]string) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for name, text := range files {
		h := &tar.Header{Name: "20news-bydate/matlab/" + name, Mode: 0o644, Size: int64(len(text))}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// newsFiles returns the files of a small archive. replaced lists names and contents of those that differ.
func newsFiles(replaced ...string) map[string]string {
	files := map[string]string{
		"train.data": "1 3 2\n1 1 1\n2 2 5\n", "train.label": "1\n20\n",
		"test.data": "1 4 1\n", "test.label": "7\n", "train.map": "alt.atheism 1\n",
	}
	for i := 0; i < len(replaced); i += 2 {
		files[replaced[i]] = replaced[i+1]
	}
	return files
}

const newsWords = "a\nb\nc\nd\n"

// original writes an original file, and the vocabulary next to it.
func original(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"original": text, "vocabulary.txt": newsWords} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "original")
}

// unzipped returns the content of a file, uncompressed.
func unzipped(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(path, ".gz") {
		return string(b)
	}
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	b, err = io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestConvert converts each set twice: the content is the expected one, and the bytes are equal.
func TestConvert(t *testing.T) {
	row := func(first, label string) string { return covertypeLine(first, "-6", label) }
	for _, c := range []struct {
		name, from string
		want       []string // in the order of the files
	}{
		{
			"jester",
			"\xef\xbb\xbf" + jesterLine("3", "-7.82", "99", "8.5", "-0") + "1" + strings.Repeat(",99", 99) + ",10\r\n",
			[]string{"0,0,-7.82\n0,2,8.50\n0,3,0.00\n1,99,10.00\n"},
		},
		{
			"20news", newsArchive(t, newsFiles()),
			[]string{"2 0:1 2:2\n1 1:5\n", "1\n20\n", "1 3:1\n", "7\n", newsWords},
		},
		{
			"covtype", string(gz(t, []byte(row("1", "5")+row("2", "7")+row("3", "1")+row("4", "2")+row("5", "2")))),
			[]string{row("1", "5") + row("2", "7"), row("3", "1")},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			set := smallConversion(c.name, c.want...)
			var bytesOf [2]string
			for i := range bytesOf {
				dir := filepath.Join(t.TempDir(), "data")
				var progress bytes.Buffer
				if err := convert(set, original(t, c.from), dir, &progress); err != nil {
					t.Fatal(err)
				}
				if !strings.Contains(progress.String(), "the content is the same as in the published studies\n") {
					t.Error(progress.String())
				}
				if got := names(t, dir); got != set.target {
					t.Errorf("files %q, want %q", got, set.target)
				}
				target := filepath.Join(dir, set.target)
				if set.target != set.files[0].name {
					dir = target
				}
				for j, f := range set.files {
					path := filepath.Join(dir, f.name)
					if got := unzipped(t, path); got != c.want[j] {
						t.Errorf("%s is %q, want %q", f.name, got, c.want[j])
					}
					b, err := os.ReadFile(path)
					if err != nil {
						t.Fatal(err)
					}
					bytesOf[i] += string(b)
				}
				err := convert(set, original(t, c.from), filepath.Dir(target), nil)
				if !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), "already exists; remove it") {
					t.Errorf("the second time: %v", err)
				}
			}
			if bytesOf[0] != bytesOf[1] {
				t.Error("two conversions wrote different bytes")
			}
		})
	}
}

// TestConvertedLoads: workloads read the converted files.
func TestConvertedLoads(t *testing.T) {
	dir := t.TempDir()
	for name, from := range map[string]string{
		"jester":  jesterLine("3", "1", "2", "3") + jesterLine("1", "-4.25"),
		"20news":  newsArchive(t, newsFiles()),
		"covtype": strings.Repeat(covertypeLine("1", "2", "3"), 5),
	} {
		if err := convert(smallConversion(name, make([]string, 9)...), original(t, from), dir, nil); err != nil {
			t.Fatal(err)
		}
	}
	c, err := OpenCorpus(filepath.Join(dir, "20news"))
	if err != nil || c.Train.Len() != 2 || c.Test.Len() != 1 || c.Word(3) != "d" || len(c.Train.Document(0)) != 3 {
		t.Errorf("20news: %+v, %v", c, err)
	}
	e, err := Open(filepath.Join(dir, "covtype"))
	if err != nil || e.Train.N != 2 || e.Test.N != 1 {
		t.Errorf("covtype: %+v, %v", e, err)
	}
	if _, err := OpenSparse(filepath.Join(dir, "20news")); err != nil {
		t.Error(err)
	}
}

// TestConvertWarns: content that differs from that of the studies is reported and kept.
func TestConvertWarns(t *testing.T) {
	dir := t.TempDir()
	var progress bytes.Buffer
	from := original(t, jesterLine("3", "1", "2", "3")+jesterLine("1", "-4.25"))
	if err := convert(smallConversion("jester", "other"), from, dir, &progress); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(progress.String(), "warning: jester1.csv.gz differs from the file that the published "+
		"studies used") ||
		strings.Contains(progress.String(), "the content is the same") || names(t, dir) != "jester1.csv.gz" {
		t.Errorf("%s; files %s", &progress, names(t, dir))
	}
}

// TestConvertRefuses: every mistake in an original gives one line, and no files remain.
func TestConvertRefuses(t *testing.T) {
	two := jesterLine("1", "2")
	news := func(replaced ...string) string { return newsArchive(t, newsFiles(replaced...)) }
	row := covertypeLine("1", "2", "3")
	forest := string(gz(t, bytes.Repeat([]byte(row), 5)))
	for _, c := range []struct{ name, from, want string }{
		{"jester", two + "1,2,3\n", "original: line 2: 3 comma-separated columns; a Jester line has a count and 100"},
		{"jester", strings.ReplaceAll(two, ",", ";"), "line 1: 1 comma-separated columns"},
		{"jester", two + jesterLine("x", "1"), `line 2: count "x" is not a whole number from 0 to 100`},
		{"jester", jesterLine("101", "1"), `count "101" is not`},
		{"jester", two + jesterLine("1", "NaN"), `line 2: rating "NaN" of joke 1 is not a number from -10 to 10 with`},
		{"jester", jesterLine("1", "99", "-Inf"), `rating "-Inf" of joke 2 is not`},
		{"jester", jesterLine("1", "10.01"), `rating "10.01" of joke 1 is not`},
		{"jester", jesterLine("1", "9.123"), `rating "9.123" of joke 1 is not`},
		{"jester", jesterLine("1", ""), `rating "" of joke 1 is not`},
		{"jester", jesterLine("3", "1", "2"), "line 1: the line has 2 ratings, but its first column says 3"},
		{"jester", two, "has 1 users and 1 ratings; jester-data-1 has 2 and 4"},
		{"jester", "\xd0\xcf\x11\xe0\xa1", "is an Excel file; export it as CSV, for example: soffice"},
		{"jester", "PK\x03\x04rest", "is a zip archive or an .xlsx file; unzip it"},
		{"jester", "", "is empty"},
		{"20news", "no archive", "is not a gzip file"},
		{"20news", news()[:200], "is truncated: it ends within"},
		{"20news", newsArchive(t, nil), "has no 20news-bydate/matlab/train.data; download 20news-bydate-matlab.tgz"},
		{"20news", news("test.label", ""), "original: test.label: is empty"},
		{"20news", news("train.data", "1 1\n"), "line 1: 2 columns; each line has three: document, word and count"},
		{"20news", news("train.data", "1 1 NaN\n"), `train.data: line 1: "NaN" is not a whole number above 0`},
		{"20news", news("train.data", "1 0 1\n"), `line 1: "0" is not a whole number above 0`},
		{"20news", news("train.data", "1 5 1\n"), "line 1: invalid word 5 or count 1; the largest word is 4"},
		{"20news", news("train.data", "1 1 1\n3 1 1\n"), "line 2: documents are out of order: 3 follows 1"},
		{"20news", news("train.data", "2 1 1\n"), "line 1: documents are out of order: 2 follows 0"},
		{"20news", news("train.data", "1 1 1\n1 1 2\n2 1 1\n"), "line 3: word 1 of document 1 is counted twice"},
		{"20news", news("test.data", "1 1 1\n1 1 2\n"), "test.data: word 1 of document 1 is counted twice"},
		{"20news", news("train.data", "1 1 1\n"), "has 1 documents in train.data and 2 labels in train.label; 20"},
		{"20news", news("train.label", "1\n21\n"), `train.label: line 2: label "21" is not a whole number`},
		{"20news", news("train.label", "1\n"), "has 2 documents in train.data and 1 labels in train.label"},
		{"covtype", forest[:len(forest)-9], "is truncated: it ends within its lines"},
		{"covtype", row + "1,2,3\n", "line 2: 3 columns; a CoverType line has 54 features and a label"},
		{"covtype", row + covertypeLine("NaN", "2", "3"), `line 2: feature 1, "NaN", is not a finite number`},
		{"covtype", covertypeLine("1", "2", "8"), `line 1: label "8" is not a whole number from 1 to 7`},
		{"covtype", "\n", "line 1: 1 columns"},
		{"covtype", row, "has 1 rows; CoverType has 5"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			err := convert(smallConversion(c.name, make([]string, 9)...), original(t, c.from), dir, nil)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want one line with %q", err, c.want)
			}
			if !errors.Is(err, ErrCorrupt) {
				t.Errorf("error %v does not wrap ErrCorrupt", err)
			}
			if got := names(t, dir); got != "" {
				t.Errorf("files remain: %s", got)
			}
		})
	}
}

// TestConvertNeeds: a missing original or vocabulary, and an unknown set, are errors that create no directory.
func TestConvertNeeds(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	if err := Convert("jester", filepath.Join(t.TempDir(), "none"), dir, nil); !errors.Is(err, ErrMissing) {
		t.Error(err)
	}
	if err := Convert("mnist", "x", dir, nil); !errors.Is(err, perdure.ErrUsage) ||
		!strings.Contains(err.Error(), `unknown data set "mnist"; choose jester or 20news or covtype`) {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	from := original(t, newsArchive(t, newsFiles()))
	vocabulary := filepath.Join(filepath.Dir(from), "vocabulary.txt")
	set := smallConversion("20news", make([]string, 9)...)
	if err := os.WriteFile(vocabulary, []byte("a\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := convert(set, from, dir, nil); err == nil || !strings.Contains(err.Error(), "has 1 words; the "+
		"vocabulary of 20") {
		t.Error(err)
	}
	if err := os.Remove(vocabulary); err != nil {
		t.Fatal(err)
	}
	if err := convert(set, from, dir, nil); !errors.Is(err, ErrMissing) ||
		!strings.Contains(err.Error(), "vocabulary.txt: no such file; put it next to the archive") {
		t.Error(err)
	}
	err := Fetch(t.Context(), "covtype", dir, nil)
	if !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), "run perdure data convert covtype FILE") {
		t.Error(err)
	}
}

// TestJesterRatings: every rating of Jester's scale is written with its two decimals, however it is spelled.
func TestJesterRatings(t *testing.T) {
	for _, spelling := range []string{"%.2f", "%g", "%.17g"} {
		for h := -1000; h <= 1000; h++ {
			var b bytes.Buffer
			out := bufio.NewWriter(&b)
			line := jesterLine("1", fmt.Sprintf(spelling, float64(h)/100))
			_, err := writeJesterUser(out, []byte(strings.TrimSpace(line)), 12)
			want := fmt.Sprintf("12,0,%d.%02d\n", max(h, -h)/100, max(h, -h)%100)
			if h < 0 {
				want = strings.Replace(want, "0,", "0,-", 1)
			}
			if err = errors.Join(err, out.Flush()); err != nil || b.String() != want {
				t.Fatalf("%s gives %q, %v; want %q", line[:9], &b, err, want)
			}
		}
	}
}

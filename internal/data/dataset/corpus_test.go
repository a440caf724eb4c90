package dataset

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// writeCorpus creates a directory of files.
func writeCorpus(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(text), 0o644))
	}
	return dir
}

func zipped(t testing.TB, text string) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := z.Write([]byte(text))
	must(t, errors.Join(err, z.Close()))
	return b.String()
}

// manyDocuments returns 40 valid lines with words from 0 to 12.
func manyDocuments() string {
	var b strings.Builder
	for i := range 40 {
		fmt.Fprintf(&b, "3 %d:2 %d:1 12:%d\n", i%5, 5+i%7, 1+i%3)
	}
	return b.String()
}

// TestCorpusForms reads the same documents in all accepted forms.
func TestCorpusForms(t *testing.T) {
	lines := manyDocuments()
	want, err := OpenCorpus(filepath.Join(writeCorpus(t, map[string]string{"docs.ldac": lines}), "docs.ldac"))
	must(t, err)
	if want.Size != 13 || want.Words != nil || want.Train.Len()+want.Test.Len() != 40 || want.Test.Len() < 1 {
		t.Fatalf("%d words, %d + %d documents", want.Size, want.Train.Len(), want.Test.Len())
	}
	if doc := want.Train.Document(0); !slices.Equal(doc, []int32{0, 0, 5, 12}) || want.Word(3) != "word3" {
		t.Errorf("the first document is %v", doc)
	}
	for name, text := range map[string]string{
		"docs.gz": zipped(t, lines), "windows": strings.ReplaceAll(lines, "\n", "\r\n"),
		"spaces": strings.ReplaceAll(lines, " ", "  "), "no end": strings.TrimSuffix(lines, "\n"),
	} {
		c, err := OpenCorpus(filepath.Join(writeCorpus(t, map[string]string{name: text}), name))
		must(t, err)
		if c.Digest() != want.Digest() {
			t.Errorf("%s yields different documents", name)
		}
	}
	words := strings.Repeat("a\n", 12) + "last\nunused\n"
	dir := writeCorpus(t, map[string]string{"train.ldac": lines, "test.ldac.gz": zipped(t, lines), "vocab.txt": words})
	c, err := OpenCorpus(dir)
	must(t, err)
	if c.Train.Len() != 40 || c.Test.Len() != 40 || c.Size != 14 || c.Word(12) != "last" ||
		c.Digest() == want.Digest() {
		t.Errorf("a folder: %d + %d documents, %d words", c.Train.Len(), c.Test.Len(), c.Size)
	}
}

func TestTexts(t *testing.T) {
	files := map[string]string{"readme.md": "passed over"}
	for i := range 30 {
		files[fmt.Sprintf("d%02d/text.TXT", i)] = fmt.Sprintf("The Gewürz-%s, and only-once%d is it?", []string{
			"paprika", "saffron", "thyme",
		}[i%3], i)
	}
	c, err := OpenCorpus(writeCorpus(t, files))
	must(t, err)
	// Gewürz is in all documents, words in only one document are too rare, the others are stop words.
	if want := []string{"paprika", "saffron", "thyme"}; !slices.Equal(c.Words, want) {
		t.Errorf("words %q, want %q", c.Words, want)
	}
	if n := c.Train.Len() + c.Test.Len(); n != 30 || len(c.Train.Tokens) != c.Train.Len() {
		t.Errorf("%d documents, %d tokens", n, len(c.Train.Tokens))
	}
}

func TestCorpusRefuses(t *testing.T) {
	good := manyDocuments()
	for want, files := range map[string]map[string]string{
		"line 41: it starts with \"x\"":                      {"docs": good + "x 1:1\n"},
		"line 41: its first number is 2, but it has 1 words": {"docs": good + "2 1:1\n"},
		"line 41: its first number is 1, but it has 2 words": {"docs": good + "1 1:1 2:1\n"},
		"\"-1:1\" is not word:count":                         {"docs": good + "1 -1:1\n"},
		"\"1:0\" is not word:count":                          {"docs": good + "1 1:0\n"},
		"\"16777216:1\" is not word:count":                   {"docs": good + "1 16777216:1\n"},
		"\"1:99999999\" is not word:count":                   {"docs": good + "1 1:99999999\n"},
		"\"7\" is not word:count":                            {"docs": good + "1 7\n"},
		"line 41: empty":                                     {"docs": good + "\n" + good},
		"word 5 is not in vocab.txt, which has 2":            {"docs": good, "vocab.txt": "a\nb\n"},
		"vocab.txt: line 2: empty line":                      {"docs": good, "vocab.txt": "a\n\nb\n"},
		"is truncated":                                       {"docs": zipped(t, good)[:60]},
		"is empty":                                           {"docs": ""},
		"has no words to train on":                           {"docs": strings.Repeat("0\n", 40)},
		"has no words in the held-out documents":             {"docs": "1 1:1\n"},
		"no such file or directory":                          {"other": good},
		"no files whose names end with .txt":                 {"docs/a.md": good},
		"is not a text":                                      {"docs/a.txt": "a\x00b"},
	} {
		path := filepath.Join(writeCorpus(t, files), "docs")
		_, err := OpenCorpus(path)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v, want %q", err, want)
		}
		if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrMissing) &&
			!errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v has no known kind", err)
		}
	}
	for _, name := range []string{"synthetic:", "synthetic:5", "synthetic:many", "synthetic:2000000"} {
		if _, err := OpenCorpus(name); !errors.Is(err, perdure.ErrUsage) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSyntheticCorpus(t *testing.T) {
	c := SyntheticCorpus(300)
	if n := c.Test.Len(); n < 15 || n > 50 || c.Train.Len()+n != 300 || c.Bytes() < 4*12_000 {
		t.Errorf("%d + %d documents, %d bytes", c.Train.Len(), n, c.Bytes())
	}
	again := SyntheticCorpus(300)
	if !slices.Equal(again.Train.Tokens, c.Train.Tokens) || again.Digest() != c.Digest() {
		t.Error("a second call generates different documents")
	}
	if c.wordsUsed() > c.Size {
		t.Errorf("word %d of %d", c.wordsUsed()-1, c.Size)
	}
}

// TestJSON: documents of a list need a body; the directory also contains texts.
func TestJSON(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	two := `{"title": "COCOA", "body": "ships carry cocoa beans", "topics": ["cocoa"]}, {"body": "judges weigh law"},`
	write("a.json", "["+strings.Repeat(two, 15)+`{"title": "nothing else"}, {"id": 3}]`)
	write("b.txt", "harbours want beans")
	c, err := OpenCorpus(dir)
	if err != nil {
		t.Fatal(err)
	}
	if c.Train.Len()+c.Test.Len() != 31 || !slices.Contains(c.Words, "cocoa") || slices.Contains(c.Words, "else") {
		t.Errorf("%d + %d documents of %q", c.Train.Len(), c.Test.Len(), c.Words)
	}
	for _, bad := range []string{"{}", "[1]", "[{]", "no"} {
		write("a.json", bad)
		if _, err := OpenCorpus(dir); err == nil || !strings.Contains(err.Error(), "list of documents") ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

package dataset

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
)

func writeSparse(t testing.TB, path, text string) string {
	t.Helper()
	must(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

// good returns 50 examples of three classes.
func good() string {
	var b strings.Builder
	for i := range 50 {
		fmt.Fprintf(&b, "%d 1:%d 7:0.5 %d:-2e-1\n", []int{10, -1, 2}[i%3], i, 20+i)
	}
	return b.String()
}

// TestSparseForms reads the same examples in all accepted forms.
func TestSparseForms(t *testing.T) {
	dir := t.TempDir()
	want, err := OpenSparse(writeSparse(t, filepath.Join(dir, "a"), good()))
	must(t, err)
	if !slices.Equal(want.Classes, []string{"-1", "2", "10"}) || want.Features != 70 ||
		want.Train.Len()+want.Test.Len() != 50 || want.Test.Len() < 2 {
		t.Fatalf("%q, %d features, %d + %d examples", want.Classes, want.Features, want.Train.Len(), want.Test.Len())
	}
	features, values := want.Train.Example(0)
	if want.Classes[want.Train.Label[0]] != "10" || !slices.Equal(features, []uint32{1, 7, 20}) ||
		!slices.Equal(values, []float32{0, 0.5, -0.2}) {
		t.Errorf("the first example has %v, %v", features, values)
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, err = z.Write([]byte(good()))
	must(t, errors.Join(err, z.Close()))
	for name, text := range map[string]string{
		"crlf":     strings.ReplaceAll(good(), "\n", "\r\n"),
		"tabs":     strings.ReplaceAll(good(), " ", "\t"),
		"comments": "# what it is\n\n" + strings.ReplaceAll(good(), "\n", " # note\n"),
		"unended":  strings.TrimSuffix(good(), "\n"),
		"packed":   packed.String(),
	} {
		got, err := OpenSparse(writeSparse(t, filepath.Join(dir, name), text))
		must(t, err)
		if got.MarkedSynthetic {
			t.Errorf("%s is considered synthetic", name)
		}
		if got.Digest() != want.Digest() {
			t.Errorf("%s: different set", name)
		}
	}
	marked, err := OpenSparse(writeSparse(t, filepath.Join(dir, "marked"), syntheticMark+": made up\n"+good()))
	must(t, err)
	if !marked.MarkedSynthetic || marked.Name != "synthetic data in marked" || marked.Digest() != want.Digest() {
		t.Errorf("a file marked as synthetic is named %q", marked.Name)
	}
	other, err := OpenSparse(writeSparse(t, filepath.Join(dir, "other"), strings.Replace(good(), "7:0.5", "7:0.25", 1)))
	must(t, err)
	if other.Digest() == want.Digest() {
		t.Error("a different value has the same digest")
	}
}

// TestSparseNames: names of features are hashed, a feature without a value is 1, and labels may be words.
func TestSparseNames(t *testing.T) {
	dir := t.TempDir()
	set, err := OpenSparse(writeSparse(t, filepath.Join(dir, "a"),
		strings.Repeat("spam money c1=ab:2 url:x:0.5\nham lunch\n", 30)))
	must(t, err)
	if set.Features != HashedFeatures || !slices.Equal(set.Classes, []string{"ham", "spam"}) {
		t.Fatalf("%d features, classes %q", set.Features, set.Classes)
	}
	features, values := set.Train.Example(0)
	if !slices.Equal(values, []float32{1, 2, 0.5}) || features[0] != hashFeature([]byte("money")) ||
		features[2] != hashFeature([]byte("url:x")) {
		t.Errorf("%v, %v", features, values)
	}
}

// TestFolders: separate files become the parts.
func TestFolders(t *testing.T) {
	dir := t.TempDir()
	writeSparse(t, filepath.Join(dir, "train.libsvm"), "1 1:1\n2 2:1\n")
	writeSparse(t, filepath.Join(dir, "test.libsvm"), "2 3:1\n")
	set, err := OpenSparse(dir)
	must(t, err)
	if set.Train.Len() != 2 || set.Test.Len() != 1 || set.Features != 4 || set.Test.Label[0] != 1 {
		t.Errorf("%+v", set)
	}
	texts := t.TempDir()
	writeSparse(t, filepath.Join(texts, "train.ldac"), "2 0:3 1:1\n0\n1 5:2\n")
	writeSparse(t, filepath.Join(texts, "train.labels"), "a\nb\nc\n")
	writeSparse(t, filepath.Join(texts, "test.ldac"), "1 6:1\n")
	writeSparse(t, filepath.Join(texts, "test.labels"), "c\n")
	set, err = OpenSparse(texts)
	must(t, err)
	if set.Train.Len() != 3 || len(set.Classes) != 3 || set.Features != 7 || set.Train.Starts[2] != 2 {
		t.Errorf("%+v", set)
	}
	writeSparse(t, filepath.Join(texts, "test.labels"), "c\nb\n")
	if _, err := OpenSparse(texts); err == nil || !strings.Contains(err.Error(), "has 1 examples for 2 labels") {
		t.Errorf("an extra label: %v", err)
	}
}

func TestSparseRefuses(t *testing.T) {
	dir := t.TempDir()
	for i, c := range []struct{ text, want string }{
		{"", "is empty"},
		{"\n# nothing\n", "holds no examples"},
		{"1 1:1\n", "has too few examples to hold out every tenth one: 1"},
		{strings.Repeat("1 1:1\n", 60), `of one class only, "1"`},
		{good() + "1 1:x\n", `line 51: value "x" of feature "1" is not a finite number`},
		{good() + "1 1:NaN\n", `line 51: value "NaN"`},
		{good() + "1 1:1e99\n", `line 51: value "1e99"`},
		{good() + "1 word:1\n", `line 51: feature "word" is not a whole number from 0 to 1073741823`},
		{good() + "1 -1:1\n", `line 51: feature "-1" is not`},
		{good() + "1 99999999999:1\n", `line 51: feature "99999999999" is not`},
		{good() + "1:1 2:1\n", `line 51: invalid label "1:1"`},
		{"a word\n" + good() + "b :1\n", "line 52: a feature has no name"},
		{good() + strings.Repeat("1", 1<<18) + "\n", "line of more than"},
		{"\x1f\x8bnothing", "gzip"},
	} {
		_, err := OpenSparse(writeSparse(t, filepath.Join(dir, fmt.Sprint(i)), c.text))
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.30q: %v, want one line with %q", c.text, err, c.want)
		}
	}
	many := strings.Builder{}
	for i := range 300 {
		fmt.Fprintf(&many, "c%d 1:1\n", i)
	}
	if _, err := OpenSparse(writeSparse(t, filepath.Join(dir, "many"), many.String())); err == nil ||
		!strings.Contains(err.Error(), "at most 255") {
		t.Errorf("300 classes: %v", err)
	}
	for _, name := range []string{filepath.Join(dir, "none"), dir} {
		if _, err := OpenSparse(name); err == nil {
			t.Errorf("%s was opened", name)
		}
	}
	for _, n := range []string{"", "x", "99", "1e3", "3000000"} {
		if _, err := OpenSparse(SyntheticPrefix + n); !errors.Is(err, perdure.ErrUsage) {
			t.Errorf("synthetic:%s: %v", n, err)
		}
	}
}

// TestSyntheticSparse: a written file has the same examples as the synthetic set of that name.
func TestSyntheticSparse(t *testing.T) {
	var b bytes.Buffer
	must(t, WriteSyntheticSparse(&b, 2000))
	written, err := OpenSparse(writeSparse(t, filepath.Join(t.TempDir(), "clicks"), b.String()))
	must(t, err)
	made, err := OpenSparse(SyntheticPrefix + "2000")
	must(t, err)
	if made.Digest() != "synthetic clicks, 2000" {
		t.Errorf("digest %q", made.Digest())
	}
	made.Synthetic = false
	if made.Digest() != written.Digest() {
		t.Error("the file has different examples")
	}
	clicks := 0
	for _, l := range made.Train.Label {
		clicks += int(l)
	}
	if share := float64(clicks) / float64(made.Train.Len()); share < 0.1 || share > 0.45 {
		t.Errorf("%v of the lines are clicks", share)
	}
	if err := WriteSyntheticSparse(&b, 3); !errors.Is(err, perdure.ErrUsage) {
		t.Errorf("3 clicks: %v", err)
	}
}

// TestOpenAll: every line of a file is classified, whatever its label.
func TestOpenAll(t *testing.T) {
	path := writeSparse(t, filepath.Join(t.TempDir(), "new"), "? 1:1\nspam 2:1 900:3\nham\n")
	s, err := OpenAllSparse(path, []string{"ham", "spam"}, UnknownFeatures)
	must(t, err)
	if !slices.Equal(s.Test.Label, []uint8{2, 1, 0}) || s.Features != 901 || s.Train.Len() != 3 {
		t.Errorf("%+v", s)
	}
	empty := writeSparse(t, filepath.Join(t.TempDir(), "none"), "\n")
	for _, bad := range []string{empty, filepath.Join(t.TempDir(), "no")} {
		if _, err := OpenAllSparse(bad, []string{"a", "b"}, UnknownFeatures); err == nil {
			t.Errorf("%s was opened", bad)
		}
	}
	made, err := OpenAllSparse(SyntheticPrefix+"500", []string{"0", "1"}, UnknownFeatures)
	must(t, err)
	if made.Test.Len() == 0 || made.Test.Len() > 100 {
		t.Errorf("%d clicks", made.Test.Len())
	}
}

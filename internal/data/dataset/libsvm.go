package dataset

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Files in the LIBSVM format have one example per line, "label feature:value feature:value …", as used with LIBSVM,
// XGBoost and Vowpal Wabbit, plain or gzip-compressed. Features are numbers, or names, which are hashed; labels are
// numbers or names. A feature without a value has the value 1, and text after a # is ignored. Files are read as
// streams; a SparseSet takes 8 bytes per value and 10 per example.

// SparseSet is a set of examples, divided into training and test parts.
type SparseSet struct {
	Name        string
	Classes     []string // the labels, in numerical or else alphabetical order
	Features    int      // highest number + 1; for names, HashedFeatures
	Train, Test SparseSplit

	Hashed          bool // features are names
	Synthetic       bool // determined by its name
	MarkedSynthetic bool // a file is marked as synthetic, see MarkedName

	Scaling *Scaling // of rows of numbers; nil for other sets
}

// Digest identifies a set by its content: "sha256:" and a hash over the class names, one per line, and over the
// examples' lengths, features, values and labels of both parts, each preceded by its length, little-endian. The digest
// of a synthetic set is its name.
func (s *SparseSet) Digest() string {
	if s.Synthetic {
		return s.Name
	}
	sum := newHasher()
	sum.bytes([]byte(strings.Join(s.Classes, "\n")))
	for _, p := range []*SparseSplit{&s.Train, &s.Test} {
		sum.count(len(p.Starts))
		for _, at := range p.Starts {
			sum.count(int(at))
		}
		words(sum, p.Feature)
		sum.floats(p.Value)
		sum.bytes(p.Label)
	}
	return sum.text()
}

// SparseSplit is one part of a set.
type SparseSplit struct {
	Starts  []int64   // per example, and one more: start of its features
	Feature []uint32  // of each example, in the order of its line
	Value   []float32 // finite
	Label   []uint8   // per example: the number of its class
}

// Len returns the number of examples.
func (s *SparseSplit) Len() int { return len(s.Label) }

// Example returns the features of an example and their values.
func (s *SparseSplit) Example(i int) ([]uint32, []float32) {
	from, to := s.Starts[i], s.Starts[i+1]
	return s.Feature[from:to:to], s.Value[from:to:to]
}

// Bytes returns the memory size of the set.
func (s *SparseSet) Bytes() (n int64) {
	for _, p := range []*SparseSplit{&s.Train, &s.Test} {
		n += int64(8*len(p.Starts) + 4*len(p.Feature) + 4*len(p.Value) + len(p.Label))
	}
	return n
}

// HashedFeatures is the number of hash values for feature names (FNV-1a): two names collide with a probability of one
// in 4 million.
const HashedFeatures = 1 << 22

// FeatureNaming is the kind of features of the examples for a model, as recorded in its file.
type FeatureNaming string

// The kinds of feature names.
const (
	UnknownFeatures  FeatureNaming = ""      // unknown: the first feature of the examples decides
	NamedFeatures    FeatureNaming = "true"  // names, which are hashed even if they look like numbers
	NumberedFeatures FeatureNaming = "false" // numbers
)

// Limits that exceed practical needs, so that one mistyped number does not exhaust memory.
const (
	maxFeature = 1<<30 - 1
	maxClasses = 255
)

// DefaultSparse is the set for an empty name.
const DefaultSparse = SyntheticPrefix + "4000"

// OpenSparse reads a set of one of these forms: a file, with about every tenth example held out; a directory
// with train.libsvm and test.libsvm; a CoverType directory; or a directory with documents in the LDA-C format,
// train.ldac and test.ldac, and one label per line for each in train.labels and test.labels. All files may be
// compressed, with .gz appended to their names. "synthetic:N" generates N clicks, as WriteSyntheticSparse does.
func OpenSparse(path string) (*SparseSet, error) {
	if path == "" {
		path = DefaultSparse
	}
	if n, ok := strings.CutPrefix(path, SyntheticPrefix); ok {
		return openSyntheticSparse(n)
	}
	info, err := os.Stat(path)
	if err == nil && info.IsDir() {
		if hasCovertype(path) {
			e, err := LoadCovertype(path)
			if err != nil {
				return nil, err
			}
			return ToSparse(e), nil
		}
		return openSparseDir(path, UnknownFeatures)
	}
	r := newSparseReader(path)
	if err := r.read(path, nil, func(i int) *sparsePart { return partOf(i, &r.train, &r.test) }); err != nil {
		return nil, err
	}
	return r.finish()
}

// ToSparse converts a set of rows of numbers. A class's label is its number, from 1.
func ToSparse(e *Examples) *SparseSet {
	s := &SparseSet{Name: e.Name, Features: e.Train.Dim, Scaling: e.Scaling}
	for k := range e.Train.Classes {
		s.Classes = append(s.Classes, strconv.Itoa(k+1))
	}
	for to, from := range map[*SparseSplit]*Split{&s.Train: &e.Train, &s.Test: &e.Test} {
		to.Starts, to.Label = append(to.Starts, 0), from.Labels
		for i := range from.N {
			for f, v := range from.Row(i) {
				if v != 0 {
					to.Feature, to.Value = append(to.Feature, uint32(f)), append(to.Value, v)
				}
			}
			to.Starts = append(to.Starts, int64(len(to.Feature)))
		}
	}
	return s
}

// OpenAllSparse reads all examples of a file, or the test examples of a directory, for classification; they form both
// parts of the set. A label that is not one of the classes gets the number len(classes). naming determines the kind of
// features.
func OpenAllSparse(path string, classes []string, naming FeatureNaming) (*SparseSet, error) {
	info, err := os.Stat(path)
	if path == "" || strings.HasPrefix(path, SyntheticPrefix) || err == nil && info.IsDir() {
		var s *SparseSet
		if err == nil {
			s, err = openSparseDir(path, naming)
		} else {
			s, err = OpenSparse(path)
		}
		if err != nil {
			return nil, err
		}
		for i, n := range s.Test.Label {
			s.Test.Label[i] = classOf(s.Classes[n], classes)
		}
		s.Train, s.Classes = s.Test, classes
		return s, nil
	}
	r := newSparseReader(path)
	r.setNaming(naming)
	if err := r.read(path, nil, func(int) *sparsePart { return &r.test }); err != nil {
		return nil, err
	}
	if len(r.test.labels) == 0 {
		return nil, corrupt(path, "holds no examples; write lines \"label feature:value …\"")
	}
	s := &r.set
	if s.Hashed = r.namedFeatures == 1; s.Hashed {
		s.Features = HashedFeatures
	}
	s.Test, s.Classes = r.test.SparseSplit, classes
	s.Test.Label = make([]uint8, len(r.test.labels))
	for i, n := range r.test.labels {
		s.Test.Label[i] = classOf(r.labels[n], classes)
	}
	s.Train = s.Test
	return s, nil
}

func classOf(label string, classes []string) uint8 {
	if i := slices.Index(classes, label); i >= 0 {
		return uint8(i)
	}
	return uint8(len(classes))
}

func openSparseDir(dir string, naming FeatureNaming) (*SparseSet, error) {
	r := newSparseReader(dir)
	r.setNaming(naming)
	for _, kind := range []string{".libsvm", ".ldac"} {
		if _, err := findSparse(dir, "train"+kind); err != nil {
			continue
		}
		for _, p := range []struct {
			name string
			to   *sparsePart
		}{{"train", &r.train}, {"test", &r.test}} {
			path, err := findSparse(dir, p.name+kind)
			if err != nil {
				return nil, err
			}
			var labels []string
			if kind == ".ldac" {
				if labels, err = readLabels(dir, p.name+".labels"); err != nil {
					return nil, err
				}
			}
			if err := r.read(path, labels, func(int) *sparsePart { return p.to }); err != nil {
				return nil, err
			}
		}
		return r.finish()
	}
	return nil, &FileError{
		Path: dir,
		Problem: "has no train.libsvm and test.libsvm, no train.ldac and test.ldac with labels, and no covtrain.csv " +
			"and covtest.csv",
		Kind: ErrMissing,
	}
}

// findSparse returns the path of a file or of its compressed form.
func findSparse(dir, name string) (string, error) {
	path, there := findFile(filepath.Join(dir, name))
	if !there {
		return "", &FileError{Path: path, Problem: "no such file", Kind: ErrMissing}
	}
	return path, nil
}

func readLabels(dir, name string) (labels []string, err error) {
	path, err := findSparse(dir, name)
	if err != nil {
		return nil, err
	}
	err = readLines(path, func(_ int, line []byte) error {
		labels = append(labels, string(bytes.TrimSpace(line)))
		return nil
	})
	return labels, err
}

// sparsePart is a split whose labels are numbered in order of appearance.
type sparsePart struct {
	SparseSplit
	labels []int
}

// sparseReader reads the files of a set.
type sparseReader struct {
	set           SparseSet
	train, test   sparsePart
	known         map[string]int // labels, in order of appearance
	labels        []string
	namedFeatures int8 // whether features are names: -1 unknown, 0 no, 1 yes
}

func newSparseReader(name string) *sparseReader {
	r := &sparseReader{set: SparseSet{Name: name}, known: map[string]int{}, namedFeatures: -1}
	r.train.Starts, r.test.Starts = []int64{0}, []int64{0}
	return r
}

// setNaming sets the kind of features.
func (r *sparseReader) setNaming(naming FeatureNaming) {
	switch naming {
	case NamedFeatures:
		r.namedFeatures = 1
	case NumberedFeatures:
		r.namedFeatures = 0
	}
}

// markSynthetic records that the examples are synthetic.
func (r *sparseReader) markSynthetic() {
	if !r.set.MarkedSynthetic {
		r.set.MarkedSynthetic, r.set.Name = true, MarkedName(filepath.Base(r.set.Name))
	}
}

// read reads a file of lines. If labels is nil, each line starts with its label, otherwise with its number of features.
func (r *sparseReader) read(path string, labels []string, to func(example int) *sparsePart) error {
	examples := 0
	err := readLines(path, func(number int, text []byte) error {
		if number == 1 && bytes.HasPrefix(text, []byte(syntheticMark)) {
			r.markSynthetic()
		}
		text, _, _ = bytes.Cut(text, []byte("#"))
		fields := bytes.Fields(text)
		if len(fields) == 0 {
			return nil
		}
		label := string(fields[0])
		if labels != nil {
			if examples >= len(labels) {
				return fmt.Errorf("has no label; there are only %d labels", len(labels))
			}
			label = labels[examples]
		}
		p := to(examples)
		examples++
		return r.example(p, label, fields[1:])
	})
	if err == nil && labels != nil && examples != len(labels) {
		err = corrupt(path, "has %d examples for %d labels", examples, len(labels))
	}
	return err
}

// example adds one example.
func (r *sparseReader) example(p *sparsePart, label string, fields [][]byte) error {
	number, known := r.known[label]
	if !known {
		if strings.ContainsRune(label, ':') || label == "" {
			return fmt.Errorf("invalid label %.40q; each line starts with a label, followed by features", label)
		}
		if number = len(r.labels); number == maxClasses {
			return fmt.Errorf("too many labels at %.40q; at most %d are accepted", label, maxClasses)
		}
		r.known[label], r.labels = number, append(r.labels, label)
	}
	for _, f := range fields {
		name, text, has := f, []byte(nil), false
		if at := bytes.LastIndexByte(f, ':'); at >= 0 {
			name, text, has = f[:at], f[at+1:], true
		}
		value := 1.0
		if has {
			var err error
			value, err = strconv.ParseFloat(string(text), 32)
			if err != nil || math.IsNaN(value) || math.IsInf(value, 0) {
				return fmt.Errorf("value %.40q of feature %.40q is not a finite number", text, name)
			}
		}
		feature, err := r.feature(name)
		if err != nil {
			return err
		}
		r.set.Features = max(r.set.Features, int(feature)+1)
		p.Feature, p.Value = append(p.Feature, feature), append(p.Value, float32(value))
	}
	p.Starts, p.labels = append(p.Starts, int64(len(p.Feature))), append(p.labels, number)
	return nil
}

// feature returns the number of a feature. The first feature determines whether they are numbers or names.
func (r *sparseReader) feature(name []byte) (uint32, error) {
	v, err := strconv.ParseUint(string(name), 10, 64)
	if r.namedFeatures < 0 {
		r.namedFeatures = 0
		if err != nil {
			r.namedFeatures = 1
		}
	}
	switch {
	case r.namedFeatures == 1 && len(name) == 0:
		return 0, fmt.Errorf("a feature has no name; write name:value")
	case r.namedFeatures == 1:
		return hashFeature(name), nil
	case err != nil || v > maxFeature:
		return 0, fmt.Errorf("feature %.40q is not a whole number from 0 to %d, unlike the others", name, maxFeature)
	}
	return uint32(v), nil
}

// hashFeature returns the folded FNV-1a hash of a name.
func hashFeature(name []byte) uint32 {
	h := uint64(14695981039346656037)
	for _, b := range name {
		h = (h ^ uint64(b)) * 1099511628211
	}
	return uint32((h ^ h>>32) % HashedFeatures)
}

// finish sorts the classes and completes the set.
func (r *sparseReader) finish() (*SparseSet, error) {
	s := &r.set
	switch {
	case len(r.train.labels) == 0:
		return nil, corrupt(s.Name, "holds no examples; write lines \"label feature:value …\"")
	case len(r.test.labels) == 0:
		return nil, corrupt(s.Name, "has too few examples to hold out every tenth one: %d",
			len(r.train.labels))
	case len(r.labels) < 2:
		return nil, corrupt(s.Name, "contains examples of one class only, %.40q; there is nothing to learn",
			r.labels[0])
	}
	if s.Hashed = r.namedFeatures == 1; s.Hashed {
		s.Features = HashedFeatures
	}
	s.Classes = slices.Clone(r.labels)
	sortLabels(s.Classes)
	for to, p := range map[*SparseSplit]*sparsePart{&s.Train: &r.train, &s.Test: &r.test} {
		*to = p.SparseSplit
		to.Label = make([]uint8, len(p.labels))
		for i, n := range p.labels {
			to.Label[i] = uint8(slices.Index(s.Classes, r.labels[n]))
		}
	}
	return s, nil
}

// sortLabels sorts labels, numerically if all are numbers.
func sortLabels(labels []string) {
	numbers := map[string]float64{}
	for _, l := range labels {
		v, err := strconv.ParseFloat(l, 64)
		if err != nil {
			slices.Sort(labels)
			return
		}
		numbers[l] = v
	}
	slices.SortFunc(labels, func(a, b string) int {
		if numbers[a] != numbers[b] {
			if numbers[a] < numbers[b] {
				return -1
			}
			return 1
		}
		return strings.Compare(a, b)
	})
}

package dataset

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// The files of CoverType, each plain or compressed with .gz appended to its name.
const (
	covertypeTrain = "covtrain.csv"
	covertypeTest  = "covtest.csv"
)

// The shape of CoverType (Blackard and Dean 1999): ten measurements of a location, four indicators of its wilderness
// area and forty of its soil type; the class is its forest type.
const (
	covertypeFeatures = 54
	covertypeClasses  = 7
)

// LoadCovertype reads covtrain.csv and covtest.csv from a directory: 54 numbers and a label from 1 to 7 per line. A
// first line of headings and empty lines are ignored. Features are standardised: the mean over the training examples is
// subtracted, and the result is divided by their standard deviation, unless that is 0. [Examples.Scaling] contains
// both.
func LoadCovertype(dir string) (*Examples, error) {
	set := &Examples{Name: dir}
	for i, part := range []*Split{&set.Train, &set.Test} {
		path, _ := findFile(filepath.Join(dir, [...]string{covertypeTrain, covertypeTest}[i]))
		if err := readCovertype(path, part); err != nil {
			return nil, err
		}
	}
	set.Scaling = measureScaling(&set.Train)
	for _, part := range []*Split{&set.Train, &set.Test} {
		set.Scaling.apply(part)
	}
	return set, nil
}

// OpenScaled reads examples for prediction by a model that was trained with the given scaling: the test part of a
// CoverType directory, or all lines of a file in its format. They form both parts of the set.
func OpenScaled(path string, scaling *Scaling) (*Examples, error) {
	if len(scaling.Means) != covertypeFeatures || len(scaling.Deviations) != covertypeFeatures {
		return nil, corrupt(path, "has %d features, but the model's file has %d means and %d deviations",
			covertypeFeatures, len(scaling.Means), len(scaling.Deviations))
	}
	set := &Examples{Name: path, Scaling: scaling}
	file := path
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		file, _ = findFile(filepath.Join(path, covertypeTest))
	}
	if err := readCovertype(file, &set.Test); err != nil {
		return nil, err
	}
	scaling.apply(&set.Test)
	set.Train = set.Test
	return set, nil
}

// hasCovertype reports whether a directory contains CoverType's training file.
func hasCovertype(dir string) bool {
	_, there := findFile(filepath.Join(dir, covertypeTrain))
	return there
}

// readCovertype reads the examples of a file without scaling them.
func readCovertype(path string, part *Split) error {
	part.Dim, part.Classes = covertypeFeatures, covertypeClasses
	err := readLines(path, func(number int, line []byte) error {
		if len(line) == 0 {
			return nil
		}
		return part.addLabelled(line, number == 1)
	})
	if err == nil && part.N == 0 {
		err = corrupt(path, "holds no examples; write lines of %d numbers and a label", covertypeFeatures)
	}
	return err
}

// addLabelled adds the example on a line: features and a label, separated by commas. The first line may contain
// headings.
func (s *Split) addLabelled(line []byte, first bool) error {
	if n := bytes.Count(line, []byte(",")) + 1; n != covertypeFeatures+1 {
		return fmt.Errorf("%d columns; a CoverType line has %d features and a label", n, covertypeFeatures)
	}
	if first && isHeading(line) {
		return nil
	}
	var field []byte
	for i := range covertypeFeatures {
		field, line, _ = bytes.Cut(line, []byte(","))
		v, err := strconv.ParseFloat(string(field), 32)
		if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Errorf("feature %d, %.40q, is not a finite number", i+1, field)
		}
		s.Features = append(s.Features, float32(v))
	}
	label, err := strconv.ParseUint(string(line), 10, 8)
	if err != nil || label < 1 || label > covertypeClasses {
		return fmt.Errorf("label %.40q is not a whole number from 1 to %d", line, covertypeClasses)
	}
	s.Labels = append(s.Labels, uint8(label-1))
	s.N++
	return nil
}

// Scaling is what the features of a set were brought to about zero mean and unit variance by, feature by feature.
type Scaling struct{ Means, Deviations []float64 } // a deviation of 0 does not count

// measureScaling returns the means and deviations of a training part's features.
func measureScaling(train *Split) *Scaling {
	s := &Scaling{Means: make([]float64, train.Dim), Deviations: make([]float64, train.Dim)}
	for f := range train.Dim {
		sum, squares := 0.0, 0.0
		for i := range train.N {
			sum += float64(train.Row(i)[f])
		}
		s.Means[f] = sum / float64(train.N)
		for i := range train.N {
			d := float64(train.Row(i)[f]) - s.Means[f]
			squares += float64(d * d)
		}
		s.Deviations[f] = math.Sqrt(squares / float64(train.N))
	}
	return s
}

// apply scales the features of a part.
func (s *Scaling) apply(part *Split) {
	for f, mean := range s.Means {
		scale := 1.0
		if s.Deviations[f] > 0 {
			scale = 1 / s.Deviations[f]
		}
		for i := range part.N {
			row := part.Row(i)
			row[f] = float32((float64(row[f]) - mean) * scale)
		}
	}
}

// The keys of a model's file for the means and deviations of features, one number per line.
const (
	MeansKey      = "features.means"
	DeviationsKey = "features.deviations"
)

// Constants returns the scaling in the form of a model's file; nil if there is no scaling.
func (s *Scaling) Constants() map[string]string {
	if s == nil {
		return nil
	}
	return map[string]string{MeansKey: NumberLines(s.Means), DeviationsKey: NumberLines(s.Deviations)}
}

// ScalingOf returns the scaling in a model's file; nil if it has none.
func ScalingOf(constants map[string]string) (*Scaling, error) {
	if constants[MeansKey] == "" {
		return nil, nil
	}
	var s Scaling
	for key, to := range map[string]*[]float64{MeansKey: &s.Means, DeviationsKey: &s.Deviations} {
		var err error
		if *to, err = parseNumberLines(constants[key]); err != nil {
			return nil, fmt.Errorf("the model's %s: %w", key, err)
		}
	}
	return &s, nil
}

// NumberLines writes numbers so that they are read again with all their bits, one in each line.
func NumberLines(values []float64) string {
	lines := make([]string, len(values))
	for i, v := range values {
		lines[i] = strconv.FormatFloat(v, 'g', -1, 64)
	}
	return strings.Join(lines, "\n")
}

// parseNumberLines reads what NumberLines has written.
func parseNumberLines(text string) (values []float64, err error) {
	for i, line := range strings.Split(text, "\n") {
		v, err := strconv.ParseFloat(line, 64)
		if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, fmt.Errorf("line %d: %.40q is not a finite number", i+1, line)
		}
		values = append(values, v)
	}
	return values, nil
}

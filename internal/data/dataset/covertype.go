package dataset

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strconv"
)

// The files of CoverType, each as it is or, with .gz behind its name, compressed.
const (
	covertypeTrain = "covtrain.csv"
	covertypeTest  = "covtest.csv"
)

// The shape of CoverType (Blackard and Dean 1999): ten measures of a place, four
// marks of its wilderness area, forty of its soil; the kind of its forest.
const (
	covertypeFeatures = 54
	covertypeClasses  = 7
)

// LoadCovertype reads covtrain.csv and covtest.csv from a folder: 54 numbers and
// a label from 1 to 7 in each line. A first line of names and empty lines are
// passed over. Features are standardised: of each, the mean over the training
// examples is taken away, and what is left is divided by their standard
// deviation, unless that is 0.
func LoadCovertype(dir string) (*Examples, error) {
	set := &Examples{Name: dir}
	for i, part := range []*Split{&set.Train, &set.Test} {
		path := filepath.Join(dir, [...]string{covertypeTrain, covertypeTest}[i])
		if _, err := os.Stat(path); err != nil {
			path += ".gz"
		}
		p := labelledParser{path: path, split: part}
		if err := ReadBlocks(path, p.block); err != nil {
			return nil, err
		}
		if part.N == 0 {
			return nil, Corrupt(path, "holds no examples; write lines of %d numbers and a label", covertypeFeatures)
		}
	}
	standardise(&set.Train, &set.Test)
	return set, nil
}

// labelledParser reads lines of features and a label, separated by commas.
type labelledParser struct {
	path  string
	split *Split
	line  int // lines before the present one
}

// block takes whole lines.
func (p *labelledParser) block(b []byte) error {
	p.split.Dim, p.split.Classes = covertypeFeatures, covertypeClasses
	if p.line == 0 {
		b = bytes.TrimPrefix(b, byteOrderMark)
	}
	for len(b) > 0 {
		var line []byte
		line, b = content(b)
		p.line++
		if len(line) == 0 {
			continue
		}
		if err := p.take(line); err != nil {
			return err
		}
	}
	return nil
}

func (p *labelledParser) take(line []byte) error {
	if n := bytes.Count(line, []byte(",")) + 1; n != covertypeFeatures+1 {
		return Corrupt(p.path, "line %d: %d columns; CoverType has %d features and a label", p.line, n,
			covertypeFeatures)
	}
	if p.line == 1 && isHeader(line) {
		return nil
	}
	var field []byte
	for i := range covertypeFeatures {
		field, line, _ = bytes.Cut(line, []byte(","))
		v, err := strconv.ParseFloat(string(field), 32)
		if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
			return Corrupt(p.path, "line %d: feature %d, %.40q, is not a finite number", p.line, i+1, field)
		}
		p.split.Features = append(p.split.Features, float32(v))
	}
	label, err := strconv.ParseUint(string(line), 10, 8)
	if err != nil || label < 1 || label > covertypeClasses {
		return Corrupt(p.path, "line %d: label %.40q is not a whole number from 1 to %d", p.line, line,
			covertypeClasses)
	}
	p.split.Labels = append(p.split.Labels, uint8(label-1))
	p.split.N++
	return nil
}

// standardise scales the features of both parts by what the training part says.
func standardise(train, test *Split) {
	for f := range train.Dim {
		sum, squares := 0.0, 0.0
		for i := range train.N {
			sum += float64(train.Row(i)[f])
		}
		mean := sum / float64(train.N)
		for i := range train.N {
			d := float64(train.Row(i)[f]) - mean
			squares += float64(d * d)
		}
		scale := 1.0
		if squares > 0 {
			scale = 1 / math.Sqrt(squares/float64(train.N))
		}
		for _, s := range []*Split{train, test} {
			for i := range s.N {
				row := s.Row(i)
				row[f] = float32((float64(row[f]) - mean) * scale)
			}
		}
	}
}

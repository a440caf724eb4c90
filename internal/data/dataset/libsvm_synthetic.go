package dataset

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math"
	"strconv"

	"github.com/perdure/perdure"
)

// How many clicks may be made up.
const (
	minClicks         = 100
	maxClicks         = 100_000_000
	maxClicksInMemory = 2_000_000
)

// The shape of Criteo's click logs: counts, and categories of which a few are frequent and most are rare.
const (
	clickCounts     = 13
	clickCategories = 26
)

// syntheticMark begins the first line of a file whose examples are made up, so that its results are not taken for
// others.
const syntheticMark = "# synthetic"

// WriteSyntheticSparse writes a click log of some lines, always the same ones: of Criteo's shape, and made up, as the
// line before them says. A line's label is 1 in one of five, with the odds that weights of its features, which a hash
// draws, add up to.
func WriteSyntheticSparse(to io.Writer, clicks int) error {
	if clicks < minClicks || clicks > maxClicks {
		return fmt.Errorf("%w: %d clicks; choose %d to %d", perdure.ErrUsage, clicks, minClicks, maxClicks)
	}
	out := bufio.NewWriterSize(to, 1<<16)
	line := fmt.Appendf(nil, "%s: %d clicks that are made up, of the shape of Criteo's\n", syntheticMark, clicks)
	if _, err := out.Write(line); err != nil {
		return err
	}
	for i := range clicks {
		line = appendClick(line[:0], i)
		if _, err := out.Write(line); err != nil {
			return err
		}
	}
	return out.Flush()
}

func appendClick(line []byte, i int) []byte {
	state := mix(uint64(i) + 1<<41)
	uniform := func() float64 { state++; return float64(mix(state)>>11) / (1 << 53) }
	var text []byte
	score := -5.0
	for k := range clickCounts {
		v := math.Floor(-4 * math.Log(1-uniform())) // geometric, of mean 3.5
		if v == 0 {
			continue // most are not there
		}
		x := math.Log1p(v)
		score += float64(x * float64(clickWeight(uint64(k))*0.3))
		text = fmt.Appendf(text, " n%d:%s", k+1, strconv.FormatFloat(x, 'g', 4, 64))
	}
	for k := range clickCategories {
		size := float64(uint64(4) << (k % 14))         // values of this category: 4 to 32,768
		value := uint64(size * math.Pow(uniform(), 3)) // the first ones are the frequent ones
		score += float64(clickWeight(uint64(k)<<32|value|1<<62) * 0.5)
		text = fmt.Appendf(text, " c%d=%x", k+1, uint32(mix(uint64(k)<<32|value)))
	}
	label := byte('0')
	if uniform() < 1/(1+math.Exp(-score)) {
		label = '1'
	}
	line = append(append(line, label), text...)
	return append(line, '\n')
}

// clickWeight is what a feature adds to the odds: of mean 0, and deviation 1.
func clickWeight(feature uint64) float64 {
	sum := -6.0
	for k := range uint64(12) {
		sum += float64(mix(feature*31+k)>>11) / (1 << 53)
	}
	return sum
}

// openSyntheticSparse makes a set of clicks.
func openSyntheticSparse(n string) (*SparseSet, error) {
	clicks, err := strconv.Atoi(n)
	if err != nil || clicks < minClicks || clicks > maxClicksInMemory {
		return nil, fmt.Errorf("%w: %s%s; write %sN for N clicks that are made up, %d to %d", perdure.ErrUsage,
			SyntheticPrefix, n, SyntheticPrefix, minClicks, maxClicksInMemory)
	}
	r := newSparseReader(fmt.Sprintf("synthetic clicks, %d", clicks))
	r.set.Synthetic = true
	var line []byte
	for i := range clicks {
		line = appendClick(line[:0], i)
		to := part(i, &r.train, &r.test)
		fields := bytes.Fields(line)
		if err := r.example(to, string(fields[0]), fields[1:]); err != nil {
			return nil, err
		}
	}
	return r.finish()
}

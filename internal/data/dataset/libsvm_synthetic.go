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

// The limits of the number of synthetic clicks.
const (
	minClicks         = 100
	maxClicks         = 100_000_000
	maxClicksInMemory = 2_000_000
)

// The shape of Criteo's click logs: counts, and categories with a few frequent and many rare values.
const (
	clickCounts     = 13
	clickCategories = 26
)

// syntheticMark is the start of the first line of a file with synthetic examples, so that results on it are not
// mistaken for others.
const syntheticMark = "# synthetic"

// WriteSyntheticSparse writes a synthetic click log with the shape of Criteo's, the same in every call. The line before
// the clicks marks it as synthetic. A line's label is 1 in one case of five, with odds that are the sum of its
// features' weights, which a hash determines.
func WriteSyntheticSparse(to io.Writer, clicks int) error {
	if clicks < minClicks || clicks > maxClicks {
		return perdure.Usagef("invalid number of clicks %d; choose %d to %d", clicks, minClicks, maxClicks)
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
		v := math.Floor(-4 * math.Log(1-uniform())) // geometric, mean 3.5
		if v == 0 {
			continue // most are absent
		}
		x := math.Log1p(v)
		score += float64(x * float64(clickWeight(uint64(k))*0.3))
		text = fmt.Appendf(text, " n%d:%s", k+1, strconv.FormatFloat(x, 'g', 4, 64))
	}
	for k := range clickCategories {
		size := float64(uint64(4) << (k % 14))         // number of values of this category: 4 to 32,768
		value := uint64(size * math.Pow(uniform(), 3)) // the first ones are frequent
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

// clickWeight returns a feature's contribution to the odds, with mean 0 and deviation 1.
func clickWeight(feature uint64) float64 {
	sum := -6.0
	for k := range uint64(12) {
		sum += float64(mix(feature*31+k)>>11) / (1 << 53)
	}
	return sum
}

// openSyntheticSparse generates a set of clicks.
func openSyntheticSparse(n string) (*SparseSet, error) {
	clicks, err := strconv.Atoi(n)
	if err != nil || clicks < minClicks || clicks > maxClicksInMemory {
		return nil, perdure.Usagef("invalid data %s%s; write %sN for N synthetic clicks, where N is %d to %d",
			SyntheticPrefix, n, SyntheticPrefix, minClicks, maxClicksInMemory)
	}
	r := newSparseReader(fmt.Sprintf("synthetic clicks, %d", clicks))
	r.set.Synthetic = true
	var line []byte
	for i := range clicks {
		line = appendClick(line[:0], i)
		to := partOf(i, &r.train, &r.test)
		fields := bytes.Fields(line)
		if err := r.example(to, string(fields[0]), fields[1:]); err != nil {
			return nil, err
		}
	}
	return r.finish()
}

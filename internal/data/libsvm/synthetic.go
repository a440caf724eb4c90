package libsvm

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/dataset"
)

// SyntheticPrefix is how the name of a set begins that is made up.
const SyntheticPrefix = dataset.SyntheticPrefix

// How many clicks may be made up.
const (
	leastMadeUp = 100
	mostMadeUp  = 100_000_000
	mostInMem   = 2_000_000
)

// The shape of Criteo's click logs: counts, and categories of which a few are frequent and most are rare.
const (
	counts     = 13
	categories = 26
)

// Mark begins the first line of a file whose examples are made up, so that results of it are not taken for others.
const Mark = "# synthetic"

// WriteSynthetic writes a click log of some lines, always the same ones: of Criteo's shape, and made up, as the line
// before them says. A line's label is 1 in one of five, with the odds that weights of its features, which a hash draws,
// add up to.
func WriteSynthetic(to io.Writer, clicks int) error {
	if clicks < leastMadeUp || clicks > mostMadeUp {
		return fmt.Errorf("%w: %d clicks; choose %d to %d", perdure.ErrUsage, clicks, leastMadeUp, mostMadeUp)
	}
	out := bufio.NewWriterSize(to, 1<<16)
	line := fmt.Appendf(nil, "%s: %d clicks that are made up, of the shape of Criteo's\n", Mark, clicks)
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
	state := dataset.Mix(uint64(i) + 1<<41)
	uniform := func() float64 { state++; return float64(dataset.Mix(state)>>11) / (1 << 53) }
	var text []byte
	score := -5.0
	for k := range counts {
		v := math.Floor(-4 * math.Log(1-uniform())) // geometric, of mean 3.5
		if v == 0 {
			continue // most are not there
		}
		x := math.Log1p(v)
		score += float64(x * float64(weight(uint64(k))*0.3))
		text = fmt.Appendf(text, " n%d:%s", k+1, strconv.FormatFloat(x, 'g', 4, 64))
	}
	for k := range categories {
		size := float64(uint64(4) << (k % 14))         // values of this category: 4 to 32,768
		value := uint64(size * math.Pow(uniform(), 3)) // the first ones are the frequent ones
		score += float64(weight(uint64(k)<<32|value|1<<62) * 0.5)
		text = fmt.Appendf(text, " c%d=%x", k+1, uint32(dataset.Mix(uint64(k)<<32|value)))
	}
	label := byte('0')
	if uniform() < 1/(1+math.Exp(-score)) {
		label = '1'
	}
	line = append(append(line, label), text...)
	return append(line, '\n')
}

// weight is what a feature adds to the odds: of mean 0, and deviation 1.
func weight(feature uint64) float64 {
	sum := -6.0
	for k := range uint64(12) {
		sum += float64(dataset.Mix(feature*31+k)>>11) / (1 << 53)
	}
	return sum
}

// openSynthetic makes a set of clicks.
func openSynthetic(n string) (*Set, error) {
	clicks, err := strconv.Atoi(n)
	if err != nil || clicks < leastMadeUp || clicks > mostInMem {
		return nil, fmt.Errorf("%w: %s%s; write %sN for N clicks that are made up, %d to %d", perdure.ErrUsage,
			SyntheticPrefix, n, SyntheticPrefix, leastMadeUp, mostInMem)
	}
	r := newReader(fmt.Sprintf("synthetic clicks, %d", clicks))
	r.set.Synthetic = true
	var line []byte
	for i := range clicks {
		line = appendClick(line[:0], i)
		to := &r.train
		if dataset.HeldOut(i) {
			to = &r.test
		}
		fields := bytes.Fields(line)
		if err := r.example(to, string(fields[0]), fields[1:]); err != nil {
			return nil, err
		}
	}
	return r.finish()
}

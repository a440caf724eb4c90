package logreg

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// prediction is the probability that a model gave to an outcome, and whether the outcome was true.
type prediction struct {
	probability float64
	correct     bool
}

// predictions are predicted probabilities. With two classes, the outcome is that an example belongs to the second one.
// Otherwise it is that the example belongs to the predicted class.
type predictions []prediction

// lines summarises the predictions as text for people.
func (j predictions) lines(classes []string) []string {
	slices.SortFunc(j, func(a, b prediction) int { return cmp.Compare(a.probability, b.probability) })
	mean, found := 0.0, 0.0
	for _, v := range j {
		mean += v.probability
		if v.correct {
			found++
		}
	}
	n := float64(len(j))
	calibration := fmt.Sprintf("calibration error %.4f: the mean error of the probabilities, over tenths of the "+
		"examples", j.calibrationError())
	if len(classes) > 2 {
		return []string{
			calibration,
			fmt.Sprintf("predicted classes: expected accuracy %.1f %%, actual accuracy %.1f %%",
				100*mean/n, 100*found/n),
		}
	}
	return []string{
		fmt.Sprintf("AUC %.4f: how often an example of %s scores above one of %s", j.auc(), classes[1], classes[0]),
		calibration,
		fmt.Sprintf("class %s: predicted share %.2f %%, actual share %.2f %%", classes[1], 100*mean/n, 100*found/n),
	}
}

// auc returns how often a true outcome has a higher probability than a false one, where a tie counts one half. The
// predictions must be sorted. It returns NaN if all outcomes are equal.
func (j predictions) auc() float64 {
	positives, negatives, below := 0.0, 0.0, 0.0
	for at := 0; at < len(j); {
		p, n := 0.0, 0.0
		end := at
		for ; end < len(j) && j[end].probability == j[at].probability; end++ {
			if j[end].correct {
				p++
			} else {
				n++
			}
		}
		below += float64(p * (negatives + n/2))
		positives, negatives, at = positives+p, negatives+n, end
	}
	if positives == 0 || negatives == 0 {
		return math.NaN()
	}
	return below / (positives * negatives)
}

// calibrationError returns the mean difference between the predicted probability and the observed frequency over tenths
// of the sorted examples.
func (j predictions) calibrationError() (sum float64) {
	for k := range 10 {
		part := j[len(j)*k/10 : len(j)*(k+1)/10]
		off := 0.0
		for _, v := range part {
			off += v.probability
			if v.correct {
				off--
			}
		}
		sum += math.Abs(off)
	}
	return sum / float64(max(len(j), 1))
}

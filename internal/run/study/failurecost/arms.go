package failurecost

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
)

// Arm is what is tried in trials of its own: a strategy, or another way to disturb a training.
type Arm struct {
	Text     string
	Recovery perdure.Recovery // of a strategy
	How      How
	Size     float64 // of the disturbance: see How
}

// How is by what a training is disturbed.
type How string

// The ways: servers that die under a strategy, and perturbations of the paper, of which strategies make no use.
const (
	ByDeath       How = ""
	ByRandom      How = "random"      // all rows are moved, in a random direction; the size is of the way from x₀ to x*
	ByAdversary   How = "adversarial" // likewise, straight away from x*
	ByReset       How = "reset"       // a part of the rows, which is drawn, becomes initial
	ByStaleReads  How = "stale"       // no failure: all reads are a number of clocks old
	perturbations     = "random:X, adversarial:X, reset:PART or stale:CLOCKS"
)

// mostStale bounds how many copies of the rows are kept.
const mostStale = 1000

func armOf(r perdure.Recovery) Arm { return Arm{Text: r.String(), Recovery: r} }

// saves reports whether the arm's strategy saves rows by themselves.
func (a *Arm) saves() bool { return a.How == ByDeath && recovery.RoundsOf(a.Recovery).Any() }

// whole reports whether all go back to a checkpoint under the arm's strategy.
func (a *Arm) whole() bool { return a.How == ByDeath && a.Recovery.Kind == perdure.RecoverCheckpoint }

// initial reports whether lost rows are initial under the arm's strategy.
func (a *Arm) initial() bool { return a.How == ByDeath && a.Recovery.Kind == perdure.RecoverNone }

// parsePerturbation reads a way to disturb a training that is no strategy.
func parsePerturbation(text string) (a Arm, err error) {
	name, size, _ := strings.Cut(text, ":")
	a = Arm{Text: text, How: How(name)}
	wrong := fmt.Errorf("%w: --perturb %s; choose %s", perdure.ErrUsage, text, perturbations)
	switch a.How {
	case ByRandom, ByAdversary:
		a.Size, err = strconv.ParseFloat(size, 64)
		if err != nil || !(a.Size > 0 && a.Size <= 1e6) {
			return a, fmt.Errorf("%w, of the way from the first rows to the best, above 0", wrong)
		}
	case ByReset:
		if a.Size, err = parsePart("--perturb", size); err != nil {
			return a, err
		}
	case ByStaleReads:
		n, err := strconv.Atoi(size)
		if a.Size = float64(n); err != nil || n < 1 || n > mostStale {
			return a, fmt.Errorf("%w, of 1 to %d", wrong, mostStale)
		}
	default:
		return a, wrong
	}
	return a, nil
}

// parsePart reads a part of a whole, as 1/2 or 0.5.
func parsePart(flag, text string) (float64, error) {
	above, below, fraction := strings.Cut(text, "/")
	a, err := strconv.ParseFloat(above, 64)
	b := 1.0
	if err == nil && fraction {
		b, err = strconv.ParseFloat(below, 64)
	}
	if err != nil || !(a/b > 0 && a/b <= 1) {
		return 0, fmt.Errorf("%w: %s %s; choose a part above 0, of 1 at most, as 1/2 or 0.5", perdure.ErrUsage, flag,
			text)
	}
	return a / b, nil
}

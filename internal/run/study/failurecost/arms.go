package failurecost

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
)

// Arm is one arm of the study, tried in its own trials: a recovery strategy, or another way to disturb a training.
type Arm struct {
	Text     string
	Recovery perdure.Recovery // of a strategy
	Kind     Kind
	Size     float64 // of the disturbance: see Kind
}

// Kind is the way in which an arm disturbs a training.
type Kind string

// Ways to disturb a training: servers that die under a strategy, and the paper's perturbations, which no strategy
// recovers from.
const (
	ByDeath       Kind = ""
	ByRandom      Kind = "random"      // all rows move in a random direction, by Size times the distance from x₀ to x*
	ByAdversary   Kind = "adversarial" // as ByRandom, but straight away from x*
	ByReset       Kind = "reset"       // a random part of the rows is reset to initial values
	ByStaleReads  Kind = "stale"       // no failure: all reads are Size clocks old
	perturbations      = "random:X, adversarial:X, reset:PART or stale:CLOCKS"
)

// maxStale limits how many copies of the rows are kept.
const maxStale = 1000

func armOf(r perdure.Recovery) Arm { return Arm{Text: r.String(), Recovery: r} }

// saves reports whether the arm's strategy saves rows individually.
func (a *Arm) saves() bool { return a.Kind == ByDeath && recovery.RoundsOf(a.Recovery).Any() }

// rollsBack reports whether the arm's strategy rolls back all shards to a checkpoint.
func (a *Arm) rollsBack() bool {
	return a.Kind == ByDeath && a.Recovery.Kind == perdure.RecoverCheckpoint
}

// resetsRows reports whether the arm's strategy resets lost rows to their initial values.
func (a *Arm) resetsRows() bool { return a.Kind == ByDeath && a.Recovery.Kind == perdure.RecoverNone }

// parsePerturbation parses a perturbation such as random:0.5.
func parsePerturbation(text string) (a Arm, err error) {
	name, size, _ := strings.Cut(text, ":")
	a = Arm{Text: text, Kind: Kind(name)}
	wrong := perdure.Usagef("invalid --perturb %s; choose %s", text, perturbations)
	switch a.Kind {
	case ByRandom, ByAdversary:
		a.Size, err = strconv.ParseFloat(size, 64)
		if err != nil || !(a.Size > 0 && a.Size <= 1e6) {
			return a, fmt.Errorf("%w, where X is above 0 and at most 1e6", wrong)
		}
	case ByReset:
		if a.Size, err = parsePart("--perturb", size); err != nil {
			return a, err
		}
	case ByStaleReads:
		n, err := strconv.Atoi(size)
		if a.Size = float64(n); err != nil || n < 1 || n > maxStale {
			return a, fmt.Errorf("%w, where CLOCKS is 1 to %d", wrong, maxStale)
		}
	default:
		return a, wrong
	}
	return a, nil
}

// parsePart parses a fraction such as 1/2 or 0.5.
func parsePart(flag, text string) (float64, error) {
	above, below, fraction := strings.Cut(text, "/")
	a, err := strconv.ParseFloat(above, 64)
	b := 1.0
	if err == nil && fraction {
		b, err = strconv.ParseFloat(below, 64)
	}
	if err != nil || !(a/b > 0 && a/b <= 1) {
		return 0, perdure.Usagef("invalid %s %s; choose a fraction above 0 and at most 1, such as 1/2 or 0.5", flag,
			text)
	}
	return a / b, nil
}

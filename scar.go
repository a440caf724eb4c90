package perdure

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// RecoverScar keeps a running checkpoint: of each row its value as it was last saved. Where
// a server dies its rows come back as saved, and nobody goes back.
const RecoverScar RecoveryKind = "scar"

// Selector says which rows scar saves next (SCAR paper, section 4).
type Selector string

// The selectors.
const (
	SelectPriority Selector = "priority" // the largest distance from the value last saved, for each byte
	SelectRound    Selector = "round"    // one after the other
	SelectRandom   Selector = "random"
	SelectUsed     Selector = "used" // the most updates since last saved: 4 bytes a row instead of a copy
)

// DefaultShare is R of scar where nobody says another: the SCAR paper's headline is of it.
const DefaultShare = 1.0 / 8

// Suits reports why a table cannot be saved under the strategy, if it cannot. FTRL makes a row of
// its state alone, and of much of its state the same row, 0: so the row does not tell how far it is
// from what was saved. Under all other rules what changes the state changes the row.
func (r Recovery) Suits(t TableSpec) error {
	if r.Kind == RecoverScar && r.Selector == SelectPriority && t.Rule.Kind == RuleFTRL {
		return fmt.Errorf("%w: table %s: under rule %s a row does not tell how far it is from what was saved, which "+
			"priority goes by; choose round, random or used, for example scar:20,1/8,used", ErrUsage, t.Name,
			t.Rule.Kind)
	}
	return nil
}

// scarForm is how scar is written.
const scarForm = "scar:C,R,SELECTOR, for example scar:20,1/8,priority"

// parseScar reads what follows scar in s: nothing, "C", "C,R" or "C,R,SELECTOR".
func parseScar(s string) (Recovery, error) {
	r := Recovery{Kind: RecoverScar, Auto: true, Share: DefaultShare, Selector: SelectPriority}
	_, args, more := strings.Cut(s, ":")
	if !more && s == string(RecoverScar) {
		return r, nil
	}
	parts := strings.Split(args, ",")
	if !more || len(parts) > 3 {
		return Recovery{}, fmt.Errorf("%w: %q is not how scar is written; write %s", ErrUsage, s, scarForm)
	}
	if err := r.parseInterval(parts[0]); err != nil {
		return Recovery{}, fmt.Errorf("%w: interval %q in %q is not a whole number ≥ 1; write for example scar:20, or "+
			"scar:auto", ErrUsage, parts[0], s)
	}
	if len(parts) > 1 {
		share, ok := parseShare(parts[1])
		if !ok {
			return Recovery{}, fmt.Errorf("%w: %q in %q is no part of the rows that a save may have: more than 0, and "+
				"at most 1; write for example scar:20,1/8", ErrUsage, parts[1], s)
		}
		r.Share = share
	}
	if len(parts) > 2 {
		switch r.Selector = Selector(parts[2]); r.Selector {
		case SelectPriority, SelectRound, SelectRandom, SelectUsed:
		default:
			return Recovery{}, fmt.Errorf("%w: unknown selector %q in %q; choose priority, round, random or used",
				ErrUsage, parts[2], s)
		}
	}
	return r, nil
}

// parseShare reads a number in (0, 1], as 1/8 or as 0.125.
func parseShare(s string) (share float64, ok bool) {
	above, below, quotient := strings.Cut(s, "/")
	share, err := strconv.ParseFloat(above, 64)
	if quotient && err == nil {
		var by float64
		by, err = strconv.ParseFloat(below, 64)
		share /= by
	}
	return share, err == nil && share > 0 && share <= 1
}

// scarString is what parseScar reads.
func (r Recovery) scarString(interval string) string {
	share := strconv.FormatFloat(r.Share, 'g', -1, 64)
	if n := math.Round(1 / r.Share); n > 1 && 1/n == r.Share {
		share = fmt.Sprintf("1/%.0f", n)
	}
	return fmt.Sprintf("scar:%s,%s,%s", interval, share, r.Selector)
}

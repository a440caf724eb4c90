package perdure

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// RecoverScar keeps a running checkpoint that holds the last saved value of each row. When a server dies, its rows are
// restored from it, and the job does not roll back.
const RecoverScar RecoveryKind = "scar"

// Selector says which rows scar saves next (SCAR paper, section 4).
type Selector string

// The selectors.
const (
	SelectPriority Selector = "priority" // largest distance from the last saved value, per byte
	SelectRound    Selector = "round"    // round robin
	SelectRandom   Selector = "random"
	SelectUsed     Selector = "used" // most updates since the last save; needs 4 bytes per row instead of a copy
)

// DefaultShare is the default R of scar. The SCAR paper reports its main result for this value.
const DefaultShare = 1.0 / 8

// ValidateTable returns an error if a table cannot be saved under the strategy. Under FTRL a row is a function of the
// rule's state, and many states give the same row, 0. The row therefore does not show how far it is from its saved
// value. Under all other rules, a change of the state also changes the row. A transient table needs checkpoints.
func (r Recovery) ValidateTable(t TableSpec) error {
	if r.Kind == RecoverScar && r.Selector == SelectPriority && t.Rule.Kind == RuleFTRL {
		return Usagef("table %s: selector priority does not work with rule %s, whose rows do not reveal their "+
			"distance from the saved value; choose round, random or used, for example scar:20,1/8,used", t.Name,
			t.Rule.Kind)
	}
	kept := r.Kind == RecoverCheckpoint || r.Kind == RecoverResend && !r.Partial ||
		r.Kind == RecoverChain && r.Checkpoints
	if t.Transient && !kept {
		return Usagef("table %s is transient: the death of a worker rolls all back to a checkpoint, but recovery %s "+
			"keeps none, or loses updates without a rollback; choose resend:C, checkpoint:C or chain:N,checkpoint:C",
			t.Name, r)
	}
	return nil
}

// scarForm describes the syntax of scar.
const scarForm = "scar:C,R,SELECTOR, for example scar:20,1/8,priority"

// parseScar parses the arguments after scar in s: none, "C", "C,R" or "C,R,SELECTOR".
func parseScar(s string) (Recovery, error) {
	r := Recovery{Kind: RecoverScar, Auto: true, Share: DefaultShare, Selector: SelectPriority}
	_, args, more := strings.Cut(s, ":")
	if !more && s == string(RecoverScar) {
		return r, nil
	}
	parts := strings.Split(args, ",")
	if !more || len(parts) > 3 {
		return Recovery{}, Usagef("invalid recovery strategy %q; write %s", s, scarForm)
	}
	if err := r.parseInterval(parts[0]); err != nil {
		return Recovery{}, Usagef("interval %q in %q is not a whole number ≥ 1; write, for example, scar:20, or "+
			"scar:auto", parts[0], s)
	}
	if len(parts) > 1 {
		share, ok := parseShare(parts[1])
		if !ok {
			return Recovery{}, Usagef("share %q in %q is not a number > 0 and ≤ 1; write, for example, scar:20,1/8",
				parts[1], s)
		}
		r.Share = share
	}
	if len(parts) > 2 {
		switch r.Selector = Selector(parts[2]); r.Selector {
		case SelectPriority, SelectRound, SelectRandom, SelectUsed:
		default:
			return Recovery{}, Usagef("unknown selector %q in %q; choose priority, round, random or used", parts[2], s)
		}
	}
	return r, nil
}

// parseShare parses a number in (0, 1], written as 1/8 or 0.125.
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

// scarString returns r in the form that parseScar accepts.
func (r Recovery) scarString(interval string) string {
	share := strconv.FormatFloat(r.Share, 'g', -1, 64)
	if n := math.Round(1 / r.Share); n > 1 && 1/n == r.Share {
		share = fmt.Sprintf("1/%.0f", n)
	}
	return fmt.Sprintf("scar:%s,%s,%s", interval, share, r.Selector)
}

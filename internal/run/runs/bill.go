package runs

import (
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
)

// unknownAmount stands for an unknown amount.
const unknownAmount = "-"

// minAmount is the smallest amount in dollars that is printed.
const minAmount = 1e-6

// DollarsText formats dollars with three significant digits, and at least cents. nil is unknown.
func DollarsText(v *float64) string {
	if v == nil {
		return unknownAmount
	}
	if *v > 0 && *v < minAmount {
		return fmt.Sprintf("<$%.6f", minAmount)
	}
	digits := 2
	if *v > 0 && *v < 1 {
		digits = 2 - int(math.Floor(math.Log10(*v)))
	}
	return fmt.Sprintf("$%.*f", digits, *v)
}

// Print prints the bill with each line indented.
func (b *Bill) Print(out io.Writer, indent, source string) error {
	from := ""
	if source != "" {
		from = " (prices of " + strings.TrimSpace(source) + ")"
	}
	fmt.Fprintf(out, "%s%-16s %s on demand, %s spot, %s by the month%s\n", indent, "cost", DollarsText(b.OnDemand),
		DollarsText(b.Spot), DollarsText(b.Month), from)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "%sCOST OF\tMACHINES\tTHERE\tIDLE\tWAITING\tON DEMAND\tSPOT\tMONTH\n", indent)
	for _, l := range b.Lines {
		fmt.Fprintf(w, "%s%s\t%d %s\t%.1f s\t%.0f %%\t%.0f %%\t%s\t%s\t%s\n", indent, l.Role, l.Machines, l.Kind,
			l.Seconds, 100*l.Idle, 100*l.Waiting, DollarsText(l.OnDemand), DollarsText(l.Spot), DollarsText(l.Month))
	}
	for _, fixed := range []struct {
		name    string
		dollars float64
	}{{"storage", b.Storage}, {"requests", b.Puts}} {
		if text := DollarsText(&fixed.dollars); fixed.dollars > 0 {
			fmt.Fprintf(w, "%s%s\t\t\t\t\t%s\t%s\t%s\n", indent, fixed.name, text, text, text)
		}
	}
	return w.Flush()
}

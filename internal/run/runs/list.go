package runs

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/settings"
)

// Line is a run in a list. Unknown values are nil or empty.
type Line struct {
	Folder      string        `json:"folder"`
	State       State         `json:"state"`
	Began       *time.Time    `json:"began"`
	Workload    string        `json:"workload"`
	Workers     int           `json:"workers"`
	Servers     int           `json:"servers"`
	Seed        uint64        `json:"seed"`
	Consistency string        `json:"consistency"`
	Recovery    string        `json:"recovery"`
	OnOutage    string        `json:"on_outage"`
	Clock       perdure.Clock `json:"clock"` // reached
	Clocks      perdure.Clock `json:"clocks"`
	WallSeconds *float64      `json:"wall_seconds"`
	Metric      string        `json:"metric"` // metric of Result on the test set: accuracy, rmse or loss
	Result      *float64      `json:"result"`
	Faults      *int          `json:"faults"`
	Lost        *int64        `json:"updates_lost"`
	Redone      *int64        `json:"clocks_redone"`
	Model       *string       `json:"model_sha256"`
	Problem     string        `json:"problem,omitempty"`
}

// Line returns the run's line.
func (r *Run) Line() Line {
	job := &r.Settings.Job
	l := Line{Folder: r.Folder, State: r.State, Clock: r.Clock}
	if !r.Began.IsZero() {
		l.Began = new(r.Began.UTC())
	}
	if r.Problem != nil {
		l.Problem = humanize.ErrorText(r.Problem)
	}
	if job.ID == "" {
		return l // its settings cannot be read
	}
	l.Workload, l.Workers, l.Servers, l.Seed, l.Clocks = job.Workload, job.Slots, job.Servers, job.Seed, job.Clocks
	l.Consistency, l.Recovery, l.OnOutage = job.Consistency.String(), job.Recovery.String(), job.OnOutage.String()
	if s := r.Summary; s != nil {
		failures := len(s.Failures)
		l.WallSeconds, l.Faults, l.Lost, l.Redone, l.Model = &s.WallSeconds, &failures, s.UpdatesLost,
			s.ClocksRedone, s.ModelSHA256
		l.Metric, l.Result = r.result()
	}
	return l
}

// result returns the metric of the run's model and its value.
func (r *Run) result() (metric string, value *float64) {
	switch s := r.Summary; {
	case s == nil:
	case s.TestAccuracy != nil:
		return "accuracy", s.TestAccuracy
	case s.TestRMSE != nil:
		return "rmse", s.TestRMSE
	case s.TestLoss != nil:
		return "loss", s.TestLoss
	}
	return "", nil
}

// Orders are the sort orders of a list, with their comparison functions.
var Orders = map[string]func(a, b *Line) int{
	"name":   func(a, b *Line) int { return cmp.Compare(a.Folder, b.Folder) },
	"began":  func(a, b *Line) int { return unknownLast(a.Began, b.Began, time.Time.Compare) },
	"time":   func(a, b *Line) int { return unknownLast(a.WallSeconds, b.WallSeconds, cmp.Compare) },
	"faults": func(a, b *Line) int { return unknownLast(a.Faults, b.Faults, cmp.Compare) },
	"lost":   func(a, b *Line) int { return unknownLast(a.Lost, b.Lost, cmp.Compare) },
	"result": byResult,
}

// byResult sorts by metric, with the best result first.
func byResult(a, b *Line) int {
	if a.Metric != b.Metric {
		return cmp.Compare(cmp.Or(a.Metric, "~"), cmp.Or(b.Metric, "~"))
	}
	if a.Metric == "accuracy" {
		return unknownLast(b.Result, a.Result, cmp.Compare)
	}
	return unknownLast(a.Result, b.Result, cmp.Compare)
}

func unknownLast[T any](a, b *T, compare func(a, b T) int) int {
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil:
		return 1
	case b == nil:
		return -1
	}
	return compare(*a, *b)
}

// List prints a line for each run, in an order of Orders; "" keeps the given order.
func List(out io.Writer, all []*Run, order string, asJSON bool) error {
	compare, known := Orders[order]
	if !known && order != "" {
		return perdure.Usagef("invalid --sort %s; choose %s", order, orderNames())
	}
	lines := []pricedLine{}
	for _, r := range all {
		lines = append(lines, pricedLine{r.Line(), r.Cost(r.Prices)})
	}
	if known {
		slices.SortStableFunc(lines, func(a, b pricedLine) int { return compare(&a.Line, &b.Line) })
	}
	if asJSON {
		return humanize.JSON(out, lines)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	heads := []string{
		"RUN", "BEGAN", "WORKLOAD", "SHAPE", "CONSISTENCY", "RECOVERY", "ENDED", "CLOCKS", "RESULT", "FAULTS", "LOST",
		"REDONE", "TIME", "MODEL",
	}
	withCost := slices.ContainsFunc(all, func(r *Run) bool { return r.Prices != nil })
	if withCost {
		heads = append(heads, "ON DEMAND", "SPOT", "MONTH")
	}
	fmt.Fprintln(w, strings.Join(heads, "\t"))
	for i := range lines {
		cells := lines[i].cells()
		if withCost {
			cells = append(cells, lines[i].costs()...)
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for i := range lines {
		if l := &lines[i]; strings.Contains(l.Problem, l.Folder) {
			fmt.Fprintln(out, l.Problem)
		} else if l.Problem != "" {
			fmt.Fprintf(out, "%s: %s\n", l.Folder, l.Problem)
		}
	}
	return nil
}

func orderNames() string {
	var names []string
	for name := range Orders {
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

const unknown = "-"

func (l *Line) cells() []string {
	began, shape, clocks := unknown, unknown, unknown
	if l.Began != nil {
		began = l.Began.Local().Format("2006-01-02 15:04")
	}
	if l.Workload != "" {
		shape = fmt.Sprintf("%dw %ds", l.Workers, l.Servers)
		clocks = fmt.Sprint(l.Clock)
		if l.Clock < l.Clocks && l.Clocks < settings.NoEnd && l.State != Done {
			clocks += fmt.Sprintf("/%d", l.Clocks)
		}
	}
	return []string{
		l.Folder, began, cmp.Or(l.Workload, unknown), shape, cmp.Or(l.Consistency, unknown),
		cmp.Or(l.Recovery, unknown), string(l.State), clocks, resultText(l.Metric, l.Result), text(l.Faults),
		text(l.Lost), text(l.Redone), secondsText(l.WallSeconds), modelText(l.Model),
	}
}

// pricedLine is a run's line with its cost; nil: unknown.
type pricedLine struct {
	Line
	Cost *Bill `json:"cost,omitempty"`
}

// costs returns the cells of the three prices.
func (l *pricedLine) costs() []string {
	if l.Cost == nil {
		return []string{unknown, unknown, unknown}
	}
	return []string{DollarsText(l.Cost.OnDemand), DollarsText(l.Cost.Spot), DollarsText(l.Cost.Month)}
}

// text formats a number that may be unknown.
func text[T any](v *T) string {
	if v == nil {
		return unknown
	}
	return fmt.Sprint(*v)
}

// modelText returns the first digits of a model's hash, which are enough to tell models apart.
func modelText(sum *string) string {
	if sum == nil {
		return unknown
	}
	return (*sum)[:min(12, len(*sum))]
}

func resultText(metric string, v *float64) string {
	switch {
	case v == nil:
		return unknown
	case metric == "accuracy":
		return fmt.Sprintf("%.2f %%", 100**v)
	}
	return fmt.Sprintf("%s %.4f", metric, *v)
}

func secondsText(v *float64) string {
	switch {
	case v == nil:
		return unknown
	case *v < 99.95:
		return fmt.Sprintf("%.1f s", *v)
	}
	return (time.Duration(*v+0.5) * time.Second).String()
}

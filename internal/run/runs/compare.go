package runs

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/humanize"
)

// Row is a named value of several runs; "" if a run lacks it or it is unknown.
type Row struct {
	Name    string   `json:"name"`
	Values  []string `json:"values"`
	Differs bool     `json:"differs"`
}

// Comparison holds runs side by side.
type Comparison struct {
	Runs     []string `json:"runs"`
	Settings []Row    `json:"settings"`
	Results  []Row    `json:"results"`
}

// Compare prints runs side by side: their results, and the settings that differ or, with every, all settings.
func Compare(out io.Writer, all []*Run, every, asJSON bool) error {
	if len(all) < 2 {
		return fmt.Errorf("%w: cannot compare only %d run; specify two or more", perdure.ErrUsage, len(all))
	}
	for _, r := range all {
		if r.Settings.Job.ID == "" {
			return fmt.Errorf("%s: %w", r.Folder, r.Problem)
		}
	}
	c, err := compare(all)
	if err != nil {
		return err
	}
	if asJSON {
		return humanize.JSON(out, c)
	}
	return c.print(out, every)
}

func compare(all []*Run) (c Comparison, err error) {
	var columns []map[string]string
	names := map[string]bool{}
	for _, r := range all {
		c.Runs = append(c.Runs, r.Folder)
		column, err := flat(&r.Settings)
		if err != nil {
			return c, err
		}
		columns = append(columns, column)
		for name := range column {
			names[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		row := Row{Name: name}
		for _, column := range columns {
			row.Values = append(row.Values, column[name])
		}
		c.Settings = append(c.Settings, row.marked())
	}
	c.Results = results(all)
	return c, nil
}

// marked returns the row with Differs set.
func (r Row) marked() Row {
	r.Differs = slices.ContainsFunc(r.Values, func(v string) bool { return v != r.Values[0] })
	return r
}

// ownSettings are the settings that identify a run or follow from other settings.
var ownSettings = []string{"job.id", "job.seal"}

// flat returns the values in v's JSON by path, for example the settings by their path in run.json.
func flat(v any) (map[string]string, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var tree any
	if err := json.Unmarshal(b, &tree); err != nil {
		return nil, err
	}
	leaves := map[string]string{}
	flatten(leaves, "", tree)
	return leaves, nil
}

// flatten adds the leaves of a JSON tree by path; a list is one leaf.
func flatten(to map[string]string, path string, tree any) {
	if slices.Contains(ownSettings, path) {
		return
	}
	if object, ok := tree.(map[string]any); ok {
		for name, v := range object {
			flatten(to, strings.TrimPrefix(path+"."+name, "."), v)
		}
		return
	}
	if text, ok := tree.(string); ok {
		to[path] = text
		return
	}
	if b, err := json.Marshal(tree); err == nil && tree != nil {
		to[path] = string(b)
	}
}

// results returns the rows about how runs ended. Numbers include their difference from those of the first run.
func results(all []*Run) (rows []Row) {
	lines := make([]Line, len(all))
	for i, r := range all {
		lines[i] = r.Line()
	}
	words := func(name string, of func(l *Line) string) {
		row := Row{Name: name}
		for i := range lines {
			row.Values = append(row.Values, of(&lines[i]))
		}
		rows = append(rows, row.marked())
	}
	numbers := func(name, format string, of func(r *Run) *float64) {
		rows = append(rows, numbersRow(name, format, all, of))
	}
	words("ended", func(l *Line) string { return string(l.State) })
	words("clocks", func(l *Line) string { return fmt.Sprint(l.Clock) })
	metric := lines[0].Metric
	for i := range lines {
		if lines[i].Metric != metric {
			metric = "" // different workloads: results are shown with their metric
		}
	}
	if metric == "" {
		words("result", func(l *Line) string { return resultText(l.Metric, l.Result) })
	} else {
		numbers("test "+metric, "%.4f", func(r *Run) *float64 { _, v := r.result(); return v })
	}
	for _, n := range resultNumbers {
		if metric == "" && n.name == "test loss" {
			continue // losses of different models are not comparable
		}
		numbers(n.name, n.format, n.of)
	}
	words("model sha256", func(l *Line) string {
		if l.Model == nil {
			return unknown
		}
		return (*l.Model)[:min(12, len(*l.Model))]
	})
	return rows
}

// number converts a value of a summary, and returns nil without a summary.
func number(of func(r *Run) *int64) func(r *Run) *float64 {
	return func(r *Run) *float64 {
		if r.Summary == nil {
			return nil
		}
		n := of(r)
		if n == nil {
			return nil
		}
		v := float64(*n)
		return &v
	}
}

func ofSummary(of func(r *Run) *float64) func(r *Run) *float64 {
	return func(r *Run) *float64 {
		if r.Summary == nil {
			return nil
		}
		return of(r)
	}
}

// cpu returns the CPU seconds of a run, summed over all roles.
func cpu(r *Run) *float64 {
	if len(r.Summary.Usage) == 0 {
		return nil
	}
	var sum float64
	for _, u := range r.Summary.Usage {
		sum += u.CPUSeconds
	}
	return &sum
}

var resultNumbers = []struct {
	name, format string
	of           func(r *Run) *float64
}{
	{"test loss", "%.4f", ofSummary(func(r *Run) *float64 { return r.Summary.TestLoss })},
	{"wall time, s", "%.2f", ofSummary(func(r *Run) *float64 { return &r.Summary.WallSeconds })},
	{"processor, s", "%.2f", ofSummary(cpu)},
	{"faults", "%.0f", number(func(r *Run) *int64 { n := int64(len(r.Summary.Failures)); return &n })},
	{"updates lost", "%.0f", number(func(r *Run) *int64 { return r.Summary.UpdatesLost })},
	{"clocks redone", "%.0f", number(func(r *Run) *int64 { return r.Summary.ClocksRedone })},
	{"bytes pushed", "%.4g", number(func(r *Run) *int64 { return r.Summary.BytesPushed })},
	{"bytes pulled", "%.4g", number(func(r *Run) *int64 { return r.Summary.BytesPulled })},
}

func numbersRow(name, format string, all []*Run, of func(r *Run) *float64) Row {
	row := Row{Name: name}
	first := of(all[0])
	for i, r := range all {
		v := of(r)
		if v == nil {
			row.Values = append(row.Values, unknown)
			row.Differs = row.Differs || first != nil
			continue
		}
		value := fmt.Sprintf(format, *v)
		if i > 0 && (first == nil || *v != *first) {
			row.Differs = true
			value += change(first, *v)
		}
		row.Values = append(row.Values, value)
	}
	return row
}

// change formats the difference of a value from the first one.
func change(first *float64, v float64) string {
	if first == nil || *first == 0 {
		return ""
	}
	percent := 100 * (v - *first) / math.Abs(*first)
	if math.Abs(percent) >= 1000 {
		return fmt.Sprintf(" (×%.3g)", v / *first)
	}
	return fmt.Sprintf(" (%+.1f %%)", percent)
}

// print prints the comparison, with a * before rows that differ.
func (c *Comparison) print(out io.Writer, every bool) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\t"+strings.Join(c.Runs, "\t"))
	row := func(r *Row) {
		mark := "  "
		if r.Differs {
			mark = "* "
		}
		values := slices.Clone(r.Values)
		for i := range values {
			if values[i] == "" {
				values[i] = unknown
			}
		}
		fmt.Fprintln(w, mark+r.Name+"\t"+strings.Join(values, "\t"))
	}
	same := 0
	for i := range c.Settings {
		if !every && !c.Settings[i].Differs {
			same++
			continue
		}
		row(&c.Settings[i])
	}
	for i := range c.Results {
		row(&c.Results[i])
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if same > 0 {
		fmt.Fprintf(out, "%d more settings are the same; --all shows them\n", same)
	}
	return nil
}

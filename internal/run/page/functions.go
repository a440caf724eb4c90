package page

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"text/template"

	"github.com/perdure/perdure/internal/run/study"
)

// functions are those of templates.
func (s *Study) functions() template.FuncMap {
	all := s.lossFunctions()
	maps.Copy(all, template.FuncMap{
		"cells": s.where, "cell": s.one, "by": s.By, "figure": figure, "name": s.name, "names": s.names,
		"show": show, "mid": func(v study.Spread) float64 { return v.Mid }, "low": low, "high": high, "sort": sorted,
		"first": first, "last": last, "apart": apart, "known": known, "short": study.Short, "percent": study.Percent1,
		"add": func(a, b float64) float64 { return a + b }, "sub": func(a, b float64) float64 { return a - b },
		"mul": func(a, b float64) float64 { return a * b }, "div": func(a, b float64) float64 { return a / b },
		"falls": falls, "rises": rises, "within": within, "above": above, "times": times,
		"table": s.table, "curves": s.curves,
		"dots": s.dots, "listed": study.Listed, "dict": dict, "trials": s.trials, "failed": failed,
		"fixed": func(format string, x float64) string { return shown(x, format) },
	})
	return all
}

// matches reports whether a cell meets conditions: AXIS=LABEL or AXIS!=LABEL, LABEL being one or several, with |.
func (c *Cell) matches(conditions []string) (bool, error) {
	for _, text := range conditions {
		axis, labels, ok := strings.Cut(text, "=")
		not := strings.HasSuffix(axis, "!")
		axis = strings.TrimSuffix(axis, "!")
		label, there := c.labels[axis]
		if !ok || !there {
			return false, fmt.Errorf("the condition %q: write AXIS=LABEL, of an axis of the study or of failures", text)
		}
		if slices.Contains(strings.Split(labels, "|"), label) == not {
			return false, nil
		}
	}
	return true, nil
}

// where are the cells that meet conditions, in the order of the study's file.
func (s *Study) where(conditions ...string) (found []*Cell, err error) {
	for _, c := range s.cells {
		ok, err := c.matches(conditions)
		if err != nil {
			return nil, err
		}
		if ok {
			found = append(found, c)
		}
	}
	return found, nil
}

// one is the cell that meets conditions. Where none does it is one without runs, of which nothing is known: a study
// may be tried out with fewer cells than its page speaks of.
func (s *Study) one(conditions ...string) (*Cell, error) {
	found, err := s.where(conditions...)
	switch {
	case err != nil:
		return nil, err
	case len(found) > 1:
		return nil, fmt.Errorf("%d cells are %s, the first of them %s and %s; say which one is meant", len(found),
			strings.Join(conditions, " "), found[0].Name, found[1].Name)
	case len(found) == 0:
		return &Cell{Name: strings.Join(conditions, " ")}, nil
	}
	return found[0], nil
}

func figure(c *Cell, measure string) (study.Spread, error) { return c.spread(measure) }

// name is how a cell is called by its labels of axes: of those that are named, else of all that differ.
func (s *Study) name(c *Cell, axes ...string) string {
	if len(axes) == 0 {
		for _, axis := range append(slices.Clone(s.Axes), "failures") {
			if len(s.By(axis)) > 1 {
				axes = append(axes, axis)
			}
		}
	}
	var words []string
	for _, axis := range axes {
		if label := c.labels[axis]; label != "" {
			words = append(words, label)
		}
	}
	if len(words) == 0 {
		return "`" + c.Name + "`"
	}
	return "`" + strings.Join(words, " ") + "`"
}

// names lists cells; of several with the same name one.
func (s *Study) names(cells []*Cell, axes ...string) string {
	var all []string
	for _, c := range cells {
		if n := s.name(c, axes...); !slices.Contains(all, n) {
			all = append(all, n)
		}
	}
	return study.Listed(all)
}

// show writes a spread: its median, and least and most where these differ. The format is fmt's, or percent; without
// one it is four digits.
func show(v study.Spread, format ...string) string {
	if math.IsNaN(v.Mid) {
		return "–"
	}
	return v.Text(func(x float64) string { return shown(x, format...) })
}

func shown(x float64, format ...string) string {
	switch {
	case len(format) == 0 || format[0] == "" || math.IsNaN(x) || math.IsInf(x, 0):
		return study.Short(x)
	case format[0] == "percent":
		return study.Percent1(x)
	}
	return fmt.Sprintf(format[0], x)
}

func low(v study.Spread) float64  { return v.Low }
func high(v study.Spread) float64 { return v.High }
func known(v study.Spread) bool   { return !math.IsNaN(v.Mid) }

// sorted are cells by the median of a measure, rising, without those that do not know it.
func sorted(cells []*Cell, measure string) ([]*Cell, error) {
	mids := map[*Cell]float64{}
	var some []*Cell
	for _, c := range cells {
		v, err := c.spread(measure)
		if err != nil {
			return nil, err
		}
		if known(v) {
			mids[c], some = v.Mid, append(some, c)
		}
	}
	slices.SortStableFunc(some, func(a, b *Cell) int { return cmp.Compare(mids[a], mids[b]) })
	return some, nil
}

func first(cells []*Cell) *Cell {
	if len(cells) == 0 {
		return &Cell{Name: "none"}
	}
	return cells[0]
}

func last(cells []*Cell) *Cell {
	if len(cells) == 0 {
		return &Cell{Name: "none"}
	}
	return cells[len(cells)-1]
}

// apart reports whether the trials of two cells tell them apart: their ranges do not meet, and neither is one trial.
func apart(a, b *Cell, measure string) (bool, error) {
	v, err := a.spread(measure)
	w, err2 := b.spread(measure)
	return len(a.Trials) > 1 && len(b.Trials) > 1 && (v.High < w.Low || w.High < v.Low), errors.Join(err, err2)
}

// The verdicts about what a paper reports.
const (
	reproduced    = "reproduced"
	notReproduced = "not reproduced"
	incomparable  = "not comparable"
)

// Of one trial each nobody knows what chance did, so nothing is reproduced by it.
const (
	soOnce    = "so in one trial"
	notSoOnce = "not so in one trial"
)

// verdict says whether trials do as a paper reports; of single trials, only what they did.
func verdict(so bool, found, others study.Spread) string {
	once := found.N == 1 || others.N == 1
	switch {
	case so && once:
		return soOnce
	case so:
		return reproduced
	case once:
		return notSoOnce
	}
	return notReproduced
}

// falls is the verdict about a fall: every trial falls, and further than each of those that nothing happened to.
func falls(found, calm study.Spread) string {
	if !known(found) || !known(calm) {
		return incomparable
	}
	return verdict(found.High < 0 && found.High < calm.Low, found, calm)
}

// rises is the verdict about a rise: every trial rises.
func rises(found study.Spread) string {
	if !known(found) {
		return incomparable
	}
	return verdict(found.Low > 0, found, found)
}

// within is the verdict about a size: it is within a factor of the paper's, and of the same sign.
func within(paper, found, factor float64) string {
	ratio := found / paper
	switch {
	case math.IsNaN(ratio) || math.IsInf(ratio, 0):
		return incomparable
	case ratio >= 1/factor && ratio <= factor:
		return reproduced
	}
	return notReproduced
}

// times says how many times as large as the paper's a size is.
func times(paper, found float64) string {
	ratio := found / paper
	switch {
	case math.IsNaN(ratio) || math.IsInf(ratio, 0):
		return "–"
	case ratio < 0:
		return "the other way"
	}
	return fmt.Sprintf("%.2f times", ratio)
}

// above is the verdict about being above others by a number at least: the medians are that far apart, and the
// trials' ranges do not meet.
func above(found, others study.Spread, by float64) string {
	if !known(found) || !known(others) {
		return incomparable
	}
	return verdict(found.Mid-others.Mid >= by && found.Low > others.High, found, others)
}

// dict makes arguments of a template within the template.
func dict(pairs ...any) (map[string]any, error) {
	m := map[string]any{}
	for i := 0; i+1 < len(pairs); i += 2 {
		key, is := pairs[i].(string)
		if !is {
			return nil, fmt.Errorf("dict: %v is no name", pairs[i])
		}
		m[key] = pairs[i+1]
	}
	return m, nil
}

// trials is how many trials cells have, the fewest and the most.
func (s *Study) trials() string {
	least, most := math.MaxInt, 0
	for _, c := range s.cells {
		least, most = min(least, len(c.Trials)), max(most, len(c.Trials))
	}
	if least == most {
		return fmt.Sprint(most)
	}
	return fmt.Sprintf("%d to %d", least, most)
}

// failed says how many runs of some cells did not come to their end.
func failed(cells []*Cell) string {
	n, all := 0, 0
	for _, c := range cells {
		n, all = n+len(c.Failed), all+len(c.Failed)+len(c.Trials)
	}
	return fmt.Sprintf("%d of %d runs", n, all)
}

// column is one of a table or a picture, written "HEADING; MEASURE; FORMAT; CONDITION …": what follows the measure may
// be left out. With conditions it is of the cell that meets these and is alike in all else.
type column struct {
	heading, measure, format string
	conditions               []string
}

func parseColumn(text string) (c column, err error) {
	parts := strings.Split(text, ";")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	if len(parts) < 2 || len(parts) > 4 {
		return c, fmt.Errorf("the column %q: write \"HEADING; MEASURE; FORMAT; CONDITIONS\"", text)
	}
	parts = append(parts, "", "")
	return column{parts[0], parts[1], parts[2], strings.Fields(parts[3])}, nil
}

// of is the column's value of a cell.
func (s *Study) of(c *Cell, col *column) (study.Spread, error) {
	if len(col.conditions) > 0 {
		other := slices.Clone(col.conditions)
		named := func(axis string) bool {
			return slices.ContainsFunc(col.conditions, func(text string) bool {
				return strings.HasPrefix(text, axis+"=")
			})
		}
		for axis, label := range c.labels {
			if !named(axis) {
				other = append(other, axis+"="+label)
			}
		}
		var err error
		if c, err = s.one(other...); err != nil {
			return study.Spread{}, err
		}
	}
	return c.spread(col.measure)
}

// table writes a table: a row for each cell, by its name of some axes ("", or axes with blanks between), and a column
// for each that is asked for.
func (s *Study) table(cells []*Cell, axes string, columns ...string) (string, error) {
	var head, line strings.Builder
	head.WriteString("| |")
	line.WriteString("|---|")
	cols := make([]column, len(columns))
	for i, text := range columns {
		var err error
		if cols[i], err = parseColumn(text); err != nil {
			return "", err
		}
		head.WriteString(" " + cols[i].heading + " |")
		line.WriteString("--:|")
	}
	out := head.String() + "\n" + line.String() + "\n"
	for _, c := range cells {
		out += "| " + s.name(c, strings.Fields(axes)...) + " |"
		for i := range cols {
			v, err := s.of(c, &cols[i])
			if err != nil {
				return "", err
			}
			out += " " + show(v, cols[i].format) + " |"
		}
		out += "\n"
	}
	return out, nil
}

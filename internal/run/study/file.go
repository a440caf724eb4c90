// Package study reads a study's file, runs it, and collects its results. A cell is a choice of what is varied and of
// how machines fail; each cell with each seed is one run of this program, a process with a folder of its own.
//
// The file is checked as a whole before anything runs: cells that cannot run are reported first. What has been done is
// not done again; a run that failed is a result, and no trial; runs of two builds of the program are not mixed unless
// the user says so. Conduct is called once at a time for a folder of runs.
package study

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/perdure/perdure/internal/run/settings"
)

// Setting is a key of a job with its values: several of what may be given again.
type Setting struct {
	Key    string
	Values []string
}

// Choice is one value of what is varied: a setting, or several that go together.
type Choice struct {
	Label    string
	Settings []Setting
}

// Axis is something that is varied.
type Axis struct {
	Name    string
	Choices []Choice
}

// Plan is how machines fail, by name.
type Plan struct {
	Name string
	faultPlan
}

// Stop says when a cell has trials enough: when the interval of a figure is narrow, or there are as many.
type Stop struct {
	Figure string
	Within float64 // half of the 95% interval of its mean
	Seeds  int     // at most
}

// Kind is what the runs of a study are.
type Kind struct {
	Name    string   // kind: in the file; that of OfTrain may be left out
	Command []string // of this program, to which a run's flags are given
	Own     []string // flags of the command itself, which go before -- and what is trained; nil: all are of training
	Keys    []string // that a job may have: the workload, and train's flags
	Check   Check
}

// Check makes settings of flags of a kind's command, or says what is wrong with them. It runs nothing.
type Check func(args []string) (settings.Run, error)

// Names of kinds.
const (
	OfTrain  = "train"  // each run is a job
	OfLosses = "losses" // each run is an undisturbed twin of a job, and the failures of its forks, in memory
)

// File is a study as it is written down.
type File struct {
	Kind           Kind
	Name, Question string
	Job            []Setting
	Vary           []Axis
	Plans          []Plan
	Seeds          []uint64
	Stop           *Stop
	LeaveOut       bool // cells that no run can be; else they are refused
	Timeout        time.Duration
	Prices         string // a file's path; "": none
	Quick          bool
}

// Words that a file may have at its top, and under quick.
var (
	quickKeys = []string{"job", "vary", "failures", "seeds", "until", "timeout"}
	fileKeys  = append([]string{"name", "question", "kind", "impossible", "prices", "quick"}, quickKeys...)
)

// reader reads a file. known are the keys that a job may have.
type reader struct {
	File
	known []string
	quick settings.Node
}

// Read reads a study of one of some kinds, the first where it names none. With quick, what it says under quick counts.
func Read(path string, kinds []Kind, quick bool) (File, error) {
	v, err := settings.ReadDocument(path)
	if err != nil {
		return File{}, err
	}
	return parse(v, strings.TrimSuffix(filepath.Base(path), filepath.Ext(path)), kinds, quick)
}

func parse(v settings.Node, name string, kinds []Kind, quick bool) (File, error) {
	r := reader{File: File{Name: name, Quick: quick, Seeds: seedsUpTo(3), Timeout: time.Hour}}
	entries, err := v.Map(fileKeys...)
	if err != nil {
		return r.File, err
	}
	if err := r.takeKind(entries, kinds); err != nil {
		return r.File, err
	}
	hasQuick := false
	for _, e := range entries {
		hasQuick = hasQuick || e.Key == "quick"
		if err := r.take(e); err != nil {
			return r.File, err
		}
	}
	switch {
	case quick && !hasQuick:
		return r.File, v.Errorf("the study does not say what --quick changes; add quick: with fewer clocks, say")
	case hasQuick:
		full := r.File
		if err := r.takeQuick(); err != nil {
			return r.File, err // also when it is not used: it is read now, and not only when somebody wants it
		}
		if !quick {
			r.File = full
		}
	}
	if len(r.Plans) == 0 {
		r.Plans = []Plan{{Name: "none"}}
	}
	if !slices.ContainsFunc(entries, func(e settings.Entry) bool { return slices.Contains(quickKeys, e.Key) }) {
		return r.File, v.Errorf("the study does not say what runs; write job: {workload: mf}, for example")
	}
	if s := r.Stop; s != nil && s.Seeds < len(r.Seeds) {
		return r.File, v.Errorf("until.seeds is %d, and the study begins with %d seeds; it must be as many at least",
			s.Seeds, len(r.Seeds))
	}
	return r.File, nil
}

// takeKind takes the kind of a study over, which says how all else is read.
func (r *reader) takeKind(entries []settings.Entry, kinds []Kind) error {
	r.Kind = kinds[0]
	for _, e := range entries {
		if e.Key != "kind" {
			continue
		}
		text, err := e.Value.Text()
		if err != nil {
			return err
		}
		var names []string
		at := -1
		for i, k := range kinds {
			if names = append(names, k.Name); k.Name == text {
				at = i
			}
		}
		if at < 0 {
			return e.Value.Errorf("kind is %s; write %s", text, strings.Join(names, " or "))
		}
		r.Kind = kinds[at]
	}
	r.known = slices.Concat(r.Kind.Own, r.Kind.Keys)
	return nil
}

func (r *reader) takeQuick() error {
	entries, err := r.quick.Map(quickKeys...)
	if err != nil {
		return err
	}
	r.Job, r.Vary, r.Plans = slices.Clone(r.Job), slices.Clone(r.Vary), slices.Clone(r.Plans)
	for _, e := range entries {
		if err := r.take(e); err != nil {
			return err
		}
	}
	return nil
}

// take takes a key of the file over, or of what is under quick: there it replaces what it names.
func (r *reader) take(e settings.Entry) (err error) {
	v := e.Value
	if r.Kind.Name == OfLosses && (e.Key == "failures" || e.Key == "until" || e.Key == "prices") {
		return v.Errorf("a study of losses has no %s: its trials draw their failures, and take place in memory; write "+
			"trials and mean-clocks in job", e.Key)
	}
	switch e.Key {
	case "name":
		r.Name, err = v.Text()
		if err == nil && folderName(r.Name) != r.Name {
			err = v.Errorf("name is %s; it names a folder: write it in letters, digits, - and _", r.Name)
		}
	case "question":
		r.Question, err = v.Text()
	case "job":
		err = r.takeJob(v)
	case "vary":
		err = r.takeVary(v)
	case "failures":
		err = r.takePlans(v)
	case "seeds":
		r.Seeds, err = takeSeeds(v)
	case "until":
		r.Stop, err = takeStop(v)
	case "timeout":
		r.Timeout, err = duration(v)
	case "impossible":
		r.LeaveOut, err = oneOf(v, "leave-out", "refuse")
	case "prices":
		r.Prices, err = beside(v)
	case "quick":
		r.quick = v
	}
	return err
}

func (r *reader) takeJob(v settings.Node) error {
	settings, err := r.settings(v)
	for _, s := range settings {
		r.Job = put(r.Job, s, func(a, b Setting) bool { return a.Key == b.Key })
	}
	return err
}

// settings reads keys of a job.
func (r *reader) settings(v settings.Node) (all []Setting, err error) {
	entries, err := v.Map()
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		switch e.Key {
		case "seed":
			return nil, e.Value.Errorf("the seed is the study's; write seeds: 3, or a list, beside job")
		case "fault":
			return nil, e.Value.Errorf("faults are the study's; write failures, with a name for each plan, beside job")
		}
		if err := e.Known(r.known...); err != nil {
			return nil, err
		}
		values, err := e.Value.Texts()
		if err != nil {
			return nil, err
		}
		all = append(all, Setting{e.Key, values})
	}
	return all, nil
}

func (r *reader) takeVary(v settings.Node) error {
	entries, err := v.Map()
	if err != nil {
		return err
	}
	for _, e := range entries {
		axis := Axis{Name: e.Key}
		items, names, err := itemsOf(e.Value)
		if err != nil {
			return err
		}
		for i, item := range items {
			c, err := r.choice(e, item)
			if err != nil {
				return err
			}
			if names != nil {
				c.Label = names[i]
			}
			if slices.ContainsFunc(axis.Choices, func(o Choice) bool { return o.Label == c.Label }) {
				return item.Errorf("%s is in the list of %s twice", c.Label, e.Key)
			}
			axis.Choices = append(axis.Choices, c)
		}
		if len(axis.Choices) == 0 {
			return e.Value.Errorf("the list of %s is empty; leave it out, or say what is tried", e.Key)
		}
		r.Vary = put(r.Vary, axis, func(a, b Axis) bool { return a.Name == b.Name })
	}
	return nil
}

// itemsOf are the values of what is varied: a list, or a map that has a name for each map of keys that go together.
func itemsOf(v settings.Node) (items []settings.Node, names []string, err error) {
	if !v.IsMap() {
		items, err = v.List()
		return items, nil, err
	}
	entries, err := v.Map()
	for _, e := range entries {
		if _, err := e.Value.Map(); err != nil {
			return nil, nil, err
		}
		items, names = append(items, e.Value), append(names, e.Key)
	}
	return items, names, err
}

// choice reads a value of what is varied: a value of the key, or a map of keys that go together.
func (r *reader) choice(of settings.Entry, v settings.Node) (c Choice, err error) {
	if v.IsMap() {
		if c.Settings, err = r.settings(v); err != nil {
			return c, err
		}
		var parts []string
		for _, s := range c.Settings {
			text := strings.Join(s.Values, "+")
			if s.Key != of.Key {
				text = s.Key + "=" + text
			}
			parts = append(parts, text)
		}
		c.Label = strings.Join(parts, " ")
		return c, nil
	}
	if err := of.Known(r.known...); err != nil {
		return c, err
	}
	if of.Key == "seed" || of.Key == "fault" {
		return c, of.Value.Errorf("%s is not varied: write seeds, or failures, beside vary", of.Key)
	}
	c.Label, err = v.Text()
	c.Settings = []Setting{{of.Key, []string{c.Label}}}
	return c, err
}

// put replaces what is the same, or puts it behind the others.
func put[T any](all []T, one T, same func(a, b T) bool) []T {
	if i := slices.IndexFunc(all, func(t T) bool { return same(t, one) }); i >= 0 {
		all[i] = one
		return all
	}
	return append(all, one)
}

// mostSeeds bounds the seeds of a study, far beyond use.
const mostSeeds = 1000

func seedsUpTo(n int64) (seeds []uint64) {
	for i := range n {
		seeds = append(seeds, uint64(i+1))
	}
	return seeds
}

// takeSeeds reads how many seeds there are, or which.
func takeSeeds(v settings.Node) (seeds []uint64, err error) {
	if !v.IsList() {
		n, err := v.Int()
		if err == nil && (n < 1 || n > mostSeeds) {
			err = v.Errorf("seeds is %d; choose 1 to %d, or a list of them", n, mostSeeds)
		}
		if err != nil {
			return nil, err
		}
		return seedsUpTo(n), nil
	}
	items, err := v.List()
	if err != nil {
		return nil, err
	}
	for _, item := range items {
		n, err := item.Int()
		switch {
		case err != nil:
			return nil, err
		case n < 0 || slices.Contains(seeds, uint64(n)):
			return nil, item.Errorf("seed %d is below 0, or stands twice", n)
		}
		seeds = append(seeds, uint64(n))
	}
	if len(seeds) == 0 || len(seeds) > mostSeeds {
		return nil, v.Errorf("there are %d seeds; choose 1 to %d", len(seeds), mostSeeds)
	}
	return seeds, nil
}

// takeStop reads when there are trials enough.
func takeStop(v settings.Node) (s *Stop, err error) {
	s = &Stop{}
	entries, err := v.Map("figure", "within", "seeds")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		switch e.Key {
		case "figure":
			if s.Figure, err = e.Value.Text(); err == nil && !slices.Contains(Figures, s.Figure) {
				err = e.Value.Errorf("there is no figure %s; choose %s", s.Figure, strings.Join(Figures, ", "))
			}
		case "within":
			if s.Within, err = e.Value.Float(); err == nil && s.Within <= 0 {
				err = e.Value.Errorf("within is %v; write a number above 0, half of the interval", s.Within)
			}
		case "seeds":
			var n int64
			if n, err = e.Value.Int(); err == nil && (n < 1 || n > mostSeeds) {
				err = e.Value.Errorf("seeds is %d; choose 1 to %d", n, mostSeeds)
			}
			s.Seeds = int(n)
		}
		if err != nil {
			return nil, err
		}
	}
	if s.Figure == "" || s.Within == 0 || s.Seeds == 0 {
		return nil, v.Errorf("until needs figure, within and seeds, for example {figure: accuracy, within: 0.01, " +
			"seeds: 10}")
	}
	return s, nil
}

func oneOf(v settings.Node, yes, no string) (bool, error) {
	text, err := v.Text()
	if err == nil && text != yes && text != no {
		err = v.Errorf("%s is %s; write %s or %s", v.Path(), text, yes, no)
	}
	return text == yes, err
}

func duration(v settings.Node) (time.Duration, error) {
	text, err := v.Text()
	if err != nil {
		return 0, err
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, v.Errorf("%s is %s; write a time of 0 or more, for example 30s, 5m or 1h", v.Path(), text)
	}
	return d, nil
}

// beside reads the path of a file, from the folder that the study is in.
func beside(v settings.Node) (string, error) {
	path, err := v.Text()
	if err != nil || filepath.IsAbs(path) {
		return path, err
	}
	if rest, home := strings.CutPrefix(path, "~/"); home {
		if dir, err := os.UserHomeDir(); err == nil {
			return filepath.Join(dir, rest), nil
		}
	}
	return filepath.Join(v.Folder(), path), nil
}

// folderName makes of a text what a folder may be named.
func folderName(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', strings.ContainsRune("-_.=", r):
			return r
		}
		return '-'
	}, text)
}

// seedName is the folder of a seed's run.
func seedName(seed uint64) string { return "seed-" + strconv.FormatUint(seed, 10) }

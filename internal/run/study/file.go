// Package study reads a study's file, runs it, and collects its results. A cell is a choice of what is varied and of
// how machines fail; each cell with each seed is one run of this program, a process with a folder of its own.
//
// The file is checked as a whole before anything runs: cells that cannot run are reported first. What has been done is
// not done again; a run that failed is a result, and no trial; runs of two builds of the program are not mixed unless
// the user says so. Conduct is called once at a time for a folder of runs.
package study

import (
	"maps"
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
	LeaveOut       bool // cells that no run can be; else they are refused
	Timeout        time.Duration
	Prices         string // a file's path; "": none
	Quick          bool
}

// reader reads a file. known are the keys that a job may have.
type reader struct {
	File
	known []string
	quick *settings.Node
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
	if err := r.takeKind(v, kinds); err != nil {
		return r.File, err
	}
	changed := r.quickFields() // what quick may change
	all := fields{
		"name": into(&r.Name, folder), "question": into(&r.Question, settings.Node.Text),
		"kind":       func(settings.Node) error { return nil }, // is known already
		"impossible": into(&r.LeaveOut, oneOf("leave-out", "refuse")),
		"quick":      func(v settings.Node) error { r.quick = &v; return nil },
	}
	if r.Kind.Name != OfLosses { // which measures no time
		all["prices"] = into(&r.Prices, beside)
	}
	maps.Copy(all, changed)
	asked, err := all.read(v)
	if err != nil {
		return r.File, err
	}
	if !slices.ContainsFunc(asked, func(key string) bool { return changed[key] != nil || key == "quick" }) {
		return r.File, v.Errorf("the study does not say what runs; write job: {workload: mf}, for example")
	}
	switch {
	case r.quick != nil:
		full := r.File
		r.Job, r.Vary, r.Plans = slices.Clone(r.Job), slices.Clone(r.Vary), slices.Clone(r.Plans)
		if _, err := changed.read(*r.quick); err != nil {
			return r.File, err // also when it is not used: it is read now, and not only when somebody wants it
		}
		if !quick {
			r.File = full
		}
	case quick:
		return r.File, v.Errorf("the study does not say what --quick changes; add quick: with fewer clocks, say")
	}
	if len(r.Plans) == 0 {
		r.Plans = []Plan{{Name: "none"}}
	}
	return r.File, nil
}

// takeKind takes the kind of a study over, which says how all else is read.
func (r *reader) takeKind(v settings.Node, kinds []Kind) error {
	r.Kind = kinds[0]
	entries, err := v.Map()
	for _, e := range entries {
		if e.Key != "kind" {
			continue
		}
		text, err := e.Value.Text()
		if err != nil {
			return err
		}
		var names []string
		for _, k := range kinds {
			names = append(names, k.Name)
		}
		at := slices.Index(names, text)
		if at < 0 {
			return e.Value.Errorf("kind is %s; write %s", text, strings.Join(names, " or "))
		}
		r.Kind = kinds[at]
	}
	r.known = slices.Concat(r.Kind.Own, r.Kind.Keys)
	return err
}

// quickFields are the keys that a file may also have under quick: there each replaces what it names. Trials of a study
// of losses draw their failures themselves.
func (r *reader) quickFields() fields {
	f := fields{
		"job": r.takeJob, "vary": r.takeVary, "failures": r.takePlans, "seeds": into(&r.Seeds, takeSeeds),
		"timeout": into(&r.Timeout, duration),
	}
	if r.Kind.Name == OfLosses {
		delete(f, "failures")
	}
	return f
}

// fields read the values of a map by their keys.
type fields map[string]func(settings.Node) error

// read reads a map that may have these keys, and returns those that it has.
func (f fields) read(v settings.Node) (keys []string, err error) {
	entries, err := v.Map(slices.Sorted(maps.Keys(f))...)
	for _, e := range entries {
		if err := f[e.Key](e.Value); err != nil {
			return keys, err
		}
		keys = append(keys, e.Key)
	}
	return keys, err
}

// into reads a value into a variable.
func into[T any](to *T, read func(settings.Node) (T, error)) func(settings.Node) error {
	return func(v settings.Node) (err error) {
		*to, err = read(v)
		return err
	}
}

func (r *reader) takeJob(v settings.Node) error {
	settings, err := r.settings(v)
	for _, s := range settings {
		r.Job = replace(r.Job, s, func(a, b Setting) bool { return a.Key == b.Key })
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
		r.Vary = replace(r.Vary, axis, func(a, b Axis) bool { return a.Name == b.Name })
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

// replace replaces what is the same, or puts it behind the others.
func replace[T any](all []T, one T, same func(a, b T) bool) []T {
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

// folder reads a name of a folder.
func folder(v settings.Node) (string, error) {
	name, err := v.Text()
	if err == nil && folderName(name) != name {
		err = v.Errorf("name is %s; it names a folder: write it in letters, digits, - and _", name)
	}
	return name, err
}

// oneOf reads yes as true, and no as false.
func oneOf(yes, no string) func(settings.Node) (bool, error) {
	return func(v settings.Node) (bool, error) {
		text, err := v.Text()
		if err == nil && text != yes && text != no {
			err = v.Errorf("%s is %s; write %s or %s", v.Path(), text, yes, no)
		}
		return text == yes, err
	}
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

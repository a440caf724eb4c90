// Package study reads a study's file, executes its runs, and collects the results. A cell is a combination of the
// varied settings and a failure plan. Each cell with each seed is one run of this program, in a process and a directory
// of its own.
//
// The file is checked as a whole before anything runs, and cells that cannot run are reported first. Finished runs are
// not repeated. A failed run is a result, but not a trial. Runs of different builds of the program are mixed only if
// the user requests it. Only one call of Execute may use a directory at a time.
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

// Setting is a key of a job with its values. Only keys that may be repeated have several.
type Setting struct {
	Key    string
	Values []string
}

// Choice is one value of an axis: a setting, or several that belong together.
type Choice struct {
	Label    string
	Settings []Setting
}

// Axis is a setting that varies.
type Axis struct {
	Name    string
	Choices []Choice
}

// Plan is a named failure plan.
type Plan struct {
	Name string
	faultPlan
}

// Kind defines what the runs of a study are.
type Kind struct {
	Name    string   // value of kind: in the file; KindTrain is the default
	Command []string // subcommand of this program, followed by a run's flags
	Own     []string // flags of the command itself, before -- and the flags of training; nil: all flags are of training
	Keys    []string // allowed in a job: the workload, and train's flags
	Check   Check
}

// Check converts arguments of a kind's command to settings, or returns an error. It does not run anything.
type Check func(args []string) (settings.Run, error)

// Names of kinds.
const (
	KindTrain  = "train"  // each run is a job
	KindLosses = "losses" // each run is an undisturbed twin of a job and its forks with failures, in memory
)

// File is the content of a study's file.
type File struct {
	Kind           Kind
	Name, Question string
	Job            []Setting
	Vary           []Axis
	Plans          []Plan
	Seeds          []uint64
	LeaveOut       bool // skip cells that cannot run; otherwise they are errors
	Timeout        time.Duration
	Prices         string // path of the price file, or ""
	Quick          bool
}

// reader reads a file. known lists the keys that a job may have.
type reader struct {
	File
	known []string
	quick *settings.Node
}

// Read reads a study. Its kind is the first of kinds by default. With quick, the settings under quick apply.
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
	changed := r.quickFields() // the fields that quick may change
	all := fields{
		"name": into(&r.Name, readDirName), "question": into(&r.Question, settings.Node.Text),
		"kind":       func(settings.Node) error { return nil }, // takeKind has read it
		"impossible": into(&r.LeaveOut, oneOf("leave-out", "refuse")),
		"quick":      func(v settings.Node) error { r.quick = &v; return nil },
	}
	if r.Kind.Name != KindLosses { // studies of losses measure no time
		all["prices"] = into(&r.Prices, relativeFile)
	}
	maps.Copy(all, changed)
	asked, err := all.read(v)
	if err != nil {
		return r.File, err
	}
	if !slices.ContainsFunc(asked, func(key string) bool { return changed[key] != nil || key == "quick" }) {
		return r.File, v.Errorf("the study has nothing to run; add, for example, job: {workload: mf}")
	}
	switch {
	case r.quick != nil:
		full := r.File
		r.Job, r.Vary, r.Plans = slices.Clone(r.Job), slices.Clone(r.Vary), slices.Clone(r.Plans)
		if _, err := changed.read(*r.quick); err != nil {
			return r.File, err // also checked when quick is not used, to find mistakes early
		}
		if !quick {
			r.File = full
		}
	case quick:
		return r.File, v.Errorf("the study has no section for --quick; add quick:, for example with fewer clocks")
	}
	if len(r.Plans) == 0 {
		r.Plans = []Plan{{Name: "none"}}
	}
	return r.File, nil
}

// takeKind reads the kind of a study, which determines the other keys.
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
			return e.Value.Errorf("kind is %s; choose %s", text, strings.Join(names, " or "))
		}
		r.Kind = kinds[at]
	}
	r.known = slices.Concat(r.Kind.Own, r.Kind.Keys)
	return err
}

// quickFields returns the keys that a file may also have under quick, where they override those at the top. Studies of
// losses have no failures, because their trials draw them.
func (r *reader) quickFields() fields {
	f := fields{
		"job": r.takeJob, "vary": r.takeVary, "failures": r.takePlans, "seeds": into(&r.Seeds, takeSeeds),
		"timeout": into(&r.Timeout, duration),
	}
	if r.Kind.Name == KindLosses {
		delete(f, "failures")
	}
	return f
}

// fields maps the keys of a map to functions that read their values.
type fields map[string]func(settings.Node) error

// read reads a map with these keys, and returns the keys that are present.
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

// into returns a function that reads a value into a variable.
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
			return nil, e.Value.Errorf("a job cannot set the seed; set seeds: 3, or a list, next to job")
		case "fault":
			return nil, e.Value.Errorf("a job cannot set faults; define failures, with a name for each plan, next " +
				"to job")
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
				return item.Errorf("%s appears twice in the list of %s", c.Label, e.Key)
			}
			axis.Choices = append(axis.Choices, c)
		}
		if len(axis.Choices) == 0 {
			return e.Value.Errorf("the list of %s is empty; remove it or add values", e.Key)
		}
		r.Vary = replace(r.Vary, axis, func(a, b Axis) bool { return a.Name == b.Name })
	}
	return nil
}

// itemsOf returns the values of an axis: the items of a list, or named groups of keys from a map.
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

// choice reads a value of an axis: a value of its key, or a map of keys that belong together.
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
		return c, of.Value.Errorf("%s cannot be varied: use seeds or failures, next to vary", of.Key)
	}
	c.Label, err = v.Text()
	c.Settings = []Setting{{of.Key, []string{c.Label}}}
	return c, err
}

// replace replaces the element for which same is true, or appends one.
func replace[T any](all []T, one T, same func(a, b T) bool) []T {
	if i := slices.IndexFunc(all, func(t T) bool { return same(t, one) }); i >= 0 {
		all[i] = one
		return all
	}
	return append(all, one)
}

// maxSeeds limits the seeds of a study. It is far above any sensible number.
const maxSeeds = 1000

func seedsUpTo(n int64) (seeds []uint64) {
	for i := range n {
		seeds = append(seeds, uint64(i+1))
	}
	return seeds
}

// takeSeeds reads the number of seeds, or a list of them.
func takeSeeds(v settings.Node) (seeds []uint64, err error) {
	if !v.IsList() {
		n, err := v.Int()
		if err == nil && (n < 1 || n > maxSeeds) {
			err = v.Errorf("seeds is %d; choose 1 to %d, or write a list of seeds", n, maxSeeds)
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
			return nil, item.Errorf("seed %d is negative or appears twice", n)
		}
		seeds = append(seeds, uint64(n))
	}
	if len(seeds) == 0 || len(seeds) > maxSeeds {
		return nil, v.Errorf("there are %d seeds; choose 1 to %d", len(seeds), maxSeeds)
	}
	return seeds, nil
}

// readDirName reads the name of a directory.
func readDirName(v settings.Node) (string, error) {
	name, err := v.Text()
	if err == nil && folderName(name) != name {
		err = v.Errorf("name is %s; it must be a valid directory name: use letters, digits, - and _", name)
	}
	return name, err
}

// oneOf reads yes as true and no as false.
func oneOf(yes, no string) func(settings.Node) (bool, error) {
	return func(v settings.Node) (bool, error) {
		text, err := v.Text()
		if err == nil && text != yes && text != no {
			err = v.Errorf("%s is %s; choose %s or %s", v.Path(), text, yes, no)
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
		return 0, v.Errorf("%s is %s; it must be a time of 0 or more, for example 30s, 5m or 1h", v.Path(), text)
	}
	return d, nil
}

// relativeFile reads the path of a file, relative to the study's directory.
func relativeFile(v settings.Node) (string, error) {
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

// folderName replaces characters that a directory name should not contain.
func folderName(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', strings.ContainsRune("-_.=", r):
			return r
		}
		return '-'
	}, text)
}

// seedName returns the name of the directory for a seed's run.
func seedName(seed uint64) string { return "seed-" + strconv.FormatUint(seed, 10) }

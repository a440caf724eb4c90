package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/plain"
	"github.com/perdure/perdure/internal/run/settings"
)

// jobFile is a job that somebody has written into a file: what -f names. Its keys are the flags
// of train or up without dashes, and for train the workload. It becomes a command line: its keys
// as flags, and then what stands on the command line, which wins.
type jobFile struct {
	command string // train or up
	args    []string
	line    commandLine
	entries []settings.Entry
	model   *kong.Application
}

// notInFiles are flags that a job's file does not have: they are about one run of it.
var notInFiles = []string{"file", "resume", "fork", "from", "quiet", "json", "help", "help-all", "version"}

// workloadKey names the workload, which is no flag.
const workloadKey = "workload"

// commandLine is what is found on a command line before it is parsed.
type commandLine struct {
	files    []string        // job files that it names; at most one is allowed
	given    map[string]bool // flags
	workload string
	at       int // where the workload stands; -1: nowhere
}

// scan looks through the arguments of train or up.
func scan(command *kong.Node, args []string) commandLine {
	l := commandLine{given: map[string]bool{}, at: -1}
	for i := 1; i < len(args); i++ {
		arg := args[i]
		if rest, short := strings.CutPrefix(arg, "-f"); short {
			if rest == "" && i+1 < len(args) {
				i++
				rest = args[i]
			}
			l.files = append(l.files, strings.TrimPrefix(rest, "="))
			continue
		}
		if !strings.HasPrefix(arg, "--") {
			if l.at < 0 && slices.Contains(childNames(command), arg) {
				l.workload, l.at = arg, i
			}
			continue
		}
		name, value, assigned := strings.Cut(arg[2:], "=")
		l.given[name] = true
		if f := flagBelow(command, name); !assigned && f != nil && !f.IsBool() && i+1 < len(args) {
			i++
			value = args[i]
		}
		if name == "file" {
			l.files = append(l.files, value)
		}
	}
	return l
}

// flagBelow is the flag of that name of a command or of one below it; nil: there is none.
func flagBelow(n *kong.Node, name string) *kong.Flag {
	for _, group := range n.AllFlags(false) {
		for _, f := range group {
			if f.Name == name {
				return f
			}
		}
	}
	for _, c := range n.Children {
		if f := flagBelow(c, name); f != nil {
			return f
		}
	}
	return nil
}

// commandOf is the command of that name below n; nil: there is none.
func commandOf(n *kong.Node, name string) *kong.Node {
	for _, c := range n.Children {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// openJobFile reads the file that a command line of train or up names; nil: it names none. It refuses arguments without
// a value, of any command.
func openJobFile(model *kong.Application, args []string) (*jobFile, error) {
	if err := settings.RefuseEmpty(args); err != nil || len(args) == 0 || args[0] != "train" && args[0] != "up" {
		return nil, err
	}
	j := &jobFile{command: args[0], args: args, model: model}
	j.line = scan(commandOf(model.Node, j.command), args)
	if n := len(j.line.files); n == 0 {
		return nil, nil
	} else if n > 1 {
		return nil, fmt.Errorf("%w: --file is given %d times; a job is written in one file", perdure.ErrUsage, n)
	}
	doc, err := settings.ReadDocument(j.line.files[0])
	if err != nil {
		return nil, err
	}
	j.entries, err = doc.Map()
	return j, err
}

// commandLine is the command line that file and command line make together, without the key
// that is left out.
func (j *jobFile) commandLine(without string) ([]string, error) {
	line, rest := []string{j.command}, slices.Clone(j.args[1:])
	node := commandOf(j.model.Node, j.command)
	if work := j.line.workload; work != "" {
		line, rest = append(line, work), slices.Delete(rest, j.line.at-1, j.line.at)
		node = commandOf(node, work)
	} else if work, err := j.workload(node); err != nil {
		return nil, err
	} else if work != "" && without != workloadKey && !j.again() {
		line = append(line, work)
		node = commandOf(node, work)
	}
	flags, known := fileFlags(node)
	for _, e := range j.entries {
		if e.Key == without || e.Key == workloadKey && j.command == "train" {
			continue
		}
		if err := j.known(e, known); err != nil {
			return nil, err
		}
		args, err := fileArgs(flags[e.Key], e.Value)
		if err != nil {
			return nil, err
		}
		if !j.line.given[e.Key] {
			line = append(line, args...)
		}
	}
	return append(line, rest...), nil
}

// again reports whether the command line goes on from an earlier run, whose workload holds.
func (j *jobFile) again() bool {
	return j.line.given["resume"] || j.line.given["fork"] || j.line.given["from"]
}

// workload is the one that the file names; "": it names none.
func (j *jobFile) workload(train *kong.Node) (string, error) {
	i := slices.IndexFunc(j.entries, func(e settings.Entry) bool { return e.Key == workloadKey })
	if i < 0 || j.command != "train" {
		return "", nil
	}
	v := j.entries[i].Value
	name, err := v.Text()
	if names := childNames(train); err == nil && !slices.Contains(names, name) {
		return "", v.Errorf("unknown workload %q; choose %s%s", name, strings.Join(names, ", "),
			settings.Suggest(name, names))
	}
	return name, err
}

// known refuses a key that is no flag of the command.
func (j *jobFile) known(e settings.Entry, known []string) error {
	if owners := ownersOf(commandOf(j.model.Node, j.command), e.Key); owners != "" && !slices.Contains(known, e.Key) {
		return e.Value.Errorf("%s is a key of jobs of %s alone", e.Key, owners)
	}
	if slices.Contains(notInFiles, e.Key) {
		return e.Value.Errorf("%s is for the command line, not for a job's file: write --%s there", e.Key, e.Key)
	}
	return e.Known(known...)
}

// fileFlags are the flags of a command that are keys of a job's file.
func fileFlags(n *kong.Node) (flags map[string]*kong.Flag, names []string) {
	flags = map[string]*kong.Flag{}
	u := usage{node: n}
	for _, f := range u.flags() {
		if f.Group != nil && !slices.Contains(notInFiles, f.Name) {
			flags[f.Name], names = f, append(names, f.Name)
		}
	}
	return flags, names
}

// Kinds of values that keys have.
const (
	wholeNumber = "integer"
	anyNumber   = "number"
	yesOrNo     = "boolean"
	oneText     = "string"
	manyTexts   = "array"
)

// kindOf is what a flag's value is.
func kindOf(f *kong.Flag) string {
	t := f.Target.Type()
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Int, reflect.Int64, reflect.Uint64:
		return wholeNumber
	case reflect.Float64:
		return anyNumber
	case reflect.Bool:
		return yesOrNo
	case reflect.Slice:
		return manyTexts
	}
	return oneText
}

// fileArgs are the flags that a key and its value mean.
func fileArgs(f *kong.Flag, v settings.Node) (args []string, err error) {
	var texts []string
	switch kindOf(f) {
	case wholeNumber:
		var n int64
		if n, err = v.Int(); err == nil && n < 0 && f.Target.Kind() == reflect.Uint64 {
			err = v.Errorf("%s is %d; write a whole number from 0", f.Name, n)
		}
		texts = []string{fmt.Sprint(n)}
	case anyNumber:
		_, err = v.Float()
		if err == nil {
			texts, err = v.Texts()
		}
	case yesOrNo:
		var yes bool
		yes, err = v.Bool()
		texts = []string{fmt.Sprint(yes)}
	case manyTexts:
		texts, err = v.Texts()
	default:
		var text string
		text, err = v.Text()
		texts = []string{text}
	}
	for _, text := range texts {
		if text == "" && err == nil {
			err = v.Errorf("%s is empty; write its value, or leave the key out", f.Name)
		}
		args = append(args, "--"+f.Name+"="+text)
	}
	return args, err
}

// blame adds the place in the file to an error that a key of it has brought about: one without
// which the command line would have another, or none.
func (j *jobFile) blame(err error) error {
	if !errors.Is(err, perdure.ErrUsage) || j.wrong("") != plain.Text(err) {
		return err
	}
	var guilty *settings.Entry
	for i, e := range j.entries {
		if j.line.given[e.Key] || j.wrong(e.Key) == plain.Text(err) {
			continue
		}
		if named := strings.Contains(err.Error(), "--"+e.Key+" "); guilty == nil || named {
			guilty = &j.entries[i]
			if named {
				break
			}
		}
	}
	if guilty == nil {
		return err
	}
	return guilty.Value.Errorf("%s", plain.Text(err))
}

// wrong is what is wrong with the settings that the command line has without that key of the
// file; "": nothing.
func (j *jobFile) wrong(without string) string {
	args, err := j.commandLine(without)
	if err != nil {
		return plain.Text(err)
	}
	var c cli
	parser := newParser(context.Background(), &c)
	parser.Stdout, parser.Stderr = io.Discard, io.Discard
	k, err := parser.Parse(args)
	if err == nil && j.command == "train" {
		_, err = c.Train.settings(k)
	} else if err == nil {
		_, err = c.Up.settings(k)
	}
	if err != nil {
		return plain.Text(err)
	}
	return ""
}

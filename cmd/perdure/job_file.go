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
	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/settings"
)

// jobFile is a job file, which -f names. Its keys are the flags of train or up without dashes and, for train, the
// workload. It is converted to a command line: first its keys as flags, then the arguments of the actual command line,
// which override them.
type jobFile struct {
	command string // train or up
	args    []string
	line    commandLine
	entries []settings.Entry
	model   *kong.Application
}

// excludedFromFiles are flags that are not allowed in a job file: they concern a single run of it.
var excludedFromFiles = []string{
	"file", "resume", "fork", "from", "quiet", "json", "dashboard", "help", "help-all",
	"version",
}

// workloadKey is the key of the workload, which is not a flag.
const workloadKey = "workload"

// commandLine holds what scan found on a command line before it is parsed.
type commandLine struct {
	files    []string        // job files named; at most one is allowed
	given    map[string]bool // flags
	workload string
	at       int // index of the workload, or -1
}

// scan searches the arguments of train or up for job files, flags and the workload.
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

// flagBelow returns the flag of that name of a command or its subcommands, or nil.
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

// commandOf returns the subcommand of n with that name, or nil.
func commandOf(n *kong.Node, name string) *kong.Node {
	for _, c := range n.Children {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// openJobFile reads the job file named on a command line of train or up. It returns nil if there is none. For all
// commands it rejects flags with an empty value.
func openJobFile(model *kong.Application, args []string) (*jobFile, error) {
	if err := settings.RejectEmpty(args); err != nil || len(args) == 0 || args[0] != "train" && args[0] != "up" {
		return nil, err
	}
	j := &jobFile{command: args[0], args: args, model: model}
	j.line = scan(commandOf(model.Node, j.command), args)
	if n := len(j.line.files); n == 0 {
		return nil, nil
	} else if n > 1 {
		return nil, perdure.Usagef("--file is given %d times; give it only once", n)
	}
	doc, err := settings.ReadDocument(j.line.files[0])
	if err != nil {
		return nil, err
	}
	j.entries, err = doc.Map()
	return j, err
}

// commandLine merges the file and the command line into one command line. It omits the key without.
func (j *jobFile) commandLine(without string) ([]string, error) {
	line, rest := []string{j.command}, slices.Clone(j.args[1:])
	node := commandOf(j.model.Node, j.command)
	if work := j.line.workload; work != "" {
		line, rest = append(line, work), slices.Delete(rest, j.line.at-1, j.line.at)
		node = commandOf(node, work)
	} else if work, err := j.workload(node); err != nil {
		return nil, err
	} else if work != "" && without != workloadKey && !j.continuesRun() {
		line = append(line, work)
		node = commandOf(node, work)
	}
	flags, known := fileFlags(node)
	for _, e := range j.entries {
		if e.Key == without || e.Key == workloadKey && j.command == "train" {
			continue
		}
		if err := j.checkKey(e, known); err != nil {
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

// continuesRun reports whether the command line continues or repeats an earlier run, whose workload applies.
func (j *jobFile) continuesRun() bool {
	return j.line.given["resume"] || j.line.given["fork"] || j.line.given["from"]
}

// workload returns the workload that the file names, or "".
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

// checkKey returns an error if the key is not a flag of the command.
func (j *jobFile) checkKey(e settings.Entry, known []string) error {
	if owners := ownersOf(commandOf(j.model.Node, j.command), e.Key); owners != "" && !slices.Contains(known, e.Key) {
		return e.Value.Errorf("%s is only valid in job files for %s", e.Key, owners)
	}
	if slices.Contains(excludedFromFiles, e.Key) {
		return e.Value.Errorf("%s is not allowed in a job file; use --%s on the command line", e.Key, e.Key)
	}
	return e.Known(known...)
}

// fileFlags returns the flags of a command that are keys of a job file.
func fileFlags(n *kong.Node) (flags map[string]*kong.Flag, names []string) {
	flags = map[string]*kong.Flag{}
	u := usage{node: n}
	for _, f := range u.flags() {
		if f.Group != nil && !slices.Contains(excludedFromFiles, f.Name) {
			flags[f.Name], names = f, append(names, f.Name)
		}
	}
	return flags, names
}

// JSON types of keys.
const (
	jsonInteger = "integer"
	jsonNumber  = "number"
	jsonBoolean = "boolean"
	jsonString  = "string"
	jsonArray   = "array"
)

// kindOf returns the JSON type of a flag's value.
func kindOf(f *kong.Flag) string {
	t := f.Target.Type()
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Int, reflect.Int64, reflect.Uint64:
		return jsonInteger
	case reflect.Float64:
		return jsonNumber
	case reflect.Bool:
		return jsonBoolean
	case reflect.Slice:
		return jsonArray
	}
	return jsonString
}

// fileArgs converts a key's value to arguments of the command line.
func fileArgs(f *kong.Flag, v settings.Node) (args []string, err error) {
	var texts []string
	switch kindOf(f) {
	case jsonInteger:
		var n int64
		if n, err = v.Int(); err == nil && n < 0 && f.Target.Kind() == reflect.Uint64 {
			err = v.Errorf("%s is %d; it must not be negative", f.Name, n)
		}
		texts = []string{fmt.Sprint(n)}
	case jsonNumber:
		_, err = v.Float()
		if err == nil {
			texts, err = v.Texts()
		}
	case jsonBoolean:
		var yes bool
		yes, err = v.Bool()
		texts = []string{fmt.Sprint(yes)}
	case jsonArray:
		texts, err = v.Texts()
	default:
		var text string
		text, err = v.Text()
		texts = []string{text}
	}
	for _, text := range texts {
		if text == "" && err == nil {
			err = v.Errorf("%s is empty; set a value or remove the key", f.Name)
		}
		args = append(args, "--"+f.Name+"="+text)
	}
	return args, err
}

// blame adds the position in the file to an error that one of its keys causes. A key is the cause if the command line
// without it has a different error, or none.
func (j *jobFile) blame(err error) error {
	if !errors.Is(err, perdure.ErrUsage) || j.errorWithout("") != humanize.ErrorText(err) {
		return err
	}
	var guilty *settings.Entry
	for i, e := range j.entries {
		if j.line.given[e.Key] || j.errorWithout(e.Key) == humanize.ErrorText(err) {
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
	return guilty.Value.Errorf("%s", humanize.ErrorText(err))
}

// errorWithout returns the error that the settings have without that key of the file, or "".
func (j *jobFile) errorWithout(without string) string {
	args, err := j.commandLine(without)
	if err != nil {
		return humanize.ErrorText(err)
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
		return humanize.ErrorText(err)
	}
	return ""
}

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/settings"
)

// initCmd writes an example job file.
type initCmd struct {
	File   string `arg:"" optional:"" help:"The file to write (default job.yaml)." type:"path"`
	Schema bool   `help:"Print the JSON Schema of job files instead, for editors and programs."`
}

func (c *initCmd) Run(k *kong.Context) error {
	if c.Schema {
		if c.File != "" {
			return perdure.Usagef("--schema prints to standard output; remove %s and redirect the output", c.File)
		}
		return humanize.JSON(stdout, schemaOf(k.Model.Node))
	}
	name := c.File
	if name == "" {
		name = "job.yaml"
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	switch {
	case errors.Is(err, fs.ErrExist):
		return perdure.Usagef("%s already exists; choose another file or remove it", name)
	case err != nil:
		return fmt.Errorf("cannot write %s: %w", name, humanize.Cause(err))
	}
	_, err = f.WriteString(commented(k.Model.Node))
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(fmt.Errorf("cannot write %s: %w", name, humanize.Cause(err)), os.Remove(name))
	}
	fmt.Fprintf(stdout, "wrote %s; run it with: perdure train -f %s\n", name, name)
	return nil
}

// activeKeys are the keys that a commented file sets to their defaults; all others are comments.
var activeKeys = []string{"workers", "servers", "clocks", "seed", "consistency", "recovery"}

// commented returns a job file that runs as it is and lists all other keys as comments.
func commented(root *kong.Node) string {
	var b strings.Builder
	b.WriteString("# A job file for perdure train -f. Flags on the command line override its keys.\n" +
		"# To set a key that is commented out, remove the # and change its value.\n\n")
	fmt.Fprintf(&b, "%-32s# %s\n", workloadKey+": "+settings.DefaultWorkload, "Or "+
		strings.Join(childNames(commandOf(root, "train"))[1:], " or ")+".")
	flags := usage{node: commandOf(root, "train")}
	for _, g := range flagGroups {
		title := fmt.Sprintf("\n# %s: see perdure train --help=%s\n", g.title, g.name)
		for _, f := range flags.flags() {
			if f.Group == nil || f.Group.Key != g.name || slices.Contains(excludedFromFiles, f.Name) {
				continue
			}
			b.WriteString(title)
			title = ""
			line := f.Name + ": " + f.Default
			if f.Default == "" {
				line = f.Name + ": " + strings.Trim(f.FormatPlaceHolder(), `"`)
			}
			if f.IsBool() {
				line = f.Name + ": true"
			}
			if kindOf(f) == jsonArray {
				line = fmt.Sprintf("%s: [%s]", f.Name, strings.TrimSuffix(f.FormatPlaceHolder(), ",..."))
			}
			if !slices.Contains(activeKeys, f.Name) {
				line = "#" + line
			}
			fmt.Fprintf(&b, "%-32s# %s\n", line, f.Help)
		}
	}
	return b.String()
}

// schema is the subset of JSON Schema that describes job files.
type schema struct {
	Schema      string            `json:"$schema,omitempty"`
	Title       string            `json:"title,omitempty"`
	Description string            `json:"description,omitempty"`
	Type        any               `json:"type,omitempty"`
	Enum        []string          `json:"enum,omitempty"`
	Default     any               `json:"default,omitempty"`
	Items       *schema           `json:"items,omitempty"`
	Properties  map[string]schema `json:"properties,omitempty"`
	Additional  *bool             `json:"additionalProperties,omitempty"`
}

// schemaOf derives the schema of job files from the flags of train and up.
func schemaOf(root *kong.Node) schema {
	no, train := false, commandOf(root, "train")
	s := schema{
		Schema: "https://json-schema.org/draft/2020-12/schema", Title: "A job of perdure train or perdure up",
		Type: "object", Additional: &no,
		Properties: map[string]schema{workloadKey: {
			Description: "The workload to train; not for up. With perdure coordinator, own stands for your own " +
				"programs.",
			Type: jsonString, Enum: append(childNames(train), settings.OwnWorkload),
			Default: settings.DefaultWorkload,
		}},
	}
	for _, n := range append([]*kong.Node{commandOf(root, "up")}, train.Children...) {
		flags, _ := fileFlags(n)
		for name, f := range flags {
			s.Properties[name] = schemaOfFlag(f)
		}
	}
	return s
}

func schemaOfFlag(f *kong.Flag) schema {
	text := flagTexts[f.Group.Key+"."+f.Name]
	s := schema{Description: strings.TrimSpace(text.line + " " + strings.TrimSpace(text.more)), Type: kindOf(f)}
	scalar := []string{jsonString, jsonNumber}
	switch s.Type {
	case jsonString: // flags of this type accept 0.9 and 10 as text
		s.Type, s.Default = scalar, f.Default
	case jsonArray:
		s.Type, s.Items = []string{jsonString, jsonArray}, &schema{Type: scalar}
	}
	if kind := kindOf(f); f.Default != "" && (kind == jsonInteger || kind == jsonNumber) {
		s.Default = json.Number(f.Default)
	}
	if s.Default == "" {
		s.Default = nil
	}
	return s
}

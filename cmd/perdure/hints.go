package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/workload"
)

var (
	unknownFlag = regexp.MustCompile(`^unknown flag --([^\s,=]+)`)
	unexpected  = regexp.MustCompile(`^unexpected argument (\S+)`)
)

// parseErrorText turns kong's error about a command line into one line for the user, with a hint and the help command
// to run.
func parseErrorText(app *kong.Application, err error) string {
	node := app.Node
	if p, is := errors.AsType[*kong.ParseError](err); is && p.Context != nil {
		node = helpTarget(p.Context)
	}
	text := hint(node, humanize.ErrorText(err))
	if node.Type == kong.ApplicationNode {
		return text + " (see perdure --help)"
	}
	return fmt.Sprintf("%s (see perdure %s --help)", text, node.Path())
}

// hint adds to text what the user probably meant, if that can be guessed.
func hint(node *kong.Node, text string) string {
	switch m := unexpected.FindStringSubmatch(text); {
	case m == nil:
	case m[1] == "launch":
		return text + "; launch is a command of the Python package: python -m perdure launch"
	case node.Path() == "log serve":
		return text + "; to list or remove the streams of a log, use the NATS CLI: nats stream ls, nats stream rm"
	case node.Name == "train":
		if _, err := workload.Find(m[1]); err != nil {
			return humanize.ErrorText(err) + settings.Suggest(m[1], childNames(node))
		}
	}
	m := unknownFlag.FindStringSubmatch(text)
	if m == nil {
		return text
	}
	if owners := ownersOf(node, m[1]); owners != "" {
		return fmt.Sprintf("--%s is only valid with %s; remove it", m[1], owners)
	}
	return text
}

// ownersOf returns the other workloads that have a flag of that name, or "".
func ownersOf(node *kong.Node, flag string) string {
	var owners []string
	for ; node != nil; node = node.Parent {
		if node.Name != "train" {
			continue
		}
		for _, c := range node.Children {
			if slices.ContainsFunc(c.Flags, func(f *kong.Flag) bool { return f.Name == flag }) {
				owners = append(owners, "perdure "+c.Path())
			}
		}
	}
	return strings.Join(owners, " and ")
}

func childNames(n *kong.Node) (names []string) {
	for _, c := range n.Children {
		if !c.Hidden {
			names = append(names, c.Name)
		}
	}
	return names
}

package study

import (
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"
)

// List makes a flag of a comma-separated list.
func List[T any](f *flag.FlagSet, to *[]T, name, preset, usage string, parse func(string) (T, error)) {
	set := func(text string) error {
		var values []T
		for part := range strings.SplitSeq(text, ",") {
			v, err := parse(strings.TrimSpace(part))
			if err != nil {
				return err
			}
			values = append(values, v)
		}
		*to = values
		return nil
	}
	if err := set(preset); err != nil {
		panic(err) // a preset is written in a program
	}
	f.Func(name, fmt.Sprintf("%s (default %s)", usage, preset), set)
}

// Preset sets flags that were not given, by name: another default.
func Preset(f *flag.FlagSet, values map[string]string) error {
	given := map[string]bool{}
	f.Visit(func(g *flag.Flag) { given[g.Name] = true })
	for name, value := range values {
		if given[name] {
			continue
		}
		if err := f.Set(name, value); err != nil {
			return err
		}
	}
	return nil
}

// Word is a parser for List, of names.
func Word(s string) (string, error) {
	if s == "" {
		return "", errors.New("an empty name")
	}
	return s, nil
}

// Number is a parser for List.
func Number(s string) (float64, error) { return strconv.ParseFloat(s, 64) }

package study

import (
	"flag"
)

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

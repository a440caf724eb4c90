package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/perdure/perdure"
)

// zoneName is what a zone may be called.
var zoneName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// zones turns --zones and --zone into the zone of each server; nil: none is named.
func (f *jobFlags) zones() (zones []string, err error) {
	if len(f.Zone) == 0 && len(f.Zones) == 0 {
		return nil, nil
	}
	zones = make([]string, f.Servers)
	for i := range zones {
		if len(f.Zones) > 0 {
			zones[i] = f.Zones[i%len(f.Zones)]
		}
	}
	for _, name := range f.Zones {
		if err := checkZone(name); err != nil {
			return nil, fmt.Errorf("%w: --zones: %w", perdure.ErrUsage, err)
		}
	}
	for _, item := range f.Zone {
		index, name, ok := strings.Cut(item, "=")
		if !ok {
			return nil, fmt.Errorf("%w: --zone %q: write I=NAME, for example 0=rack-a", perdure.ErrUsage, item)
		}
		i, err := strconv.Atoi(index)
		if err != nil || i < 0 || i >= len(zones) {
			return nil, fmt.Errorf("%w: --zone %q: there is no server %s; this job's %d servers are numbered from 0", perdure.ErrUsage, item, index, len(zones))
		}
		if err := checkZone(name); err != nil {
			return nil, fmt.Errorf("%w: --zone %q: %w", perdure.ErrUsage, item, err)
		}
		zones[i] = name
	}
	return zones, nil
}

func checkZone(name string) error {
	if !zoneName.MatchString(name) {
		return fmt.Errorf("%q cannot be a zone's name; use letters, digits, dots, dashes and underscores, for example rack-a", name)
	}
	return nil
}

// zone is the zone of a server; "": not known.
func (s *settings) zone(server int) string {
	if server < len(s.Zones) {
		return s.Zones[server]
	}
	return ""
}

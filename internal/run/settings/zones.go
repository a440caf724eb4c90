package settings

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/perdure/perdure"
)

// zoneName matches valid zone names.
var zoneName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// parseZones returns the zone of each server, or nil if no zone is named. inTurn holds zones that are assigned to all
// servers round-robin; some holds zones of single servers, as "I=NAME".
func parseZones(servers int, inTurn, some []string) (zones []string, err error) {
	if len(some) == 0 && len(inTurn) == 0 {
		return nil, nil
	}
	zones = make([]string, servers)
	for i := range zones {
		if len(inTurn) > 0 {
			zones[i] = inTurn[i%len(inTurn)]
		}
	}
	for _, name := range inTurn {
		if err := CheckZone(name); err != nil {
			return nil, fmt.Errorf("%w: --zones: %w", perdure.ErrUsage, err)
		}
	}
	if len(inTurn) > servers {
		return nil, fmt.Errorf("%w: --zones: %d zones for %d servers; give at most one per server", perdure.ErrUsage,
			len(inTurn), servers)
	}
	for _, item := range some {
		index, name, ok := strings.Cut(item, "=")
		if !ok {
			return nil, fmt.Errorf("%w: invalid --zone %q: write I=NAME, for example 0=rack-a", perdure.ErrUsage, item)
		}
		i, err := strconv.Atoi(index)
		if err != nil || i < 0 || i >= len(zones) {
			return nil, fmt.Errorf("%w: --zone %q: there is no server %s; this job has %d servers, numbered from 0",
				perdure.ErrUsage, item, index, len(zones))
		}
		if err := CheckZone(name); err != nil {
			return nil, fmt.Errorf("%w: --zone %q: %w", perdure.ErrUsage, item, err)
		}
		zones[i] = name
	}
	return zones, nil
}

func CheckZone(name string) error {
	if !zoneName.MatchString(name) {
		return fmt.Errorf("invalid zone name %q; use letters, digits, dots, dashes and underscores, for "+
			"example rack-a", name)
	}
	return nil
}

// ZoneOf returns the zone of a server; "" if it is unknown.
func (s *Run) ZoneOf(server int) string {
	if server < len(s.Zones) {
		return s.Zones[server]
	}
	return ""
}

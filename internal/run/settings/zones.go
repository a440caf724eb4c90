package settings

import (
	"fmt"
	"regexp"

	"github.com/perdure/perdure"
)

// zoneName matches valid zone names.
var zoneName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// parseZones assigns zones to all servers round-robin. It returns nil if no zone is named.
func parseZones(servers int, names []string) (zones []string, err error) {
	for _, name := range names {
		if err := CheckZone(name); err != nil {
			return nil, perdure.Usagef("--zones: %w", err)
		}
	}
	if len(names) > servers {
		return nil, perdure.Usagef("--zones: %d zones for %d servers; give at most one per server", len(names), servers)
	}
	for i := 0; len(names) > 0 && i < servers; i++ {
		zones = append(zones, names[i%len(names)])
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

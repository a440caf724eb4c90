package reach

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/keys"
)

// Ring opens the keys of a process of a role, in dir or in the role's folder there, and looks until ctx ends whether
// they are renewed, or others revoked. Without dir there are none: nil.
func Ring(ctx context.Context, dir string, role wire.Role, log *slog.Logger) (*keys.Ring, error) {
	if dir == "" {
		return nil, nil
	}
	ring, err := OpenRing(dir, role)
	if err == nil {
		go ring.Watch(ctx, func(err error) { log.Warn("keys were changed", "err", err) })
	}
	return ring, err
}

// OpenRing opens the keys of a process of a role.
func OpenRing(dir string, role wire.Role) (*keys.Ring, error) {
	ring, err := keys.Open(keys.Folder(dir, keys.Role(role)))
	if err != nil {
		return nil, err
	}
	if is := ring.Identity(); is.Role != keys.Role(role) {
		return nil, fmt.Errorf("%w: the keys in %s are those of %s, and a %s needs its own", perdure.ErrUsage,
			ring.Dir(),
			is, role)
	}
	return ring, nil
}

// CallerRing opens the keys of somebody who calls a job's control API: an operator's, or whatever is in dir.
func CallerRing(dir string) (*keys.Ring, error) {
	if dir == "" {
		return nil, nil
	}
	return keys.Open(keys.Folder(dir, keys.Operator))
}

// secretOf is the file with a run's secret: the one that was named, or that beside the keys; "": neither is there.
func secretOf(file string, ring *keys.Ring) string {
	if ring == nil {
		return file
	}
	return cmp.Or(file, ring.SecretFile())
}

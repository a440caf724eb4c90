package locate

import (
	"cmp"
	"context"
	"log/slog"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/keys"
)

// OpenWatchedRing opens the keys of a process with the given role, in dir or in the role's directory below it. Until
// ctx ends, it watches for renewed and revoked keys. It returns nil if dir is "".
func OpenWatchedRing(ctx context.Context, dir string, role wire.Role, log *slog.Logger) (*keys.Ring, error) {
	if dir == "" {
		return nil, nil
	}
	ring, err := OpenRing(dir, role)
	if err == nil {
		go ring.Watch(ctx, func(err error) { log.Warn("keys were changed", "err", err) })
	}
	return ring, err
}

// OpenRing opens the keys of a process with the given role.
func OpenRing(dir string, role wire.Role) (*keys.Ring, error) {
	ring, err := keys.Open(keys.RoleDir(dir, keys.Role(role)))
	if err != nil {
		return nil, err
	}
	if is := ring.Identity(); is.Role != keys.Role(role) {
		return nil, perdure.Usagef("the keys in %s belong to %s, but a %s needs its own", ring.Dir(), is, role)
	}
	return ring, nil
}

// CallerRing opens the keys of a caller of a job's control API: an operator's, or those directly in dir.
func CallerRing(dir string) (*keys.Ring, error) {
	if dir == "" {
		return nil, nil
	}
	return keys.Open(keys.RoleDir(dir, keys.Operator))
}

// secretOf returns the file with a run's secret: the named one, or the one next to the keys; "" if there is neither.
func secretOf(file string, ring *keys.Ring) string {
	if ring == nil {
		return file
	}
	return cmp.Or(file, ring.SecretFile())
}

package coordinator

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/perdure/perdure/internal/core/mutation"
	"github.com/perdure/perdure/internal/core/slotstate"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/store"
)

// Large slot states are stored in the store, one object per state. Workers write them. Only the coordinator deletes
// them when they are not needed any more; package slotstate defines when that is.

// sweeper deletes states outside of the loop, which must not wait for a store. It runs one sweep at a time.
type sweeper struct {
	refs     fileRefs
	busy     bool
	swept    *slotstate.LiveSet // the input of the last sweep; nil before the first
	reported string             // the last reported error
}

// sweep starts a sweep if there may be new garbage since the last one was started.
func (s *sweeper) sweep(ctx context.Context, c *Coordinator) {
	if s.busy || c.cfg.Store == nil {
		return
	}
	held := c.core.LiveStates()
	if !held.Any() && s.swept == nil || s.swept != nil && held.Same(s.swept) {
		return
	}
	s.busy, s.swept = true, held
	c.wg.Go(func() {
		err := s.deleteGarbage(ctx, c.cfg.Store, held)
		c.inbox.doSaved(ctx, func() {
			if s.busy = false; err == nil {
				s.reported = ""
				return
			}
			s.swept = nil // the sweep is repeated
			if text := err.Error(); text != s.reported && ctx.Err() == nil {
				s.reported = text
				c.cfg.Log.Warn("cannot delete unused slot states; retrying", "err", err)
			}
		})
	})
}

// deleteGarbage deletes the states that are not needed. The states in held may be named by later checkpoints, so held
// must be taken before the checkpoints are read.
func (s *sweeper) deleteGarbage(ctx context.Context, in store.Store, held *slotstate.LiveSet) error {
	there, err := in.List(slotstate.Prefix)
	if err != nil {
		return fmt.Errorf("list slot states: %w", err)
	}
	var names []string
	for _, e := range there {
		names = append(names, e.Name)
	}
	garbage := held.Garbage(names)
	if len(garbage) == 0 {
		return nil
	}
	if !mutation.Of(ctx).States {
		named, err := s.refs.list(in)
		if err != nil {
			return err
		}
		garbage = slices.DeleteFunc(garbage, func(name string) bool { return slices.Contains(named, name) })
	}
	return in.Delete(garbage...)
}

// fileRefs caches which slot states the checkpoints of a store refer to. Each manifest is read once. Only the current
// sweep uses it.
type fileRefs map[string][]string // by manifest

// list returns the names of all files that checkpoints refer to. If a manifest cannot be read, its references are
// unknown, so it returns an error.
func (n *fileRefs) list(s store.Store) (names []string, err error) {
	read := fileRefs{}
	for _, prefix := range []string{"g", "r"} { // prefixes of manifests
		all, err := s.List(prefix)
		if err != nil {
			return nil, err
		}
		for _, e := range all {
			of, known := (*n)[e.Name]
			if !known {
				k, ok := checkpoint.ReadInfo(s, e.Name)
				if !ok || errors.Is(k.Err, fs.ErrNotExist) { // deleted since the listing
					continue
				}
				if k.Err != nil {
					return nil, k.Err
				}
				for _, f := range k.Files() {
					of = append(of, f.File) // includes segments, which are never mistaken for states
				}
			}
			read[e.Name] = of
			names = append(names, of...)
		}
	}
	*n = read
	return names, nil
}

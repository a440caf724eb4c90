package coordinator

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/perdure/perdure/internal/core/states"
	"github.com/perdure/perdure/internal/core/weaken"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/store"
)

// What slots save lies in the store where it is large. Workers put it there, one object for each state; what
// nobody will ever need again is deleted here, and nowhere else: package states has the rule.

// sweeper deletes beside the loop, which waits for no store: one sweep at a time.
type sweeper struct {
	named named
	busy  bool
	swept *states.Held // what was known when the last one began; nil: there was none
	told  string       // why one could not be done: told once
}

// sweep begins a sweep, if something may have become garbage since the last one began.
func (s *sweeper) sweep(ctx context.Context, c *Coordinator) {
	if s.busy || c.cfg.Store == nil {
		return
	}
	held := c.core.HeldStates()
	if !held.Any() && s.swept == nil || s.swept != nil && held.Same(s.swept) {
		return
	}
	s.busy, s.swept = true, held
	c.wg.Go(func() {
		err := s.clear(ctx, c.cfg.Store, held)
		c.inbox.do(ctx, func() {
			if s.busy = false; err == nil {
				s.told = ""
				return
			}
			s.swept = nil // it is tried again
			if text := err.Error(); text != s.told && ctx.Err() == nil {
				s.told = text
				c.cfg.Log.Warn("cannot delete states that nobody needs; it is tried again", "err", err)
			}
		})
	})
}

// clear deletes what nobody needs. What is held now, and may be named by a checkpoint later, was noted
// before the checkpoints that there are are read.
func (s *sweeper) clear(ctx context.Context, in store.Store, held *states.Held) error {
	there, err := in.List(states.Prefix)
	if err != nil {
		return fmt.Errorf("list the states of slots: %w", err)
	}
	var names []string
	for _, e := range there {
		names = append(names, e.Name)
	}
	garbage := held.Garbage(names)
	if len(garbage) == 0 {
		return nil
	}
	if !weaken.Of(ctx).States {
		named, err := s.named.in(in)
		if err != nil {
			return err
		}
		garbage = slices.DeleteFunc(garbage, func(name string) bool { return slices.Contains(named, name) })
	}
	return in.Delete(garbage...)
}

// named finds which states of slots the checkpoints of a store refer to. It reads a manifest once. Only the sweep
// that is under way uses it.
type named map[string][]string // by manifest

// in returns the names of what the checkpoints that there are refer to. A manifest that cannot be read is an
// error: what it refers to is not known.
func (n *named) in(s store.Store) (names []string, err error) {
	read := named{}
	for _, prefix := range []string{"g", "r"} { // of manifests
		all, err := s.List(prefix)
		if err != nil {
			return nil, err
		}
		for _, e := range all {
			of, known := (*n)[e.Name]
			if !known {
				k, ok := checkpoint.KeptOf(s, e.Name)
				if !ok || errors.Is(k.Err, fs.ErrNotExist) { // deleted meanwhile
					continue
				}
				if k.Err != nil {
					return nil, k.Err
				}
				for _, f := range k.Files() {
					of = append(of, f.File) // segments, too: nobody takes them for states
				}
			}
			read[e.Name] = of
			names = append(names, of...)
		}
	}
	*n = read
	return names, nil
}

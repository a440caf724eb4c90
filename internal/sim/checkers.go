package sim

import (
	"context"

	"github.com/perdure/perdure"
)

// checkers are additional checkers of a job. A nil one is not used.
type checkers struct {
	reference *ReferenceTable // values that a bsp job computes
	evicting  *EvictingTable  // a sparse table with eviction
	mean      *MeanTable      // a table that combines updates by their mean
	learners  *Learners       // a table of weights that slots change while their clock ends
	lineage   *RowLineage     // for jobs that save each row separately
	bases     *baseChecker    // bases of lost shards, for strategies that restart them empty or from the last save
}

// openTables creates the tables of the additional checkers.
func (r *reader) openTables(ctx context.Context) (err error) {
	of := &r.h.aux
	if of.reference != nil {
		if r.reference, err = r.w.Table(ctx, of.reference.Spec); err != nil {
			return err
		}
	}
	if of.evicting != nil {
		if r.evicting, err = r.w.Table(ctx, of.evicting.Spec); err != nil {
			return err
		}
	}
	if of.mean != nil {
		if r.mean, err = r.w.Table(ctx, of.mean.Spec); err != nil {
			return err
		}
	}
	if of.learners != nil {
		r.learner, err = of.learners.join(ctx, r.w)
	}
	return err
}

// stepTables is the program's work in one clock on the tables of the additional checkers.
func (r *reader) stepTables(ctx context.Context, clock perdure.Clock) error {
	of := &r.h.aux
	if r.reference != nil {
		if err := of.reference.step(ctx, r.w, r.reference, clock); err != nil {
			return err
		}
	}
	if r.evicting != nil {
		if err := of.evicting.step(ctx, r.w, r.evicting, clock); err != nil {
			return err
		}
	}
	if r.mean != nil {
		if err := of.mean.step(ctx, r.w, r.mean, clock); err != nil {
			return err
		}
	}
	return r.learner.step(ctx, clock)
}

package failurecost

import (
	"context"
	"math"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/safetensors"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/run/checkpoints"
	"github.com/perdure/perdure/internal/run/modelfile"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/workload"
)

// SlotWorkloads is the workload of each slot of a job.
type SlotWorkloads []workload.Workload

// NewSlotWorkloads opens the workload of a run for each of its slots.
func NewSlotWorkloads(s *settings.Run) (SlotWorkloads, error) {
	crew := make(SlotWorkloads, s.Job.Slots)
	for i := range crew {
		w, err := workload.New(s.Job.Workload, s.WorkParams())
		if err != nil {
			return nil, err
		}
		crew[i] = w
	}
	return crew, nil
}

// Memory returns how many clocks a copied training must run until its slots have the memory of a training from the
// first clock on.
func (c SlotWorkloads) Memory() (most perdure.Clock) {
	for _, w := range c {
		if r, does := w.(workload.Stateful); does {
			most = max(most, r.Memory())
		}
	}
	return most
}

// Training is a job in memory. Under bsp it computes in this process exactly the bits that servers and workers would
// compute: the same workloads run, the same tables apply their updates in slot order, and under scar the same ledger
// chooses the rows to save. Under ssp and asp it computes one possible order of updates: see async_slots.go. It has no
// processes, messages or wall clocks, so a study can copy a training at any clock, lose shards, and continue, as often
// as needed.
//
// Shards are lost between two clocks or in the middle of one, after every slot has read its rows and before any update
// of that clock is applied. All rounds of saves that are due by then are durable, and lost rows return as last saved.
// In the middle of a clock, the clock's updates are then applied to them. A server that is killed while its workers
// compute has the same effect.
//
// A Training belongs to one goroutine, and so does a SlotWorkloads, which several trainings may use in turn.
type Training struct {
	Job   *perdure.JobSpec
	Specs []perdure.TableSpec
	Clock perdure.Clock // the next clock to compute
	Stale int           // additional age of reads in clocks, beyond bsp

	crew  SlotWorkloads
	parts [][]*table.Part // by shard, by table
	slots []*slotTables
	seq   uint64
	due   recovery.Rounds
	saved []*checkpoints.PartialCheckpoint // by shard; nil if no rows are saved
	past  [][][]*table.Part                // rows of the last Stale clocks, oldest first
	read  [][]*table.Part                  // what slots read instead of parts while they compute; nil: parts
	async *asyncSlots                      // nil if all slots run each clock together
}

// checkTraining returns an error if a run cannot be trained in memory.
func checkTraining(s *settings.Run) error {
	job := &s.Job
	for name, c := range job.TableConsistency {
		if !c.TwoStep() {
			return perdure.Usagef("table %s uses %s; perdure study losses needs bsp, under which the seed alone "+
				"determines a run", name, c)
		}
	}
	switch {
	case !slices.Contains([]perdure.ConsistencyKind{perdure.BSP, perdure.SSP, perdure.ASP}, job.Consistency.Kind):
		return perdure.Usagef("invalid --consistency %s; choose bsp, ssp:S or asp", job.Consistency)
	case job.Init != "":
		return perdure.Usagef("--init has no effect: each twin's initial rows come from its seed; remove --init")
	case len(s.Scale) > 0:
		return perdure.Usagef("--scale is not supported: the number of workers must stay the same; remove --scale")
	}
	return nil
}

// NewTraining creates a job whose tables hold their initial rows. Under scar it saves rows as a server would, to a disk
// in memory.
func NewTraining(s *settings.Run, crew SlotWorkloads) (*Training, error) {
	job := s.Job
	t := &Training{Job: &job, crew: crew, due: recovery.RoundsOf(job.Recovery)}
	for _, spec := range crew[0].Tables() {
		spec.Consistency = job.ConsistencyOf(spec.Name)
		spec.Shard = placement.PlaceTable(&spec, t.Specs, job.Shards, job.Servers)
		t.Specs = append(t.Specs, spec)
	}
	t.parts = make([][]*table.Part, job.Shards)
	for id := range t.parts {
		t.parts[id] = t.Initial(id)
	}
	if t.due.Any() {
		in := store.NewDir(disk.NewMemory(), "rows")
		if err := in.Prepare(); err != nil {
			return nil, err
		}
		for id, parts := range t.parts {
			t.saved = append(t.saved, checkpoints.NewPartialCheckpoint(in, t.Job, perdure.ShardID(id), parts))
		}
	}
	t.async = newAsyncSlots(&job)
	t.slots = make([]*slotTables, job.Slots)
	for i := range t.slots {
		t.slots[i] = newSlotTables(t)
	}
	return t, nil
}

// Initial returns the initial rows of a shard.
func (t *Training) Initial(shard int) (parts []*table.Part) {
	for n, spec := range t.Specs {
		first, rows := placement.Range(&spec, t.Job.Shards, perdure.ShardID(shard))
		parts = append(parts, table.New(spec, perdure.TableID(n), t.Job.Seed, first, rows))
	}
	return parts
}

// Copy returns a copy of a training that another crew continues. The copy has no saved rows and saves none. The memory
// of slots is not copied, because it belongs to the crew: see Memory.
func (t *Training) Copy(crew SlotWorkloads) (*Training, error) {
	c := &Training{Job: t.Job, Specs: t.Specs, Clock: t.Clock, crew: crew, seq: t.seq, async: t.async.copy()}
	for _, parts := range t.parts {
		of, err := copyParts(parts, t.Job.Seed)
		if err != nil {
			return nil, err
		}
		c.parts = append(c.parts, of)
	}
	c.slots = make([]*slotTables, len(t.slots))
	for i := range c.slots {
		c.slots[i] = newSlotTables(c)
		c.slots[i].take(t.slots[i])
	}
	return c, nil
}

// copyParts copies parts of tables, in the order of the tables.
func copyParts(parts []*table.Part, seed uint64) (all []*table.Part, err error) {
	for n, p := range parts {
		c := table.NewUninitialized(p.Spec, perdure.TableID(n), seed, p.First, p.Stored())
		from, to := p.Image(), c.Image()
		for i, piece := range from.IDs {
			copy(to.IDs[i], piece)
		}
		for i, piece := range from.Touched {
			copy(to.Touched[i], piece)
		}
		for i, plane := range from.Planes {
			for j, piece := range plane {
				copy(to.Planes[i][j], piece)
			}
		}
		if err := c.FinishRestore(); err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

// Compute makes every slot compute the current clock. It returns the mean training loss over their examples, or NaN if
// there are none. It changes no rows.
func (t *Training) Compute(ctx context.Context) (loss float64, err error) {
	if t.Stale > 0 {
		if err := t.lookBack(); err != nil {
			return 0, err
		}
		defer func() { t.read = nil }()
	}
	sum, samples := 0.0, 0
	for i, u := range t.slots {
		u.clear()
		m, err := t.crew[i].Step(ctx, u, workload.Share{Rank: i, Of: len(t.slots)}, t.Clock)
		if err != nil {
			return 0, err
		}
		u.weight = float64(m.Samples)
		if m.Samples > 0 && !math.IsNaN(m.TrainLoss) {
			sum, samples = sum+m.TrainLoss*float64(m.Samples), samples+m.Samples
		}
	}
	return sum / float64(samples), nil // 0/0 is NaN
}

// lookBack makes the slots read the rows of Stale clocks ago, or the initial rows.
func (t *Training) lookBack() error {
	now := make([][]*table.Part, len(t.parts))
	for id, parts := range t.parts {
		var err error
		if now[id], err = copyParts(parts, t.Job.Seed); err != nil {
			return err
		}
	}
	if t.past = append(t.past, now); len(t.past) > t.Stale+1 {
		t.past = t.past[1:]
	}
	t.read = t.past[0]
	return nil
}

// Apply applies the updates of the slots in order, and saves rows if a round is due.
func (t *Training) Apply() error {
	for id, parts := range t.parts {
		for n, p := range parts {
			if err := t.applyTable(id, n, p); err != nil {
				return err
			}
		}
	}
	t.Clock++
	t.seq += uint64(len(t.slots))
	return t.save()
}

// save saves rows if a round is due at the clock that all slots have finished.
func (t *Training) save() error {
	n := t.due.Done(t.Clock) - t.due.Done(t.Clock-1)
	if t.saved == nil || n <= 0 {
		return nil
	}
	for id, s := range t.saved {
		applied := make([]perdure.Clock, len(t.slots))
		for i := range applied {
			if applied[i] = t.Clock; t.async != nil {
				applied[i] = t.async.clocks[i]
			}
		}
		of := &checkpoint.Segment{Generation: 1, Cut: t.Clock, Seed: t.Job.Seed, Seq: t.seq, Applied: applied}
		if err := s.Save(t.parts[id], n, of); err != nil {
			return err
		}
	}
	return nil
}

// applyTable applies the updates of all slots to a shard's part of a table, individually or combined.
func (t *Training) applyTable(shard, n int, p *table.Part) (err error) {
	if p.Spec.Combine == perdure.CombineEach {
		for _, u := range t.slots {
			if err := u.tables[n].applyTo(t, shard, p, t.Clock); err != nil {
				return err
			}
		}
		return nil
	}
	sum, all := table.NewDeltaSum(p.Spec, p.First, p.Rows), 0.0
	for _, u := range t.slots {
		all += u.weight
	}
	for _, u := range t.slots {
		share := p.Spec.Combine.Share(len(t.slots), u.weight, all)
		add := func(first perdure.RowID, ids []perdure.RowID, n int, values []float32) error {
			sum.Add(first, ids, n, values, share)
			return nil
		}
		if err := u.tables[n].each(t, shard, p, add); err != nil {
			return err
		}
	}
	sum.Flush(func(first perdure.RowID, ids []perdure.RowID, rows int, values []float32) {
		if err == nil {
			err = t.applyRows(shard, perdure.TableID(n), p, first, ids, rows, values, t.Clock)
		}
	})
	return err
}

// applyRows applies a table's rule to rows of a shard.
func (t *Training) applyRows(
	shard int, id perdure.TableID, p *table.Part, first perdure.RowID, ids []perdure.RowID, n int, values []float32,
	clock perdure.Clock,
) error {
	if err := p.ApplyRows(first, ids, n, values, clock); err != nil {
		return err
	}
	if t.saved != nil {
		t.saved[shard].Changed(id, p, first, ids, n)
	}
	return nil
}

// Saves reports whether the training saves rows.
func (t *Training) Saves() bool { return t.saved != nil }

// SavedRows returns the rows of a shard as last saved. It does not change the training.
func (t *Training) SavedRows(shard int) ([]*table.Part, error) {
	return t.saved[shard].SavedRows(t.Specs)
}

// Lose simulates the death of shards, before Compute or between Compute and Apply. Each shard continues with its rows
// as last saved.
func (t *Training) Lose(shards []int) (err error) {
	for _, id := range shards {
		if t.parts[id], err = t.saved[id].SimulateLoss(t.Specs); err != nil {
			return err
		}
	}
	return nil
}

// SetRows replaces the rows of a shard. The training owns parts from then on.
func (t *Training) SetRows(shard int, parts []*table.Part) { t.parts[shard] = parts }

// Parts returns the rows of a shard, by table.
func (t *Training) Parts(shard int) []*table.Part { return t.parts[shard] }

// Saved returns the bytes written to save rows.
func (t *Training) Saved() (bytes int64) {
	for _, s := range t.saved {
		bytes += s.Bytes()
	}
	return bytes
}

// Size returns the size of a whole checkpoint in bytes.
func (t *Training) Size() (bytes int64, err error) {
	in := store.NewDir(disk.NewMemory(), "rows")
	if err := in.Prepare(); err != nil {
		return 0, err
	}
	for id, parts := range t.parts {
		of := &checkpoint.Segment{
			Job: t.Job.ID, Shard: perdure.ShardID(id), Epoch: 1, Number: 1, Generation: 1, Cut: t.Clock,
			Seed: t.Job.Seed, Seq: t.seq, Applied: make([]perdure.Clock, len(t.slots)),
		}
		for _, p := range parts {
			of.Tables = append(of.Tables, checkpoints.SegmentRows(p, []table.Run{{First: 0, Rows: p.Stored()}}))
		}
		ref, err := checkpoint.WriteSegment(in, of)
		if err != nil {
			return 0, err
		}
		bytes += ref.Bytes
	}
	return bytes, nil
}

// Evaluate evaluates the current model.
func (t *Training) Evaluate(ctx context.Context) (workload.Eval, error) {
	return t.crew[0].Evaluate(ctx, t.slots[0])
}

// Hash returns the hash of the model, as in a run's summary.
func (t *Training) Hash() (string, error) {
	var all []safetensors.Tensor
	for n, spec := range t.Specs {
		var v modelfile.Values
		for _, parts := range t.parts {
			v.Add(parts[n].Image())
		}
		tensors, err := v.Tensors(spec)
		if err != nil {
			return "", err
		}
		all = append(all, tensors...)
	}
	modelfile.Repair(t.crew[0], all)
	return safetensors.Hash(all), nil
}

package sim_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/mutation"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/sim"
)

// strategies are the recovery strategies that the negative controls run with.
var strategies = []struct {
	name string
	draw drawing
}{
	{"none", drawNone},
	{"checkpoint", draw},
	{"checkpoint, async", behind(draw)},
	{"resend", drawResend},
	{"resend, partial", drawPartial},
	{"chain", drawChain},
	{"chain, async", drawEager},
	{"chain, every", drawEvery},
	{"chain, checkpoint", drawSaved},
	{"chain, checkpoint, async", behind(drawSaved)},
	{"stateless", drawStateless},
	{"scar", drawScar},
}

// control is a negative control: a safety mechanism, how to disable it, and what must then go wrong under each
// strategy.
type control struct {
	name  string
	off   func(*sim.Options)
	draw  func(drawing) drawing // adapts a strategy's scenarios so that they need the mechanism; nil: unchanged
	cells []cell                // by strategy
}

// cell is what must happen if a control's mechanism is disabled under one strategy.
type cell struct {
	// the checker must find a violation with each of these seeds; with refused, the job must end with that error
	// instead
	seeds   []uint64
	refused string
	why     string // reason for refused, or, without seeds, why the control does not apply
}

func at(seeds ...uint64) cell { return cell{seeds: seeds} }

func no(why string) cell { return cell{why: why} }

func weak(w mutation.Set) func(*sim.Options) {
	return func(o *sim.Options) { o.Mutations = w }
}

// as sets the consistency of a scenario's tables to one of the models.
func as(models ...string) func(drawing) drawing {
	return func(draw drawing) drawing {
		return func(seed uint64) (scenario, *rand.Rand) {
			s, rng := draw(seed)
			s.job.Consistency, _ = perdure.ParseConsistency(models[seed%uint64(len(models))])
			s.job.TableConsistency, s.job.OnOutage, s.job.OutageRows = nil, perdure.OnOutage{}, ""
			return s, rng
		}
	}
}

// hard draws the hardest case for fencing: a cut at every clock, and losses that a worker learns of only after it has
// sent updates from before the rollback.
func hard(draw drawing) drawing {
	return func(seed uint64) (scenario, *rand.Rand) {
		s, rng := draw(seed)
		if recovery.Of(s.job.Recovery).Traits().SavesCuts() {
			s.job.Recovery.Every, s.job.Recovery.Auto, s.job.MTBF, s.job.NoReplace = 1, false, 0, false
		}
		s.drains, s.joins, s.pace = 0, 0, 30*time.Millisecond
		s.cuts, s.kills, s.sync = 0, 0, min(s.sync, 2*time.Millisecond)
		s.job.Slots, s.job.Servers = max(s.job.Slots, 2), max(1, s.job.Recovery.Replicas)+1
		s.job.Shards = 2 * s.job.Servers
		s.onlyServers, s.deaf, s.net.Breaks = false, 8, 0
		return s, rng
	}
}

// redone draws scenarios in which updates are sent twice. Their models apply updates as they arrive, and workers die
// when some shards have more of their updates than others, so that the replacements repeat clocks.
func redone(draw drawing) drawing {
	return func(seed uint64) (scenario, *rand.Rand) {
		s, rng := as("asp", "ssp:2", "asp")(draw)(seed)
		s.job.Shards, s.job.Slots = max(4, s.job.Shards), max(2, s.job.Slots)
		s.onlyServers, s.net.Breaks, s.torn, s.pace = false, 0, 16, 4*time.Millisecond
		if recovery.Of(s.job.Recovery).Traits().UsesLog() {
			s.slow = 8 * time.Millisecond
		}
		return s, rng
	}
}

// crossed adapts a drawing: checkpoints are frequent, every 2 clocks, and models let workers run ahead, so that workers
// send updates of later clocks while a checkpoint is written. More processes die, unless they are not replaced.
func crossed(draw drawing) drawing {
	return func(seed uint64) (scenario, *rand.Rand) {
		s, rng := as("asp", "ssp:2", "essp:2")(draw)(seed)
		s.job.Recovery.Every, s.job.Recovery.Auto, s.job.MTBF = 2, false, 0
		if s.job.Slots = max(3, s.job.Slots); !s.job.NoReplace {
			s.kills += 4
		}
		return s, rng
	}
}

// Reasons why a control does not apply, or why the product detects the fault itself.
const (
	noRollBack = "no rollback; epochs matter too rarely here, and the explorer of package chain covers them"
	ownControl = "TestLateFactsWeakened covers it"
	noCuts     = "no checkpoint is written during training"
	noResend   = "workers resend nothing"
	noUndo     = "no rollback"
	noneLost   = "this count exists under resend, partial only"
	waits      = "a shard that rolls back alone lacks updates that its later reads wait for: the job hangs"
	noOutage   = "workers do not continue while a shard is unavailable"
	noAcross   = "no checkpoint exists that an update could span"
	keptNot    = "a worker that detects a missing update in its outbox ends the job before any read"
	keptAll    = "no acknowledged update is lost, or all lost ones are resent"
	headTells  = "the next head reports its own state, which may exceed the acknowledged one"
	noRows     = "rows are not saved individually"
	noNames    = "no checkpoint names slot states"
	namedTwice = "the registry also names the objects that its files refer to"
	allThere   = "no update of a combined clock is lost"
	noTwin     = "updates may be lost: no twin predicts the rule's results; the explorer of package replica covers it"
	tornNot    = "a shard rejects an update that it may have in part"
)

// controls is the table of TestControls: each mechanism under each strategy. docs/design/tests.md shows it.
var controls = []control{
	{"exactly once", weak(mutation.Set{ExactlyOnce: true}), redone, []cell{
		at(1, 7, 10), at(7, 10, 11), at(12, 22, 30), at(7, 15, 22), at(15, 22), at(1, 7, 10), at(1, 7, 10),
		at(1, 7, 10),
		at(12, 13, 22), at(12, 22, 57), at(13, 26, 29), at(10, 14, 25),
	}},
	{
		"staging", weak(mutation.Set{Staging: true}), as("bsp"),
		append(slices.Repeat([]cell{at(1, 2, 4)}, len(strategies)-1), at(2, 4, 5)),
	},
	{
		"staging, atomic clocks", weak(mutation.Set{Staging: true}),
		func(d drawing) drawing { return ticking(redone(d)) },
		[]cell{
			at(1), at(5), at(12), at(5), at(6), at(1), at(1), at(1), at(4), at(12, 13), at(13), at(10),
		},
	},
	{"generations, epochs", weak(mutation.Set{Generations: true}), hard, []cell{
		no(noRollBack), at(7, 11, 13), at(11, 21, 23), at(19, 23, 28), no(noRollBack), no(noRollBack), no(noRollBack),
		no(noRollBack),
		at(10, 41, 110), at(10, 36, 73), no(ownControl), no(noRollBack),
	}},
	{"roll-back", weak(mutation.Set{RollBack: true}), as("asp", "ssp:1"), []cell{
		no(noUndo), no(waits), no(waits), at(4, 30, 44), no(noUndo), no(noUndo), no(noUndo), no(noUndo), at(4, 30, 44),
		at(4, 30, 44), no(noUndo), no(noUndo),
	}},
	{
		"pushes", weak(mutation.Set{Pushes: true}), as("essp:0", "essp:2", "vap:30"),
		slices.Repeat([]cell{at(1, 2, 4)}, len(strategies)),
	},
	{"bound", weak(mutation.Set{Bound: true}), as("vap:30"), []cell{
		at(1, 5, 7), at(1, 5, 7), at(1, 5, 7), at(3, 5, 7), at(3, 5, 7), at(1, 5, 7), at(1, 5, 7), at(1, 5, 7),
		at(1, 5, 7),
		at(1, 5, 7), at(4, 5, 7), at(2, 4, 11),
	}},
	{"joins", weak(mutation.Set{Joins: true}), drawScaled, []cell{
		at(3, 9, 18), at(1, 3, 9), at(1, 3, 9), at(1, 3, 9), at(1, 3, 9), at(1, 3, 9), at(3, 9, 18), at(3, 9, 18),
		at(1, 3, 9),
		at(1, 3, 9), at(1, 3, 7), at(3, 7, 23),
	}},
	{"cuts", weak(mutation.Set{Cuts: true}), crossed, []cell{
		no(noCuts), no(noCuts), at(12, 20, 26), at(12, 25, 27), at(7, 12, 25), no(noCuts), no(noCuts), no(noCuts),
		no(noCuts),
		at(27, 42, 58), no(noCuts), no(noCuts),
	}},
	{"slot cuts", weak(mutation.Set{Cuts: true}), slotCuts, []cell{
		no(noCuts), at(44, 423, 534), at(36), at(44, 349, 516), at(5, 303, 572), no(noCuts), no(noCuts), no(noCuts),
		at(52, 344, 527), at(49, 309, 567), no(noCuts), no(noCuts),
	}},
	{
		"retention",
		weak(mutation.Set{Retention: true}),
		nil,
		only(refuses(perdure.ErrNoCopy.Error(), keptNot, 2, 4, 5), refuses(perdure.ErrNoCopy.Error(), keptNot, 4, 5),
			noResend),
	},
	{"holding", weak(mutation.Set{RestoreBarrier: true}), nil, only(at(2, 4, 5), at(912, 956, 1455), noResend)},
	{"sending again", weak(mutation.Set{Resending: true}), nil, only(at(2, 4, 5), at(4, 5), noResend)},
	{"counting", weak(mutation.Set{Counting: true}), nil, only(no(noneLost), at(4, 5), noneLost)},
	{"merging", weak(mutation.Set{Merging: true}), drawOutages, []cell{
		no(noOutage), no(noOutage), no(noOutage), refuses("the update is rejected", tornNot, 2, 12, 20),
		refuses("the update is rejected", tornNot, 2, 12, 20), no(noAcross),
		no(noAcross), no(noAcross),
		refuses("the update is rejected", tornNot, 12, 17, 20),
		refuses("the update is rejected", tornNot, 12, 33, 44), no(noAcross),
		no(noAcross),
	}},
	{
		"merging, taken in part", weak(mutation.Set{Merging: true, Atomicity: true}), drawOutages,
		only(at(12, 20), at(12, 20), "as for merging"),
	},
	{"acknowledgements", weak(mutation.Set{AckTracking: true}), nil, []cell{
		at(3, 4, 6), no(keptAll), no(keptAll), no(keptAll), no(keptAll), no(keptAll), no(headTells), no(headTells),
		no(keptAll), no(keptAll), no(keptAll), at(3, 18, 20),
	}},
	{"holders", weak(mutation.Set{Holders: true}), nil, append(without(noRows), at(29, 51, 67))},
	{"jumps", weak(mutation.Set{BaseVector: true}), nil, append(without(noRows), hangs(3, 7))},
	{"units", weak(mutation.Set{Units: true}), wholly, append(without(noRows), at(1, 2, 3))},
	{
		"evicting", weak(mutation.Set{Eviction: mutation.Eviction{Evicting: true}}), withEvictingTable,
		slices.Repeat([]cell{at(1, 2, 3)}, len(strategies)),
	},
	{
		"moves", weak(mutation.Set{Eviction: mutation.Eviction{Moves: true}}), saving,
		append(without(noRows), at(2, 3, 21)),
	},
	{"divisor", weak(mutation.Set{Combine: mutation.Combine{Divisor: true}}), averaging, []cell{
		at(4, 7, 17), no(allThere), no(allThere), no(allThere), at(4, 6, 10), no(allThere), at(253, 288), at(4, 23, 26),
		no(allThere), no(allThere), no(allThere), at(27, 47, 149),
	}},
	{"one run", weak(mutation.Set{Combine: mutation.Combine{Once: true}}), averaging, []cell{
		no(noTwin), at(2, 3, 4), at(2, 3, 4), at(2, 3, 4), no(noTwin), at(2, 3, 4), no(noTwin), no(noTwin),
		at(2, 3, 4), at(2, 3, 4), at(2, 3, 4), no(noTwin),
	}},
	{"named files", weak(mutation.Set{FileRetention: true}), nil, append(without(noRows), at(1, 2, 3))},
	{"states", weak(mutation.Set{States: true}), stored, []cell{
		no(noNames), at(19, 34, 40), at(8, 19, 34), at(20, 30), at(18, 31, 33), no(noNames), no(noNames), no(noNames),
		at(6), at(6), no(noNames), no(namedTwice),
	}},
}

// without returns the cells for all strategies except the last one, scar. They say why the mechanism does not apply.
// The caller appends the cell for scar.
func without(why string) []cell { return slices.Repeat([]cell{no(why)}, len(strategies)-1) }

// only returns a row of the table for a mechanism that exists only where workers resend updates, with one cell for each
// strategy. The cells of resend and of "resend, partial" are the arguments. All others say why the mechanism does not
// apply there.
func only(resend, partial cell, why string) []cell {
	row := slices.Repeat([]cell{no(why)}, len(strategies))
	for i := range strategies {
		switch strategies[i].name {
		case "resend":
			row[i] = resend
		case "resend, partial":
			row[i] = partial
		}
	}
	return row
}

func refuses(text, why string, seeds ...uint64) cell { return cell{seeds, text, why} }

// forever is the error of a job that hangs: every process waits, so no process reads wrong values.
const forever = "context deadline exceeded"

// hangs returns a cell for a mechanism without which the job never ends.
func hangs(seeds ...uint64) cell { return cell{seeds, forever, waits} }

// drawing returns the function that draws the scenarios of a control under the strategy with this index: the strategy's
// own function, adapted by c.draw if the control needs that.
func (c *control) drawing(strategy int) drawing {
	if c.draw == nil {
		return strategies[strategy].draw
	}
	return c.draw(strategies[strategy].draw)
}

// finds reports whether a job whose mechanism was disabled ended as the cell expects: err is the error c.refused or, if
// that is empty, a violation that the checker found.
func (c cell) finds(err error) bool {
	if c.refused != "" {
		return err != nil && strings.Contains(err.Error(), c.refused)
	}
	var v *sim.Violation
	return errors.As(err, &v)
}

// mostSeeds is the number of seeds to try if none of the known ones finds a violation.
const mostSeeds = 300

// TestControls disables one safety mechanism at a time. The checker must find a violation, or the product must refuse
// to continue with the error in the table. With the mechanism enabled, the same seed must pass. The table's seeds find
// the violation immediately; make sim searches for new ones.
func TestControls(t *testing.T) {
	for _, c := range controls {
		for i, s := range strategies {
			if len(c.cells[i].seeds) == 0 {
				continue
			}
			t.Run(c.name+"/"+s.name, func(t *testing.T) { c.mustFind(t, c.drawing(i), c.cells[i]) })
		}
	}
}

func (c *control) mustFind(t *testing.T, draw drawing, want cell) {
	known := slices.Repeat(want.seeds, 3) // goroutines at the same instant may run in a different order
	var others []uint64
	for n := range uint64(mostSeeds) {
		others = append(others, *firstSeed+n)
	}
	list := slices.Concat(known, others)
	if !testing.Short() {
		first := min(*seeds, mostSeeds)
		list = slices.Concat(others[:first], known, others[first:])
	}
	if *oneSeed != 0 {
		list = []uint64{*oneSeed}
	}
	for n, seed := range list {
		s, rng := draw(seed)
		err := run(t, seed, s, rng, c.off)
		if !want.finds(err) {
			continue
		}
		s, rng = draw(seed)
		if calm := run(t, seed, s, rng, nil); calm != nil {
			t.Errorf("seed %d fails with no mechanism disabled: %v", seed, calm)
			return
		}
		t.Logf("seed %d, try %d: %v", seed, n+1, err)
		return
	}
	t.Errorf("no violation in %d seeds without the mechanism; replay one with -run '%s$' -sim.seed=N", len(list),
		t.Name())
}

// TestControlsTable checks that the page on tests contains the table of controls.
func TestControlsTable(t *testing.T) {
	doc, err := os.ReadFile("../../docs/design/tests.md")
	if err != nil {
		t.Fatal(err)
	}
	if table := controlsTable(); !strings.Contains(string(doc), table) {
		t.Errorf("docs/design/tests.md lacks the current table of controls:\n%s", table)
	}
}

// controlsTable returns the table of controls in Markdown. A cell is "found", "refused", "hangs" or "–"; a number in it
// refers to the reasons listed below the table.
func controlsTable() string {
	var b strings.Builder
	b.WriteString("|")
	for _, s := range strategies {
		b.WriteString(" | " + s.name)
	}
	b.WriteString(" |\n|" + strings.Repeat("---|", len(strategies)+1) + "\n")
	var reasons []string
	for _, c := range controls {
		b.WriteString("| " + c.name)
		for _, cell := range c.cells {
			text := "–"
			switch {
			case cell.refused == forever:
				text = "hangs"
			case cell.refused != "":
				text = "refused"
			case len(cell.seeds) > 0:
				text = "found"
			}
			if cell.why != "" {
				if !slices.Contains(reasons, cell.why) {
					reasons = append(reasons, cell.why)
				}
				text += fmt.Sprintf(" (%d)", slices.Index(reasons, cell.why)+1)
			}
			b.WriteString(" | " + text)
		}
		b.WriteString(" |\n")
	}
	for i, r := range reasons {
		fmt.Fprintf(&b, "\n%d. %s", i+1, r)
	}
	return b.String() + "\n"
}

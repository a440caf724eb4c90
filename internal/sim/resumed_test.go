package sim_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/weaken"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/sim"
)

// resumes says what becomes of a run when all its processes are gone.
type resumes struct {
	times            int // how often another run goes on from what is left, at most; 0: none does
	servers, workers int // of the first that does; 0: as many as before
	more             int // slots that it may have beside those that there are
	harm             harm
	done             *int // counts the runs that went on from another one
}

// All processes of a run under scar die at once, and another run goes on from what is left, with other servers and
// workers perhaps: of each row it has what was saved, and all since; what it lacks is counted.
func TestScarResumes(t *testing.T) { runResumes(t, drawResumes(drawScar)) }

// The same where workers join and leave, too.
func TestScarRosterResumes(t *testing.T) { runResumes(t, drawResumes(drawRoster(drawScar))) }

// The same where updates are in a log: what that has acknowledged is there, each update once.
func TestStatelessResumes(t *testing.T) { runResumes(t, drawResumes(drawStateless)) }

// The same where workers join and leave, too.
func TestStatelessRosterResumes(t *testing.T) { runResumes(t, drawResumes(drawRoster(drawStateless))) }

// A run whose updates are in a log, and that is ended in order, leaves all that was acknowledged, whoever dies
// meanwhile; another run goes on from it.
func TestStatelessStops(t *testing.T) {
	runResumes(t, func(seed uint64) (scenario, *rand.Rand) {
		s, rng := drawResumes(drawStateless)(seed)
		s.ends = true
		return s, rng
	})
}

// A job that ends early, since its programs have reached their goal, ends in order: at one clock, with all updates of
// the clocks before it and of no other.
func TestGoals(t *testing.T) {
	runSeeds(t, func(seed uint64) (scenario, *rand.Rand) {
		s, rng := []drawing{drawStateless, drawScar, drawAny}[seed%3](seed)
		s.goal = 1 + perdure.Clock(rand.New(rand.NewPCG(seed, 22)).IntN(clocks-3))
		return s, rng
	})
}

// A job whose models miss the goal, although an evaluation before reached it, continues from each tentative end: no
// update is lost, and it ends at a clock whose model reaches the goal, or as planned.
func TestTentativeEnds(t *testing.T) {
	runSeeds(t, func(seed uint64) (scenario, *rand.Rand) {
		s, rng := []drawing{drawStateless, drawScar, drawAny}[seed%3](seed)
		more := rand.New(rand.NewPCG(seed, 23))
		s.goal, s.misses = 1+perdure.Clock(more.IntN(clocks/2)), 1+perdure.Clock(more.IntN(3))
		return s, rng
	})
}

// drawResumes draws all processes' death, once or more often, and who goes on.
func drawResumes(draw drawing) drawing {
	return func(seed uint64) (scenario, *rand.Rand) {
		s, rng := draw(seed)
		more := rand.New(rand.NewPCG(seed, 20))
		s.resumes.times = 1 + more.IntN(2)
		if more.IntN(2) == 0 {
			s.resumes.servers = 1 + more.IntN(4)
		}
		if more.IntN(2) == 0 {
			s.resumes.workers = 1 + more.IntN(4)
			s.resumes.more = s.resumes.workers
		}
		return s, rng
	}
}

// runResumes runs seeds, and asks that enough of them went on. As many do as there are seeds, but of the first ones a
// third.
func runResumes(t *testing.T, draw drawing) {
	t.Helper()
	done, runs := 0, 0
	runSeeds(t, func(seed uint64) (scenario, *rand.Rand) {
		s, rng := draw(seed)
		s.resumes.done = &done
		runs++
		return s, rng
	})
	if done*6 < runs && manySeeds() {
		t.Errorf("of %d runs only %d went on", runs, done)
	}
}

// resume has another run go on from what one has left.
func (f *faults) resume() error {
	how := &f.s.resumes
	if how.times == 0 {
		return nil
	}
	left, err := sim.LeftBy(f.c)
	if err != nil {
		return err
	}
	if how.harm.left != nil {
		how.harm.left(left)
	}
	next, err := left.GoOn(f.all, how.servers, how.workers)
	if err == nil && len(next.Begin.View.Slots) > f.s.slots() { // more than a row has columns for
		next, err = left.GoOn(f.all, how.servers, 0)
	}
	if err == nil && how.harm.next != nil {
		how.harm.next(next)
	}
	h, err := f.h.GoesOn(left, next, err)
	if h == nil {
		return err
	}
	if how.done != nil {
		*how.done++
	}
	g := &faults{all: f.all, s: f.s, h: h, o: f.o, seed: f.seed + 1<<32}
	g.s.job, g.o.Job, g.o.Next = next.Begin.Job, next.Begin.Job, next
	g.s.ends, g.s.plan, g.s.scales, g.o.Plan = false, nil, 0, nil
	g.s.resumes.times, g.s.resumes.servers, g.s.resumes.workers, g.s.resumes.harm = how.times-1, 0, 0, harm{}
	if g.s.job.NoReplace {
		g.s.kills = min(g.s.kills, g.s.job.Servers-1)
	}
	g.start(rand.New(rand.NewPCG(g.seed, 21)))
	return g.wait()
}

// The same where nobody dies before all do, and slots that have left are given anew: clocks of the workers that had
// them before count on.
func TestScarReturnResumes(t *testing.T) { runResumes(t, drawResumes(drawReturns(drawScar))) }

// TestStatelessReturnResumes is the same where updates are in a log.
func TestStatelessReturnResumes(t *testing.T) { runResumes(t, drawResumes(drawReturns(drawStateless))) }

// drawReturns draws calm jobs in which many join and leave.
func drawReturns(draw drawing) drawing {
	return func(seed uint64) (scenario, *rand.Rand) {
		s, rng := draw(seed)
		s.calm()
		s.pace, s.scales = max(s.pace, 10*time.Millisecond), 10
		return s, rng
	}
}

// harm is what is done between two runs; nil: nothing.
type harm struct {
	left func(*sim.Left) // to what the first one has left
	next func(*sim.Next) // to what the second one begins with
}

// alter changes a byte in the middle of a file.
func alter(fs disk.FS, name string) {
	b, err := fs.ReadFile(name)
	if err == nil {
		var f disk.File
		b[len(b)/2] ^= 1
		if f, err = fs.Create(name); err == nil {
			_, err = f.Write(b)
			err = errors.Join(err, f.Close())
		}
	}
	if err != nil {
		panic(err)
	}
}

// Where the newest manifest is damaged, or a file that only that one names, the run goes on from the one before, and
// all the same holds.
func TestScarResumesDamaged(t *testing.T) {
	runResumes(t, func(seed uint64) (scenario, *rand.Rand) {
		s, rng := drawResumes(drawScar)(seed)
		s.resumes.harm.left = func(l *sim.Left) {
			m := l.Newest()
			if m == nil {
				return
			}
			name := checkpoint.RunningFile(m.Number)
			l.Spoil()
			if before := l.Newest(); before != nil && seed%2 == 0 {
				for _, f := range m.Files() {
					if !slices.Contains(before.Files(), f) {
						name = f.File
					}
				}
			}
			alter(l.Disk, "checkpoint/"+name)
		}
		return s, rng
	})
}

// What is lost or forged between two runs is noticed.
func TestResumesWeakened(t *testing.T) {
	removed := func(l *sim.Left) {
		if m := l.Newest(); m != nil {
			_ = l.Disk.Remove("checkpoint/" + checkpoint.RunningFile(m.Number)) // it is there
		}
	}
	lost := func(l *sim.Left) {
		log, err := l.Log.Open(updatelog.Options{Job: l.Job.ID, Shards: l.Job.Shards})
		if err != nil {
			panic(err)
		}
		defer log.Close()
		if first, next, err := log.Extent(context.Background(), 0); err == nil && next > first {
			l.Log.LoseEnd(l.Job.ID, 0, max(first, next-4))
		}
	}
	older := func(n *sim.Next) {
		for i, files := range n.Begin.Running.Files {
			n.Begin.Running.Files[i] = files[:max(0, len(files)-1)]
		}
	}
	late := func(n *sim.Next) { n.Begin.View.Cut++ }
	twice := weak(weaken.Set{ExactlyOnce: true})
	for name, c := range map[string]struct {
		draw drawing
		harm harm
		weak func(*sim.Options)
	}{
		"the newest manifest is gone":                {drawScar, harm{left: removed}, nil},
		"files are left out":                         {drawScar, harm{next: older}, nil},
		"a later clock than the files'":              {drawScar, harm{next: late}, nil},
		"the log's end is lost":                      {drawStateless, harm{left: lost}, nil},
		"what shards have is applied again":          {as("asp", "ssp:2")(drawScar), harm{}, twice},
		"what shards have is applied again, of logs": {as("asp", "ssp:2")(drawStateless), harm{}, twice},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := uint64(1); seed <= mostSeeds; seed++ {
				drawn := func() (scenario, *rand.Rand) {
					s, rng := drawResumes(c.draw)(seed)
					s.calm() // so that only what is lost between the runs is
					return s, rng
				}
				s, rng := drawn()
				s.resumes.harm = c.harm
				var v *sim.Violation
				if err := run(t, seed, s, rng, c.weak); errors.As(err, &v) {
					s, rng = drawn()
					if calm := run(t, seed, s, rng, nil); calm != nil {
						t.Errorf("seed %d fails with nothing lost: %v", seed, calm)
					}
					t.Logf("seed %d: %v", seed, v)
					return
				}
			}
			t.Errorf("%d seeds, and nothing was noticed", mostSeeds)
		})
	}
}

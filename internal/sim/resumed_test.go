package sim_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/mutation"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/sim"
)

// resumes describes the runs after all processes of a run have ended.
type resumes struct {
	times            int // max number of resumed runs
	servers, workers int // of the first resumed run; 0: unchanged
	more             int // additional slots that it may have
	harm             harm
	done             *int // counts resumed runs
}

// TestScarResumes kills all processes of a run under scar simultaneously. Another run resumes, perhaps with other
// servers and workers. Each row has its saved value and all later updates; missing ones are counted.
func TestScarResumes(t *testing.T) { runResumes(t, drawResumes(drawScar)) }

// TestScarRosterResumes is TestScarResumes while workers join and leave.
func TestScarRosterResumes(t *testing.T) { runResumes(t, drawResumes(drawScaled(drawScar))) }

// TestStatelessResumes checks the same with an update log: every acknowledged update is applied exactly once.
func TestStatelessResumes(t *testing.T) { runResumes(t, drawResumes(drawStateless)) }

// TestStatelessRosterResumes is TestStatelessResumes while workers join and leave.
func TestStatelessRosterResumes(t *testing.T) { runResumes(t, drawResumes(drawScaled(drawStateless))) }

// TestStatelessStops checks that a gracefully ended run with an update log keeps all acknowledged updates, whichever
// processes die. Another run resumes it.
func TestStatelessStops(t *testing.T) {
	runResumes(t, func(seed uint64) (scenario, *rand.Rand) {
		s, rng := drawResumes(drawStateless)(seed)
		s.ends = true
		return s, rng
	})
}

// TestGoals checks a job that ends early because its programs reached their goal. It ends gracefully: at one clock,
// with exactly the updates of earlier clocks.
func TestGoals(t *testing.T) {
	runSeeds(t, func(seed uint64) (scenario, *rand.Rand) {
		s, rng := []drawing{drawStateless, drawScar, drawAny}[seed%3](seed)
		s.goal = 1 + perdure.Clock(rand.New(rand.NewPCG(seed, 22)).IntN(clocks-3))
		return s, rng
	})
}

// TestTentativeEnds checks a job whose models miss the goal after an earlier evaluation reached it. It continues from
// each tentative end. No update is lost, and it ends at a clock whose model reaches the goal, or as planned.
func TestTentativeEnds(t *testing.T) {
	runSeeds(t, func(seed uint64) (scenario, *rand.Rand) {
		s, rng := []drawing{drawStateless, drawScar, drawAny}[seed%3](seed)
		more := rand.New(rand.NewPCG(seed, 23))
		s.goal, s.misses = 1+perdure.Clock(more.IntN(clocks/2)), 1+perdure.Clock(more.IntN(3))
		return s, rng
	})
}

// drawResumes draws one or more deaths of all processes, and the resumed runs.
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

// runResumes runs seeds that describe resumed runs. If enough seeds run, at least one run must have been resumed for
// every six seeds.
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
		t.Errorf("only %[2]d of %[1]d runs were resumed", runs, done)
	}
}

// resume starts another run from the state left by the previous one.
func (f *faults) resume() error {
	how := &f.s.resumes
	if how.times == 0 {
		return nil
	}
	left, err := sim.FinalStateOf(f.c)
	if err != nil {
		return err
	}
	if how.harm.left != nil {
		how.harm.left(left)
	}
	next, err := left.Resume(f.all, how.servers, how.workers)
	if err == nil && len(next.JobRecord.View.Slots) > f.s.slots() { // more slots than a row has columns for
		next, err = left.Resume(f.all, how.servers, 0)
	}
	if err == nil && how.harm.next != nil {
		how.harm.next(next)
	}
	h, err := f.h.CheckResume(left, next, err)
	if h == nil {
		return err
	}
	if how.done != nil {
		*how.done++
	}
	g := &faults{all: f.all, s: f.s, h: h, o: f.o, seed: f.seed + 1<<32}
	g.s.job, g.o.Job, g.o.Resume = next.JobRecord.Job, next.JobRecord.Job, next
	g.s.ends, g.s.plan, g.s.scales, g.o.Plan = false, nil, 0, nil
	g.s.resumes.times, g.s.resumes.servers, g.s.resumes.workers, g.s.resumes.harm = how.times-1, 0, 0, harm{}
	if g.s.job.NoReplace {
		g.s.kills = min(g.s.kills, g.s.job.Servers-1)
	}
	g.start(rand.New(rand.NewPCG(g.seed, 21)))
	return g.wait()
}

// TestScarReturnResumes has no earlier deaths and reuses the numbers of slots that left. Clocks of their earlier
// workers still count.
func TestScarReturnResumes(t *testing.T) { runResumes(t, drawResumes(drawReturns(drawScar))) }

// TestStatelessReturnResumes is TestScarReturnResumes with an update log.
func TestStatelessReturnResumes(t *testing.T) { runResumes(t, drawResumes(drawReturns(drawStateless))) }

// drawReturns draws calm jobs with many joins and leaves.
func drawReturns(draw drawing) drawing {
	return func(seed uint64) (scenario, *rand.Rand) {
		s, rng := draw(seed)
		s.calm()
		s.pace, s.scales = max(s.pace, 10*time.Millisecond), 10
		return s, rng
	}
}

// harm damages the state between two runs; nil functions do nothing.
type harm struct {
	left func(*sim.FinalState)  // damages the state that the first run left
	next func(*sim.ResumeState) // damages the state that the second run starts with
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

// TestScarResumesDamaged checks that if the newest manifest is damaged, or a file that only it names, the run resumes
// from the previous one with the same guarantees.
func TestScarResumesDamaged(t *testing.T) {
	runResumes(t, func(seed uint64) (scenario, *rand.Rand) {
		s, rng := drawResumes(drawScar)(seed)
		s.resumes.harm.left = func(l *sim.FinalState) {
			m := l.Newest()
			if m == nil {
				return
			}
			name := checkpoint.RunningFile(m.Number)
			l.MarkDamaged()
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

// TestResumesWeakened checks that losses and forgeries between two runs are detected.
func TestResumesWeakened(t *testing.T) {
	removed := func(l *sim.FinalState) {
		if m := l.Newest(); m != nil {
			_ = l.Disk.Remove("checkpoint/" + checkpoint.RunningFile(m.Number)) // it exists
		}
	}
	lost := func(l *sim.FinalState) {
		log, err := l.Log.Open(updatelog.Options{Job: l.Job.ID, Shards: l.Job.Shards})
		if err != nil {
			panic(err)
		}
		defer log.Close()
		if first, next, err := log.Extent(context.Background(), 0); err == nil && next > first {
			l.Log.TruncateFrom(l.Job.ID, 0, max(first, next-4))
		}
	}
	older := func(n *sim.ResumeState) {
		for i, files := range n.JobRecord.Running.Files {
			n.JobRecord.Running.Files[i] = files[:max(0, len(files)-1)]
		}
	}
	late := func(n *sim.ResumeState) { n.JobRecord.View.Cut++ }
	twice := weak(mutation.Set{ExactlyOnce: true})
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
					s.calm() // so that the only losses are between the runs
					return s, rng
				}
				s, rng := drawn()
				s.resumes.harm = c.harm
				var v *sim.Violation
				if err := run(t, seed, s, rng, c.weak); errors.As(err, &v) {
					s, rng = drawn()
					if calm := run(t, seed, s, rng, nil); calm != nil {
						t.Errorf("seed %d fails without a loss: %v", seed, calm)
					}
					t.Logf("seed %d: %v", seed, v)
					return
				}
			}
			t.Errorf("no violation in %d seeds", mostSeeds)
		})
	}
}

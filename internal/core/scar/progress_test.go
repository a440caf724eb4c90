package scar

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/itercost"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/table"
)

// This file tests the paper's theorems with real shards and ledgers: gradient descent on a quadratic whose values are
// the rows of some parts, which are saved and lost like those of a job. Everything is a function of a seed.

// program is x ← x − A(x − x*), with A diagonal: each value's error is multiplied by a factor of at most c. Rows are
// float32, so each step rounds.
type program struct {
	r       *rand.Rand
	c       float64
	factors []float64
	optimum []float64
	shards  []*savedShard
}

// savedShard is a shard and its files on disk.
type savedShard struct {
	part   *table.Part
	ledger *Ledger
	at     int                  // index of its first value in the whole vector
	disk   map[string][]float32 // by file: the part's values when it was written, for the rows that it has
	has    map[string][]bool    // by file: which rows it has
	made   int
}

// someProgram draws a program. If everywhere is set, all factors are c.
func someProgram(seed uint64, everywhere bool) *program {
	r := rand.New(rand.NewPCG(seed, 0x5ca6))
	p := &program{r: r, c: 0.2 + 0.6*r.Float64()}
	dim, shards := 1+r.IntN(3), 2+r.IntN(3)
	by, share := allSelectors[r.IntN(len(allSelectors))], allShares[r.IntN(len(allShares))]
	for s := range shards {
		rows := 2 + r.IntN(6)
		spec := perdure.TableSpec{
			Name: "x", Rows: int64(rows), Dim: dim, Rule: perdure.Rule{Kind: perdure.RuleAdd},
			Init: perdure.Init{Kind: perdure.InitNormal, Scale: 3},
		}
		set := Settings{Selector: by, Share: share, Seed: seed, Shard: perdure.ShardID(s)}
		p.shards = append(p.shards, &savedShard{
			part: table.New(spec, 0, seed+uint64(s)<<32, 0, rows), ledger: New(set), at: len(p.factors),
			disk: map[string][]float32{}, has: map[string][]bool{},
		})
		for range rows * dim {
			factor := p.c
			if !everywhere {
				factor *= 2*r.Float64() - 1 // negative: the step is so long that it overshoots
			}
			p.factors, p.optimum = append(p.factors, factor), append(p.optimum, r.NormFloat64())
		}
	}
	p.factors[0] = p.c
	return p
}

// distance returns ‖x − x*‖.
func (p *program) distance() float64 {
	sum := 0.0
	for _, s := range p.shards {
		for i, v := range s.values() {
			d := float64(v) - p.optimum[s.at+i]
			sum += d * d
		}
	}
	return math.Sqrt(sum)
}

func (p *program) step(t *testing.T) {
	for _, s := range p.shards {
		values := s.values()
		delta := make([]float32, len(values))
		for i, v := range values {
			delta[i] = float32((p.factors[s.at+i] - 1) * (float64(v) - p.optimum[s.at+i]))
		}
		if err := s.part.ApplyRows(0, nil, s.part.Rows, delta, 0); err != nil {
			t.Fatal(err)
		}
		s.ledger.Changed(0, s.part, 0, nil, s.part.Rows)
	}
}

func (s *savedShard) values() []float32 { return slices.Clone(s.part.Values(0, s.part.Rows)) }

// save runs a round of the shard. Some rounds are not written.
func (s *savedShard) save(written bool) {
	choice := s.ledger.Choose([]*table.Part{s.part}, 1)
	if !written || choice.Bytes == 0 {
		s.ledger.Unwritten(choice)
		return
	}
	s.made++
	file := fmt.Sprint(s.made)
	s.disk[file], s.has[file] = s.values(), make([]bool, s.part.Rows)
	for _, run := range choice.Runs[0] {
		for row := run.First; row < run.First+run.Rows; row++ {
			s.has[file][row] = true
		}
	}
	s.ledger.Written(choice, protocol.SegmentFile{File: file, Bytes: choice.Bytes})
}

// saved returns the running checkpoint, which is the files that the ledger lists on top of the initial rows, and the
// file of each row.
func (s *savedShard) saved() (values []float32, layer []int32) {
	layer = slices.Repeat([]int32{-1}, s.part.Rows)
	dim := s.part.Spec.Dim
	for row := range s.part.Rows {
		initial := make([]float32, dim)
		s.part.Initial(initial, perdure.RowID(row))
		values = append(values, initial...)
	}
	for i, f := range s.ledger.Files() {
		for row, has := range s.has[f.File] {
			if has {
				copy(values[row*dim:(row+1)*dim], s.disk[f.File][row*dim:(row+1)*dim])
				layer[row] = int32(i)
			}
		}
	}
	return values, layer
}

// lose makes a shard restart with its last saved rows, and with a ledger from the files. It returns ‖δ‖².
func (s *savedShard) lose() (square float64) {
	saved, layer := s.saved()
	now := s.part.Values(0, s.part.Rows)
	for i, v := range saved {
		d := float64(v) - float64(now[i])
		square += d * d
	}
	copy(now, saved)
	s.ledger = Resume(s.ledger.set, []*table.Part{s.part}, s.ledger.Files(), [][]int32{layer})
	return square
}

// mishaps lists the failures of a run by clock: the shards that are lost.
type mishaps map[int][]int

func (p *program) mishaps() mishaps {
	m := mishaps{}
	for range p.r.IntN(6) {
		clock := p.r.IntN(40)
		for s := range p.shards {
			if p.r.IntN(2) == 0 && !slices.Contains(m[clock], s) {
				m[clock] = append(m[clock], s)
			}
		}
	}
	return m
}

// run runs some clocks. It returns the distance at the start of each, and the perturbations that occurred.
func (p *program) run(t *testing.T, clocks int, m mishaps) (course []float64, met []itercost.Perturbation) {
	for clock := range clocks + 1 {
		if lost := m[clock]; len(lost) > 0 {
			square := 0.0
			for _, s := range lost {
				square += p.shards[s].lose()
			}
			met = append(met, itercost.Perturbation{Clock: clock, Norm: math.Sqrt(square)})
		}
		course = append(course, p.distance())
		p.step(t)
		if clock%3 == 2 {
			for _, s := range p.shards {
				s.save(p.r.IntN(8) > 0)
			}
		}
	}
	return course, met
}

const (
	toEpsilon = 1e-3 // relative to the initial distance: far above float32 rounding
	rounding  = 1.001
)

// trials yields runs and their undisturbed twins.
func trials(
	t *testing.T, quadratics uint64, everywhere bool,
	judge func(seed uint64, b itercost.Bound, epsilon float64, y, x itercost.Reach),
) {
	t.Logf("seeds 1 to %d", quadratics)
	failures, costly := 0, 0
	for seed := uint64(1); seed <= quadratics; seed++ {
		p, twin := someProgram(seed, everywhere), someProgram(seed, everywhere)
		start := p.distance()
		epsilon, m := start*toEpsilon, p.mishaps()
		twin.mishaps() // to draw the same random numbers
		clocks := 60 + int(math.Log(1e5)/-math.Log(p.c))
		y, met := p.run(t, clocks, m)
		x, _ := twin.run(t, clocks, nil)
		failures += len(met)
		bound, err1 := itercost.NewBound(p.c, start, met)
		disturbed, err2 := itercost.Kappa(y, epsilon)
		undisturbed, err3 := itercost.Kappa(x, epsilon)
		if err1 != nil || err2 != nil || err3 != nil || disturbed.Censored || undisturbed.Censored {
			t.Fatalf("seed %d: %v %v %v, κ %v and %v", seed, err1, err2, err3, disturbed, undisturbed)
		}
		judge(seed, bound, epsilon, disturbed, undisturbed)
		if disturbed.Clock > undisturbed.Clock {
			costly++
		}
	}
	if failures < int(quadratics) || costly < int(quadratics)/4 {
		t.Errorf("only %d failures, and only %d runs in which they had a cost", failures, costly)
	}
}

// TestKappaOfShards: shards that are lost up to five times per run and restart from their running checkpoints never
// cost more than the bound for the norms that occurred.
func TestKappaOfShards(t *testing.T) {
	trials(t, 1000, false, func(seed uint64, b itercost.Bound, epsilon float64, y, _ itercost.Reach) {
		if most, err := b.Kappa(epsilon); err != nil || y.Clock > most+1 {
			t.Errorf("seed %d: κ is %d, but its bound is %d (%v)", seed, y.Clock, most, err)
		}
	})
}

// TestIotaOfShards: under f(x) = c·x + b, which contracts at c everywhere, the neat bound of ι also holds.
func TestIotaOfShards(t *testing.T) {
	trials(t, 300, true, func(seed uint64, b itercost.Bound, _ float64, y, x itercost.Reach) {
		if cost := y.Clock - x.Clock; float64(cost) > math.Ceil(b.SimpleCost())+1 {
			t.Errorf("seed %d: the cost is %d, but its bound is %v", seed, cost, b.SimpleCost())
		}
	})
}

// TestNeatBoundOfShards: if the undisturbed run contracts faster than c, the neat bound does not hold, because a shard
// that converges fast is combined with one that does not.
func TestNeatBoundOfShards(t *testing.T) {
	part := func(s int, value float32) *savedShard {
		spec := perdure.TableSpec{Name: "x", Rows: 1, Dim: 1, Rule: perdure.Rule{Kind: perdure.RuleAdd}}
		sh := &savedShard{
			part: table.New(spec, 0, 1, 0, 1), at: s, disk: map[string][]float32{}, has: map[string][]bool{},
			ledger: New(Settings{Selector: perdure.SelectRound, Share: 1, Shard: perdure.ShardID(s)}),
		}
		sh.part.Values(0, 1)[0] = value
		return sh
	}
	some := func() *program {
		p := &program{
			r: rand.New(rand.NewPCG(1, 1)), c: 0.9, factors: []float64{0.1, 0.9}, optimum: []float64{0, 0},
			shards: []*savedShard{part(0, 1), part(1, 1)},
		}
		p.shards[1].save(true) // it is at its optimum then
		p.shards[1].part.Values(0, 1)[0] = 0
		return p
	}
	const epsilon = 2e-6
	p := some()
	y, met := p.run(t, 200, mishaps{0: {1}})
	x, _ := some().run(t, 200, nil)
	bound, err1 := itercost.NewBound(p.c, 1, met)
	disturbed, err2 := itercost.Kappa(y, epsilon)
	undisturbed, err3 := itercost.Kappa(x, epsilon)
	most, err4 := bound.Kappa(epsilon)
	if err1 != nil || err2 != nil || err3 != nil || err4 != nil {
		t.Fatal(err1, err2, err3, err4)
	}
	if cost := disturbed.Clock - undisturbed.Clock; cost < 110 || bound.SimpleCost() > 7 || disturbed.Clock > most+1 {
		t.Errorf("the cost is %d, the neat bound %v, κ is %d of at most %d", cost, bound.SimpleCost(), disturbed.Clock,
			most)
	}
}

// TestPartialOfShards: from the same running checkpoint, restoring only the lost shards never causes a larger
// perturbation than restoring all. Over all sets of lost shards, each lost with probability p, the mean square is
// p‖δ‖².
func TestPartialOfShards(t *testing.T) {
	const seeds = 200
	t.Logf("seeds 1 to %d", seeds)
	for seed := uint64(1); seed <= seeds; seed++ {
		p := someProgram(seed, false)
		p.run(t, 3+p.r.IntN(20), nil)
		var squares []float64 // ‖δ‖² of each shard
		all := 0.0
		for _, s := range p.shards {
			values, _ := s.saved()
			squares = append(squares, table.SquaredDistance(values, s.values()))
			all += squares[len(squares)-1]
		}
		chance, mean := p.r.Float64(), 0.0
		for set := range 1 << len(p.shards) {
			prob, part := 1.0, 0.0
			for s := range p.shards {
				if set>>s&1 == 1 {
					prob, part = prob*chance, part+squares[s]
				} else {
					prob *= 1 - chance
				}
			}
			if mean += prob * part; part > all*rounding {
				t.Fatalf("seed %d: ‖δ'‖² is %v, but ‖δ‖² is %v", seed, part, all)
			}
		}
		if want := chance * all; math.Abs(mean-want) > 1e-9*(1+want) {
			t.Fatalf("seed %d: E‖δ'‖² is %v, but p‖δ‖² is %v", seed, mean, want)
		}
		// The shards' own computation agrees.
		square := p.shards[0].lose()
		if norm := math.Sqrt(squares[0]); math.Abs(math.Sqrt(square)-norm) > 1e-6*(1+norm) {
			t.Fatalf("seed %d: ‖δ'‖ of a lost shard is %v, want %v", seed, math.Sqrt(square), norm)
		}
	}
}

package lda

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/dataset"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/run/workload/api"
)

func options(topics int, fraction float64) Options {
	o := Options{Seed: 1, TopicModel: Defaults}
	o.Topics, o.ClockFraction = topics, fraction
	return o
}

func newPlain(t testing.TB, c *dataset.Corpus, o Options) *Plain {
	t.Helper()
	p, err := NewPlain(c, o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// BenchmarkPlain measures tokens per second.
func BenchmarkPlain(b *testing.B) {
	c := dataset.SyntheticCorpus(2000)
	p := newPlain(b, c, options(100, 1))
	p.Run(20)
	tokens := 0
	for b.Loop() {
		n, _ := p.Run(1)
		tokens += n
	}
	b.ReportMetric(float64(tokens)/b.Elapsed().Seconds(), "tokens/s")
}

func TestPlainLearns(t *testing.T) {
	c := dataset.SyntheticCorpus(500)
	p := newPlain(t, c, options(20, 0.5))
	p.Run(p.ClocksPerPass())
	first := p.HeldOut()
	p.Run(30 * p.ClocksPerPass())
	if last := p.HeldOut(); !(last < first-0.2) || Perplexity(last) > 1500 {
		t.Errorf("a loss of %v after a pass, of %v after 31", first, last)
	}
	checkCounts(t, p)
}

// checkCounts compares a plain trainer's counts with its assignments.
func checkCounts(t *testing.T, p *Plain) {
	t.Helper()
	total := make([]int32, p.Topics)
	byWord := map[move]int32{}
	for i, topics := range p.topics {
		for j, w := range p.data.Train.Document(i) {
			total[topics[j]]++
			byWord[move{w, int32(topics[j])}]++
		}
	}
	for k, n := range total {
		if p.s.total[k] != n {
			t.Fatalf("topic %d has %d tokens, %d are assigned to it", k, p.s.total[k], n)
		}
	}
	for w := range p.data.Size {
		last := int32(math.MaxInt32)
		for _, c := range p.s.of(int32(w)) {
			key := move{int32(w), c.topic}
			if c.count != byWord[key] || c.count > last {
				t.Fatalf("word %d, topic %d: a count of %d after %d, %d are assigned", w, c.topic, c.count, last,
					byWord[key])
			}
			last = c.count
			delete(byWord, key)
		}
	}
	if len(byWord) > 0 {
		t.Fatalf("%d counts are missing", len(byWord))
	}
}

var _ api.Workload = (*program)(nil)

// memory holds tables of a single process. Updates become visible at the end of the clock.
type memory struct {
	specs   map[string]perdure.TableSpec
	rows    map[string][]float32
	pending []func()
	sent    map[string]int // number of rows sent, by table
}

func newMemory(specs []perdure.TableSpec) *memory {
	m := &memory{specs: map[string]perdure.TableSpec{}, rows: map[string][]float32{}, sent: map[string]int{}}
	for _, s := range specs {
		m.specs[s.Name], m.rows[s.Name] = s, make([]float32, int(s.Rows)*s.Dim)
	}
	return m
}

func (m *memory) tick() {
	for _, f := range m.pending {
		f()
	}
	m.pending = m.pending[:0]
}

func run(first perdure.RowID, n int) (list []perdure.RowID) {
	for i := range n {
		list = append(list, first+perdure.RowID(i))
	}
	return list
}

func (m *memory) Get(ctx context.Context, name string, first perdure.RowID, dst []float32) error {
	return m.GetRows(ctx, name, run(first, len(dst)/m.specs[name].Dim), dst)
}

func (m *memory) GetRows(_ context.Context, name string, rows []perdure.RowID, dst []float32) error {
	dim := m.specs[name].Dim
	for i, row := range rows {
		copy(dst[i*dim:(i+1)*dim], m.rows[name][int(row)*dim:])
	}
	return nil
}

func (m *memory) Inc(ctx context.Context, name string, first perdure.RowID, delta []float32) error {
	return m.IncRows(ctx, name, run(first, len(delta)/m.specs[name].Dim), delta)
}

func (m *memory) IncRows(_ context.Context, name string, rows []perdure.RowID, delta []float32) error {
	spec, rows, delta := m.specs[name], slices.Clone(rows), slices.Clone(delta)
	m.sent[name] += len(rows)
	m.pending = append(m.pending, func() {
		for i, row := range rows {
			at := int(row) * spec.Dim
			table.Apply(spec.Rule, spec.Dim, m.rows[name][at:at+spec.Dim], delta[i*spec.Dim:(i+1)*spec.Dim], 0)
		}
	})
	return nil
}

func open(t testing.TB, slots int, change func(*api.Params)) *program {
	t.Helper()
	p := api.Params{
		Seed: 1, Slots: slots, Data: "synthetic:300", Rule: perdure.Rule{Kind: perdure.RuleSGD},
		Topics: options(20, 0.5).TopicModel,
	}
	if change != nil {
		change(&p)
	}
	w, err := Open(p)
	if err != nil {
		t.Fatal(err)
	}
	return w.(*program)
}

func step(t testing.TB, w api.Workload, m *memory, share api.Share, clock perdure.Clock) api.Metrics {
	t.Helper()
	metrics, err := w.Step(t.Context(), m, share, clock)
	if err != nil {
		t.Fatal(err)
	}
	return metrics
}

// consistent checks that the counts in tables match their assignments.
func consistent(t testing.TB, p *program, m *memory) {
	t.Helper()
	if name := unfit(p, m); name != "" {
		t.Fatalf("table %s does not have the counts of the assignments", name)
	}
}

// unfit returns the table whose counts do not match the assignments, or "".
func unfit(p *program, m *memory) string {
	want := newMemory(p.Tables())
	for doc := range p.data.Train.Len() {
		for i, w := range p.data.Train.Document(doc) {
			if k := int(m.rows[Assignments][p.rows[doc]*rowTokens+i]) - 1; k >= 0 {
				want.rows[WordTopic][int(w)*p.Topics+k]++
				want.rows[Totals][k]++
			}
		}
	}
	for _, name := range []string{WordTopic, Totals} {
		if !slices.Equal(m.rows[name], want.rows[name]) {
			return name
		}
	}
	return ""
}

// TestOneSlot checks that a job with one slot computes the same as the plain loop.
func TestOneSlot(t *testing.T) {
	w := open(t, 1, nil)
	m := newMemory(w.Tables())
	p := newPlain(t, w.data, w.Options)
	p.Sorted = true
	for clock := range perdure.Clock(7) {
		got := step(t, w, m, api.Share{Of: 1}, clock)
		m.tick()
		tokens, loss := p.Run(1)
		if got.Samples != tokens || got.TrainLoss != loss {
			t.Fatalf("clock %d: %d tokens and a loss of %v, the plain loop has %d and %v", clock, got.Samples,
				got.TrainLoss, tokens, loss)
		}
	}
	consistent(t, w, m)
	e, err := w.Evaluate(t.Context(), m)
	if err != nil || e.Loss != p.HeldOut() {
		t.Errorf("judged as %v, %v, the plain loop has %v", e.Loss, err, p.HeldOut())
	}
}

// TestAnyProcess checks that a slot's clock has the same result in every process. It does not matter whether the
// process computed earlier clocks, whether others did part of the work meanwhile, or whether the clock is repeated.
func TestAnyProcess(t *testing.T) {
	w := open(t, 3, nil)
	calm, stormy := newMemory(w.Tables()), newMemory(w.Tables())
	all := []*program{w, open(t, 3, nil), open(t, 3, nil)}
	random := rand.New(rand.NewPCG(1, 1))
	of := 3
	for clock := range perdure.Clock(12) {
		if clock == 5 || clock == 8 { // slots join and leave
			of = 7 - of
		}
		for rank := range of {
			share := api.Share{Rank: rank, Of: of}
			step(t, open(t, 3, nil), calm, share, clock)
			if random.IntN(3) == 0 { // computed, then discarded
				n := len(stormy.pending)
				step(t, all[random.IntN(3)], stormy, share, clock)
				stormy.pending = stormy.pending[:n]
			}
			step(t, all[min(rank, random.IntN(3))], stormy, share, clock)
		}
		calm.tick()
		stormy.tick()
		consistent(t, w, calm)
	}
	for name, rows := range calm.rows {
		if !slices.Equal(rows, stormy.rows[name]) {
			t.Errorf("table %s is another one", name)
		}
	}
}

// TestSentAssignments checks that only rows of assignments with a changed token are sent, or all rows if they may be
// lost.
func TestSentAssignments(t *testing.T) {
	for _, lossy := range []bool{false, true} {
		w := open(t, 1, func(p *api.Params) { p.Lossy = lossy })
		m := newMemory(w.Tables())
		all := w.rows[len(w.rows)-1]
		for clock := range perdure.Clock(40) { // 20 passes
			before, sent := slices.Clone(m.rows[Assignments]), m.sent[Assignments]
			step(t, w, m, api.Share{Of: 1}, clock)
			m.tick()
			changed := 0
			for i := range all {
				from, to := i*rowTokens, (i+1)*rowTokens
				if !slices.Equal(before[from:to], m.rows[Assignments][from:to]) {
					changed++
				}
			}
			if got := m.sent[Assignments] - sent; !lossy && got != changed {
				t.Fatalf("clock %d: %d rows were sent, %d have changed", clock, got, changed)
			}
		}
		consistent(t, w, m)
		if got := m.sent[Assignments]; (got == 20*all) != lossy {
			t.Errorf("lossy %v: %d rows were sent in 20 passes over %d", lossy, got, all)
		}
	}
}

func TestOptions(t *testing.T) {
	c := dataset.SyntheticCorpus(30)
	for want, change := range map[string]func(*Options){
		"number of topics 1":         func(o *Options) { o.Topics = 1 },
		"number of topics 9000":      func(o *Options) { o.Topics = 9000 },
		"alpha 0":                    func(o *Options) { o.Alpha = 0 },
		"alpha NaN":                  func(o *Options) { o.Alpha = math.NaN() },
		"beta -1":                    func(o *Options) { o.Beta = -1 },
		"clock fraction 0":           func(o *Options) { o.ClockFraction = 0 },
		"clock fraction 1.5":         func(o *Options) { o.ClockFraction = 1.5 },
		"100 clocks is too long for": func(o *Options) { o.ClockFraction = 0.01 },
	} {
		o := options(20, 0.5)
		change(&o)
		if _, err := NewPlain(c, o); !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// FuzzSampler checks the sampler's counts and sums against their definitions.
func FuzzSampler(f *testing.F) {
	f.Add(uint64(1), uint8(5), uint8(40))
	f.Fuzz(func(t *testing.T, seed uint64, topics, tokens uint8) {
		o := options(int(topics%60)+2, 1)
		s := newSampler(&o, 50)
		room := make([]int, 50)
		for i := range room {
			room[i] = o.Topics
		}
		s.wordCounts = newWordCounts(room)
		words, assigned := make([]int32, int(tokens)+1), unassigned(int(tokens)+1)
		for i := range words {
			words[i] = int32(api.Mix(seed+uint64(i)) % 50)
		}
		for pass := range uint64(4) {
			s.start()
			s.document(words, assigned, seed+pass)
			count := map[move]int32{}
			for i, w := range words {
				count[move{w, int32(assigned[i])}]++
			}
			for w := range int32(50) {
				for _, c := range s.of(w) {
					if count[move{w, c.topic}] != c.count {
						t.Fatalf("word %d has %d tokens of topic %d, not %d", w, c.count, c.topic,
							count[move{w, c.topic}])
					}
					delete(count, move{w, c.topic})
				}
			}
			if len(count) > 0 || len(s.topics) > 0 || len(s.missing) > 0 {
				t.Fatalf("%d counts are missing; %d topics of a document that was left", len(count), len(s.topics))
			}
		}
	})
}

// TestWeights compares the frequencies of draws with the weights of the formula.
func TestWeights(t *testing.T) {
	o := options(4, 1)
	o.Alpha, o.Beta = 0.3, 0.2
	words := []int32{0, 0, 1, 2, 0, 1}
	counts := map[int16]float64{}
	const draws = 40_000
	for i := range uint64(draws) {
		s := newSampler(&o, 3)
		s.wordCounts = newWordCounts([]int{4, 4, 4})
		assigned := []int16{0, 1, 1, 2, 0, -1}
		for j, k := range assigned[:5] {
			s.total[k]++
			if at := slices.IndexFunc(s.of(words[j]), func(c cell) bool { return c.topic == int32(k) }); at >= 0 {
				s.add(words[j], at)
			} else {
				s.addFirst(words[j], int32(k))
			}
		}
		s.start()
		s.enter(assigned)
		cells, sum := s.of(1), 0.0
		for _, c := range cells {
			sum += s.factor[c.topic] * float64(c.count)
		}
		x := float64(api.Mix(i+1)>>11) / (1 << 53) * (sum + s.local + s.smooth)
		counts[int16(s.draw(1, cells, x, sum, s.local))]++
	}
	own, word, total := []float64{2, 2, 1, 0}, []float64{0, 1, 0, 0}, []float64{2, 2, 1, 0}
	weights, all := make([]float64, 4), 0.0
	for k := range weights {
		weights[k] = (o.Alpha + own[k]) * (o.Beta + word[k]) / (3*o.Beta + total[k])
		all += weights[k]
	}
	for k, w := range weights {
		if want := w / all; math.Abs(counts[int16(k)]/draws-want) > 0.01 {
			t.Errorf("topic %d is drawn with a share of %.3f, want %.3f", k, counts[int16(k)]/draws, want)
		}
	}
}

// BenchmarkStep is BenchmarkPlain with tables in memory: it adds the cost of reading, counting and writing rows.
func BenchmarkStep(b *testing.B) {
	w := open(b, 1, func(p *api.Params) {
		p.Data, p.Topics = "synthetic:20000", options(100, 0.5).TopicModel
	})
	m := newMemory(w.Tables())
	clock := perdure.Clock(0)
	for range 20 {
		step(b, w, m, api.Share{Of: 1}, clock)
		m.tick()
		clock++
	}
	tokens := 0
	for b.Loop() {
		tokens += step(b, w, m, api.Share{Of: 1}, clock).Samples
		b.StopTimer()
		m.tick()
		clock++
		b.StartTimer()
	}
	b.ReportMetric(float64(tokens)/b.Elapsed().Seconds(), "tokens/s")
}

// TestTell checks that findings list topics by their most frequent words, largest topic first.
func TestTell(t *testing.T) {
	w := open(t, 1, func(p *api.Params) { p.Topics.Topics = 3 })
	m := newMemory(w.Tables())
	counts := m.rows[WordTopic]
	for word, n := range map[int]float32{7: 5, 2: 9, 30: 5, 1: -4} {
		counts[word*3+1] = n
	}
	for word := range 40 {
		counts[word*3+2] = float32(1 + word%20)
	}
	lines, err := w.Findings(t.Context(), m)
	if err != nil || len(lines) != 4 || !strings.HasPrefix(lines[0], "held-out perplexity ") {
		t.Fatalf("%q, %v", lines, err)
	}
	for i, want := range []string{
		"topic 2 (95.7 %): word19 word39 word18 word38 word17 word37 word16 word36 word15 word35",
		"topic 1 (4.3 %): word2 word7 word30", "topic 0 (0.0 %): ",
	} {
		if lines[i+1] != want {
			t.Errorf("%q, want %q", lines[i+1], want)
		}
	}
}

// HeldOut returns the loss of the held-out documents.
func (p *Plain) HeldOut() float64 {
	rows := make([]float32, len(p.held.list)*p.Topics)
	for i, w := range p.held.list {
		for _, c := range p.s.of(int32(w)) {
			rows[i*p.Topics+int(c.topic)] = float32(c.count)
		}
	}
	total := make([]float32, p.Topics)
	for k, n := range p.s.total {
		total[k] = float32(n)
	}
	return p.held.loss(p.model, rows, total)
}

// ClocksPerPass returns the number of clocks that process all documents once.
func (p *Plain) ClocksPerPass() perdure.Clock { return perdure.Clock(len(p.parts)) }

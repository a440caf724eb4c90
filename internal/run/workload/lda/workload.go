package lda

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/dataset"
	"github.com/perdure/perdure/internal/run/workload/api"
)

// Names of the workload and of its tables.
const (
	Name        = "lda"
	WordTopic   = "word_topic"
	Totals      = "topics"
	Assignments = "assignments"
)

// DefaultData is the default corpus.
const DefaultData = dataset.DefaultCorpus

// program implements a workload for a model.
type program struct {
	*model
	params api.Params
	s      *sampler

	topics            [][]int16 // by document: topics of its tokens that this process has drawn or read; nil: none
	known             []int     // by document: the value of stay at that time
	assignmentVersion int       // incremented when known topics may have become wrong
	next              perdure.Clock
	share             api.Share

	*neededWords                      // of the clock
	kept         map[int]*neededWords // by clock of a pass: those of earlier ones
	moved        []perdure.RowID      // a batch of words whose rows have changed
	deltas       []float32            // the changes of their rows
	got          []float32            // rows of the needed words, as read
	marks        bitset               // marks values of got that were not 0 when read
	filled       bool                 // got was passed to the sampler
	sum          []float32            // by topic: sum of the positive values of got
	total        []float32            // by topic: n(k)
	was          []int16              // topics of a document's tokens before sampling
	own          []float32            // rebuild, recount: counted tokens by index and topic, then the rows' differences
	all          []float32            // recount: the table of assignments as read
	docs         docRows
}

// docRows lists rows of the table of assignments.
type docRows struct {
	list   []perdure.RowID
	values []float32
}

// Open loads the data and returns the workload.
func Open(p api.Params) (api.Workload, error) {
	if r := p.Rule; r.Kind != perdure.RuleSGD || r.Rate != 0 || r.Decay != 0 || r.ClipValue != 0 || r.ClipNorm != 0 ||
		r.Schedule != "" && r.Schedule != perdure.ScheduleConst {
		return nil, perdure.Usagef("lda counts topics and has no update rule or learning rate; remove these options")
	}
	if p.Slots < 1 || p.Slots > perdure.MaxSlots {
		return nil, perdure.Usagef("invalid number of workers %d; choose 1 to %d", p.Slots, perdure.MaxSlots)
	}
	data, err := dataset.OpenCorpus(p.Data)
	if err != nil {
		return nil, err
	}
	if p.Topics.Rebuild && !p.Lossy {
		p.Topics.Rebuild = false // rows are never lost
	}
	m, err := newModel(data, Options{Seed: p.Seed, TopicModel: p.Topics})
	if err != nil {
		return nil, err
	}
	w := &program{
		model: m, params: p, s: newSampler(&m.Options, data.Size), topics: make([][]int16, data.Train.Len()),
		known: make([]int, data.Train.Len()), total: make([]float32, p.Topics.Topics), next: -1,
		sum: make([]float32, p.Topics.Topics), kept: map[int]*neededWords{},
	}
	return w, nil
}

// Describe implements api.Workload.
func (p *program) Describe() api.Description {
	return api.Description{
		Name: Name, Data: p.data.Name, Train: len(p.data.Train.Tokens), Test: p.held.n,
		Parameters: (p.data.Size+1)*p.Topics + p.rows[len(p.rows)-1]*rowTokens, DataBytes: p.data.Bytes(),
	}
}

// Digest implements api.Workload.
func (p *program) Digest() string { return p.data.Digest() }

// Constants implements api.Workload: a word's share in a topic is (n(w,k) + beta) / (n(k) + words·beta). If the
// vocabulary is known, line i of word_topic.names is the word of row i of word_topic.
func (p *program) Constants() map[string]string {
	text := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	c := map[string]string{
		"alpha": text(p.Alpha), "beta": text(p.Beta), "words": strconv.Itoa(p.data.Size),
		"topics": strconv.Itoa(p.Topics),
	}
	if p.data.Words != nil {
		list := make([]string, p.data.Size) // the vocabulary may be shorter
		for i := range list {
			list[i] = p.data.Word(i)
		}
		c[WordTopic+".names"] = strings.Join(list, "\n")
	}
	return c
}

// Tables implements api.Workload.
func (p *program) Tables() []perdure.TableSpec {
	add := perdure.Rule{Kind: perdure.RuleAdd}
	counts, topics := perdure.DistanceTV, perdure.DistanceNone // processes remember their documents' topics
	if p.OnTable {
		topics = perdure.DistanceLabels
		if p.recounts() { // counts are recomputed from the assignments
			counts = perdure.DistanceNone
		}
	}
	specs := []perdure.TableSpec{
		{Name: WordTopic, Rows: int64(p.data.Size), Dim: p.Topics, Rule: add, Distance: counts},
		{Name: Totals, Rows: 1, Dim: p.Topics, Rule: add, Whole: true, Distance: counts},
		{
			Name: Assignments, Rows: int64(p.rows[len(p.rows)-1]), Dim: rowTokens,
			Rule: perdure.Rule{Kind: perdure.RuleSet}, Distance: topics,
		},
	}
	if p.params.Sparse {
		specs[0].Sparse, specs[0].Rows = true, 0
		specs[2].Sparse, specs[2].Rows = true, 0
	}
	return specs
}

// Memory implements api.Stateful: within one pass a process draws the topics of all its documents.
func (p *program) Memory() perdure.Clock {
	if p.OnTable {
		return 0
	}
	return perdure.Clock(len(p.parts))
}

// Step implements api.Workload.
func (p *program) Step(
	ctx context.Context, t api.Tables, share api.Share, clock perdure.Clock,
) (api.Metrics, error) {
	if err := share.Validate(clock); err != nil {
		return api.Metrics{}, fmt.Errorf("lda: %w", err)
	}
	if clock != p.next || share != p.share || p.OnTable {
		p.assignmentVersion++
	}
	p.next, p.share = -1, share // until the clock is done
	_, part := p.passOf(clock)
	docs := p.documents(part, share)
	tokens := 0
	if len(docs) > 0 || p.recounts() {
		var err error
		p.neededWords = p.wordsOf(part, docs)
		if tokens, err = p.clock(ctx, t, docs, clock); err != nil {
			return api.Metrics{}, err
		}
	}
	p.next = clock + 1
	m := api.Metrics{TrainLoss: math.NaN(), TrainRMSE: math.NaN(), Samples: tokens}
	if tokens > 0 {
		m.TrainLoss = -p.s.logs.value() / float64(tokens)
	}
	return m, nil
}

// clock resamples the topics of some documents.
func (p *program) clock(
	ctx context.Context, t api.Tables, docs []int32, clock perdure.Clock,
) (tokens int, err error) {
	pass, part := p.passOf(clock)
	if err := p.prepare(ctx, t, docs, part); err != nil {
		return 0, err
	}
	p.fill()
	p.s.start()
	p.docs.list, p.docs.values = p.docs.list[:0], p.docs.values[:0]
	for _, doc := range docs {
		words := p.data.Train.Document(int(doc))
		if !p.params.Lossy {
			p.was = append(p.was[:0], p.topics[doc]...)
		}
		p.s.document(words, p.topics[doc], p.stateOf(doc, pass))
		p.docs.note(p.model, doc, p.was, p.topics[doc], p.params.Lossy)
		tokens += len(words)
		if 4*len(p.docs.values) >= writeBytes {
			if err := p.docs.write(ctx, t); err != nil {
				return 0, err
			}
		}
	}
	return tokens, p.write(ctx, t)
}

// prepare reads the rows that a clock needs and repairs them if rows were lost.
func (p *program) prepare(ctx context.Context, t api.Tables, docs []int32, part int) error {
	if p.recounts() {
		if err := p.read(ctx, t); err != nil {
			return err
		}
		err := p.recount(ctx, t, part)
		p.markCounts() // they now hold the recomputed counts
		return err
	}
	if err := p.learn(ctx, t, docs); err != nil {
		return err
	}
	if err := p.read(ctx, t); err != nil {
		return err
	}
	if p.params.Lossy {
		if err := p.clampNegatives(ctx, t); err != nil {
			return err
		}
	}
	if p.Rebuild {
		return p.rebuild(ctx, t)
	}
	return nil
}

// learn reads the topics of documents that this process does not know.
func (p *program) learn(ctx context.Context, t api.Tables, docs []int32) error {
	p.docs.list = p.docs.list[:0]
	for _, doc := range docs {
		if p.known[doc] != p.assignmentVersion || p.topics[doc] == nil {
			p.docs.add(p.model, doc)
		}
	}
	if len(p.docs.list) == 0 {
		return nil
	}
	if err := p.docs.get(ctx, t); err != nil {
		return err
	}
	at := 0
	for _, doc := range docs {
		if p.known[doc] == p.assignmentVersion && p.topics[doc] != nil {
			continue
		}
		n := len(p.data.Train.Document(int(doc)))
		if p.topics[doc] == nil {
			p.topics[doc] = unassigned(n)
		}
		for i := range p.topics[doc] {
			// A lost row has its table's initial value or an earlier value.
			p.topics[doc][i] = p.topicOf(p.docs.values[at+i])
		}
		at += (p.rows[doc+1] - p.rows[doc]) * rowTokens
		p.known[doc] = p.assignmentVersion
	}
	return nil
}

// add lists the rows of a document.
func (d *docRows) add(m *model, doc int32) {
	for row := m.rows[doc]; row < m.rows[doc+1]; row++ {
		d.list = append(d.list, perdure.RowID(row))
	}
	n := len(d.list) * rowTokens
	d.values = slices.Grow(d.values[:0], n)[:n]
}

// note lists the rows of a document in which a token's topic changed. The other rows are up to date in the table: this
// process knows topics only from reading them or from a finished clock, and it reads them again when it repeats a
// clock. If rows may be lost, all rows are listed, so that a lost row is restored within a pass.
func (d *docRows) note(m *model, doc int32, was, now []int16, all bool) {
	for at := 0; at < len(now); at += rowTokens {
		to := min(at+rowTokens, len(now))
		if !all && slices.Equal(was[at:to], now[at:to]) {
			continue
		}
		d.list = append(d.list, perdure.RowID(m.rows[doc]+at/rowTokens))
		n := len(d.values)
		d.values = slices.Grow(d.values, rowTokens)[:n+rowTokens]
		clear(d.values[n:])
		for i, k := range now[at:to] {
			d.values[n+i] = float32(k + 1)
		}
	}
}

// write writes the listed rows and clears the list.
func (d *docRows) write(ctx context.Context, t api.Tables) error {
	if len(d.list) == 0 {
		return nil
	}
	err := t.IncRows(ctx, Assignments, d.list, d.values)
	d.list, d.values = d.list[:0], d.values[:0]
	return err
}

func (d *docRows) get(ctx context.Context, t api.Tables) error {
	return t.GetRows(ctx, Assignments, d.list, d.values)
}

// read reads the counts that the clock needs.
func (p *program) read(ctx context.Context, t api.Tables) error {
	n := len(p.list) * p.Topics
	p.got = slices.Grow(p.got[:0], n)[:n]
	if err := p.getWords(ctx, t); err != nil {
		return err
	}
	p.markCounts()
	return t.Get(ctx, Totals, 0, p.total)
}

// markCounts marks the counts that were read or have changed since.
func (p *program) markCounts() {
	p.marks.setNonzero(p.got)
	p.filled = false
}

// sumRows counts the tokens of each topic from the words' rows, because the totals may be of another time than the
// rows.
func sumRows(total, rows []float32) {
	var m bitset
	m.setNonzero(rows)
	m.sum(total, rows)
}

// fill passes the counts that were read to the sampler.
func (p *program) fill() {
	for k, v := range p.total {
		p.s.total[k] = int32(v)
	}
	if !p.filled {
		p.fillWords()
	}
}

// fillWords passes the words' counts to the sampler and adds up the positive ones by topic. It skips negative counts,
// and reports whether there are any.
func (p *program) fillWords() (below bool) {
	p.filled = true
	clear(p.sum)
	p.s.wordCounts.reset(p.data.Size)
	for i, word := range p.list {
		p.s.wordCounts.addEmpty(int(word))
		below = p.s.wordCounts.append(p.got, p.marks, i*p.Topics, p.sum, int(p.tokens[i])) || below
	}
	p.s.wordCounts.addEmpty(p.data.Size)
	return below
}

// neededWords holds the words of some documents.
type neededWords struct {
	share  api.Share
	list   []perdure.RowID // increasing
	place  []int32         // by word: its index in list, if it is in list
	tokens []int32         // by index: number of the word's tokens in these documents
}

// maxCachedClocks is the max number of clocks of a pass whose words are cached.
const maxCachedClocks = 8

// wordsOf returns the words of the documents of a clock.
func (p *program) wordsOf(part int, docs []int32) *neededWords {
	if n := p.kept[part]; n != nil && n.share == p.share {
		return n
	}
	n := &neededWords{share: p.share, place: make([]int32, p.data.Size)}
	for _, doc := range docs {
		for _, w := range p.data.Train.Document(int(doc)) {
			n.place[w]++
		}
	}
	for w, tokens := range n.place {
		if tokens > 0 || p.params.Lossy { // otherwise the totals cannot be counted
			n.place[w] = int32(len(n.list))
			n.list, n.tokens = append(n.list, perdure.RowID(w)), append(n.tokens, tokens)
		}
	}
	if len(p.parts) <= maxCachedClocks {
		p.kept[part] = n
	}
	return n
}

// getWords reads the rows of the words, as one run if they are consecutive.
func (p *program) getWords(ctx context.Context, t api.Tables) error {
	if n := len(p.list); p.list[n-1]-p.list[0] == perdure.RowID(n-1) {
		return t.Get(ctx, WordTopic, p.list[0], p.got)
	}
	return t.GetRows(ctx, WordTopic, p.list, p.got)
}

// reset removes all words and reserves capacity for n words.
func (w *wordCounts) reset(n int) {
	w.starts, w.used = append(slices.Grow(w.starts[:0], n+1), 0), slices.Grow(w.used[:0], n)
	w.changed = slices.Grow(w.changed[:0], n)[:n]
	clear(w.changed)
}

// addEmpty adds empty words for the words before one.
func (w *wordCounts) addEmpty(to int) {
	for len(w.used) < to {
		w.used, w.starts = append(w.used, 0), append(w.starts, w.starts[len(w.used)])
	}
}

// append adds a word with the counts of its topics from values, and reserves capacity for the topics of further tokens.
// It adds the positive counts to each topic's sum, and reports whether any count is negative.
func (w *wordCounts) append(values []float32, m bitset, from int, sum []float32, tokens int) (below bool) {
	start, n := w.starts[len(w.used)], len(sum)
	w.cells = slices.Grow(w.cells[:start], n)
	cells := w.cells[start:start]
	for at := m.next(from, from+n); at < from+n; at = m.next(at+1, from+n) {
		v := values[at]
		if v >= 1 {
			cells = append(cells, cell{int32(at - from), int32(v)})
		}
		if v > 0 {
			sum[at-from] += v
		} else if v < 0 {
			below = true
		}
	}
	inOrder(cells)
	end := start + min(n, len(cells)+tokens)
	w.cells, w.used, w.starts = w.cells[:end], append(w.used, int32(len(cells))), append(w.starts, end)
	return below
}

// fewCells is the length up to which insertion sort is faster.
const fewCells = 16

// inOrder sorts a word's topics by decreasing number of tokens.
func inOrder(cells []cell) {
	if len(cells) <= fewCells {
		for i := 1; i < len(cells); i++ {
			c, j := cells[i], i
			for ; j > 0 && byTokens(cells[j-1], c) > 0; j-- {
				cells[j] = cells[j-1]
			}
			cells[j] = c
		}
		return
	}
	slices.SortFunc(cells, byTokens)
}

// byTokens compares two topics of a word by decreasing number of tokens.
func byTokens(a, b cell) int {
	if a.count != b.count {
		return int(b.count) - int(a.count)
	}
	return int(a.topic) - int(b.topic)
}

// write adds the changes to the tables.
func (p *program) write(ctx context.Context, t api.Tables) error {
	if err := p.writeWords(ctx, t); err != nil {
		return err
	}
	for k, v := range p.total {
		p.total[k] = float32(p.s.total[k] - int32(v))
	}
	if err := t.Inc(ctx, Totals, 0, p.total); err != nil {
		return err
	}
	return p.docs.write(ctx, t)
}

// writeBytes is the approximate size of the deltas written in one call. They are then still in the processor's cache
// when the table reads them.
const writeBytes = 128 << 10

// writeWords adds the changes of the words' counts, a batch of rows at a time.
func (p *program) writeWords(ctx context.Context, t api.Tables) error {
	missing := p.s.missing
	for _, m := range missing {
		p.s.changed[m.word] = true // a lost token that keeps its topic is counted again
	}
	if p.params.Lossy {
		missing = nil // a lost token must not be subtracted again
	}
	p.moved, p.deltas = p.moved[:0], p.deltas[:0]
	for i, id := range p.list {
		if p.s.changed[id] {
			p.moved, p.deltas = append(p.moved, id), p.change(i, int32(id))
		}
		if len(p.moved) == 0 || i < len(p.list)-1 && 4*len(p.deltas) < writeBytes {
			continue
		}
		for _, m := range missing {
			if row, ok := slices.BinarySearch(p.moved, perdure.RowID(m.word)); ok {
				p.deltas[row*p.Topics+int(m.topic)]--
			}
		}
		if err := t.IncRows(ctx, WordTopic, p.moved, p.deltas); err != nil {
			return err
		}
		p.moved, p.deltas = p.moved[:0], p.deltas[:0]
	}
	return nil
}

// change adds the change of the i-th word's row to the deltas.
func (p *program) change(i int, word int32) (deltas []float32) {
	n := len(p.deltas)
	deltas = slices.Grow(p.deltas, p.Topics)[:n+p.Topics]
	row := deltas[n:]
	clear(row)
	from, end := i*p.Topics, (i+1)*p.Topics
	for at := p.marks.next(from, end); at < end; at = p.marks.next(at+1, end) {
		if v := p.got[at]; v > 0 {
			row[at-from] = -v
		}
	}
	for _, c := range p.s.of(word) {
		row[c.topic] += float32(c.count)
	}
	return deltas
}

// Evaluate implements api.Workload, on held-out documents.
func (p *program) Evaluate(ctx context.Context, t api.Tables) (api.Eval, error) {
	rows, total := make([]float32, len(p.held.list)*p.Topics), make([]float32, p.Topics)
	if err := t.GetRows(ctx, WordTopic, p.held.list, rows); err != nil {
		return api.Eval{}, err
	}
	if err := t.Get(ctx, Totals, 0, total); err != nil {
		return api.Eval{}, err
	}
	if p.params.Lossy {
		all := make([]float32, p.data.Size*p.Topics)
		if err := t.Get(ctx, WordTopic, 0, all); err != nil {
			return api.Eval{}, err
		}
		sumRows(total, all)
	}
	return api.Eval{Loss: p.held.loss(p.model, rows, total), Accuracy: math.NaN(), RMSE: math.NaN()}, nil
}

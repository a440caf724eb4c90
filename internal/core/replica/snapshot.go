package replica

import (
	"encoding/binary"
	"encoding/json"
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/states"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/table"
)

// Snapshot is a replica's whole state at a position of its log, for a replica that lacks it,
// or for a file. First come the words: their size in 8 bytes, JSON, what slots have saved,
// and the parts of the updates that are not applied yet. Then the rows, as a table.Snapshot
// gives them.
type Snapshot struct {
	Words []byte
	Rows  []*table.Snapshot // to be read, and closed, under the lock that guards the replica
	Bytes int64             // of the rows
}

// Life is how far an update log's facts are in a state.
type Life struct {
	Epoch perdure.Epoch // the newest that has begun in the log
	Facts uint64        // of that one, that are in the state
}

// head is the JSON of a snapshot.
type head struct {
	Seq uint64        `json:"seq"`
	Cut perdure.Clock `json:"cut"` // the newest that the shard has gone on after
	// One that it has gone on after, and that is not known to be saved.
	Writing  perdure.Clock     `json:"writing,omitempty"`
	End      perdure.Clock     `json:"end"`
	Named    perdure.Clock     `json:"named,omitempty"`
	Segments []words.Segment   `json:"segments,omitempty"`
	States   []int             `json:"states"` // by slot: bytes that it has saved; -1: nothing
	Tables   []headTable       `json:"tables"`
	Intake   consistency.State `json:"intake"`
	// Of an update log: the newest epoch that has begun in it, and how many facts of
	// that one are in the state.
	Life  perdure.Epoch `json:"life,omitempty"`
	Facts uint64        `json:"facts,omitempty"`
}

type headTable struct {
	Spec perdure.TableSpec `json:"spec"`
	Rows int               `json:"rows"` // that the shard holds
}

// mostSnapped is how many snapshots of a shard there are at most beside an update log: two, and one that is
// being written.
const mostSnapped = 3

// Snapshot takes the state as it is.
func (st *State) Snapshot(life Life) *Snapshot {
	sv := &st.cuts
	h := head{
		Seq: st.rows.seq, Cut: sv.left, Writing: sv.unsaved, End: sv.schedule.End, Named: sv.schedule.Named,
		Segments: sv.segments,
		Intake:   st.intake.State(), Life: life.Epoch, Facts: life.Facts,
	}
	if life.Epoch > 0 {
		st.snapped = append(st.snapped[max(0, len(st.snapped)-mostSnapped+1):], states.Names(st.rows.states))
	}
	var bulk [][]byte
	for _, state := range st.rows.states {
		h.States, bulk = append(h.States, sizeOf(state)), append(bulk, state)
	}
	for _, s := range h.Intake.Slots {
		for _, u := range s.Pending {
			bulk = append(bulk, u.Parts...)
		}
	}
	snap := &Snapshot{}
	for _, p := range st.rows.parts {
		rows := p.Snapshot()
		snap.Rows, snap.Bytes = append(snap.Rows, rows), snap.Bytes+rows.Bytes()
		h.Tables = append(h.Tables, headTable{p.Spec, rows.Rows()})
	}
	b, err := json.Marshal(&h)
	if err != nil { // it is plain data
		panic(fmt.Sprintf("replica: encode a snapshot: %v", err))
	}
	snap.Words = append(binary.LittleEndian.AppendUint64(nil, uint64(len(b))), b...)
	for _, b := range bulk {
		snap.Words = append(snap.Words, b...)
	}
	return snap
}

// sizeOf returns the length of b, -1 of nil.
func sizeOf(b []byte) int {
	if b == nil {
		return -1
	}
	return len(b)
}

// Incoming is a snapshot that is being taken in: rows go straight to where they will lie.
type Incoming struct {
	shard   perdure.ShardID
	job     *perdure.JobSpec
	words   []byte // until they are whole
	head    head
	content Content
	runs    [][]byte // memory of rows that are still to come; none of them is empty
	whole   bool     // its words are
}

// NewIncoming begins to take a shard's snapshot in.
func NewIncoming(job *perdure.JobSpec, shard perdure.ShardID) *Incoming {
	return &Incoming{job: job, shard: shard}
}

// Whole reports whether the words are whole, so that rows follow.
func (in *Incoming) Whole() bool { return in.whole }

// Life is how far the update log's facts are in the snapshot, whose words are whole.
func (in *Incoming) Life() Life { return Life{in.head.Life, in.head.Facts} }

// AddWords takes the next words. The last ones make room for the rows.
func (in *Incoming) AddWords(words []byte, last bool) error {
	in.words = append(in.words, words...)
	if !last {
		return nil
	}
	return in.parse()
}

// Missing are the pieces of memory in which the rows that have not come are to lie, in order.
func (in *Incoming) Missing() [][]byte { return in.runs }

// Filled says that all that was missing lies where it belongs.
func (in *Incoming) Filled() { in.runs = nil }

// take returns the first n bytes of what the words have left.
func (in *Incoming) take(n int) ([]byte, error) {
	if n < 0 || n > len(in.words) {
		return nil, fmt.Errorf("its head ends where %d bytes more are announced", n)
	}
	b := in.words[:n:n]
	in.words = in.words[n:]
	return b, nil
}

// parse reads the words, and makes room for the rows.
func (in *Incoming) parse() error {
	size, err := in.take(8)
	if err != nil {
		return err
	}
	n := binary.LittleEndian.Uint64(size)
	words, err := in.take(int(min(n, uint64(len(in.words)+1))))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(words, &in.head); err != nil {
		return err
	}
	if err := in.takeStates(); err != nil {
		return err
	}
	if err := in.takePending(); err != nil {
		return err
	}
	if len(in.words) > 0 {
		return fmt.Errorf("its head has %d bytes too many", len(in.words))
	}
	in.words, in.whole, in.content.Seq = nil, true, in.head.Seq
	for t := range in.head.Tables {
		if err := in.addPart(&in.head.Tables[t]); err != nil {
			return err
		}
	}
	return nil
}

func (in *Incoming) takeStates() error {
	intake, least := &in.head.Intake, in.job.Slots
	n := len(intake.Slots)
	if n < least || n > perdure.MaxSlots || len(intake.Applied) != n || len(intake.Spans) != n ||
		len(in.head.States) != n {
		return fmt.Errorf("it has %d slots, the job %d", n, least)
	}
	for _, size := range in.head.States {
		var state []byte
		if size >= 0 {
			b, err := in.take(size)
			if err != nil {
				return err
			}
			state = append(make([]byte, 0, size), b...) // it outlives the rest
		}
		in.content.States = append(in.content.States, state)
	}
	return nil
}

func (in *Incoming) takePending() error {
	for i := range in.head.Intake.Slots {
		for j := range in.head.Intake.Slots[i].Pending {
			u := &in.head.Intake.Slots[i].Pending[j]
			for _, size := range u.Sizes {
				if size < 0 {
					u.Parts = append(u.Parts, nil)
					continue
				}
				b, err := in.take(size)
				if err != nil {
					return err
				}
				u.Parts = append(u.Parts, append(make([]byte, 0, size), b...)) // memory of its own, to be used again
			}
		}
	}
	return nil
}

// addPart makes room for a table's rows.
func (in *Incoming) addPart(t *headTable) error {
	if err := t.Spec.Validate(in.job.Shards); err != nil {
		return err
	}
	first, rows := placement.Range(&t.Spec, in.job.Shards, in.shard)
	if t.Spec.Sparse {
		rows = t.Rows
	}
	if t.Rows != rows || rows < 0 || rows > table.MaxStored && t.Spec.Sparse {
		return fmt.Errorf("it has %d rows of table %s", t.Rows, t.Spec.Name)
	}
	p := table.Blank(t.Spec, perdure.TableID(len(in.content.Parts)), in.job.Seed, first, rows)
	in.content.Parts = append(in.content.Parts, p)
	for _, run := range p.Image().Memory() {
		if len(run) > 0 {
			in.runs = append(in.runs, run)
		}
	}
	return nil
}

// AddRows takes the next rows. They may lie already where they belong: then their memory is
// not the caller's any more.
func (in *Incoming) AddRows(body []byte) (inPlace bool, err error) {
	inPlace = len(body) > 0 && len(in.runs) > 0 && &body[0] == &in.runs[0][0]
	for from := body; len(from) > 0; {
		if len(in.runs) == 0 {
			return inPlace, fmt.Errorf("it has %d bytes of rows too many", len(from))
		}
		n := min(len(from), len(in.runs[0]))
		if !inPlace {
			copy(in.runs[0], from[:n])
		}
		from, in.runs[0] = from[n:], in.runs[0][n:]
		if len(in.runs[0]) == 0 {
			in.runs = in.runs[1:]
		}
	}
	return inPlace, nil
}

// Finish makes rows of the bytes that have come.
func (in *Incoming) Finish() error {
	if len(in.runs) > 0 {
		return fmt.Errorf("rows are missing at its end")
	}
	for _, p := range in.content.Parts {
		p.Image().Settle()
		if err := p.Restored(); err != nil {
			return err
		}
	}
	return nil
}

// adopt makes the state what a finished snapshot says.
func (st *State) adopt(in *Incoming) {
	c, h, sv := &in.content, &in.head, &st.cuts
	st.rows.parts, st.rows.states, st.rows.seq = c.Parts, c.States, c.Seq
	st.intake = consistency.Restore(&h.Intake, st.weak)
	st.agree()
	sv.left, sv.unsaved, sv.schedule.End, sv.schedule.Named, sv.segments = h.Cut, h.Writing, h.End, h.Named, h.Segments
}

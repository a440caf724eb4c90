package replica

import (
	"encoding/binary"
	"encoding/json"
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/slotstate"
	"github.com/perdure/perdure/internal/data/table"
)

// Snapshot is a replica's whole state at a position of its log, for a joiner or for a file. It starts with the header:
// an 8-byte size, JSON, the saved states of the slots, and the parts of the updates that are not applied yet. The rows
// follow, encoded by table.Snapshot.
type Snapshot struct {
	Header []byte
	Rows   []*table.Snapshot // to be read and closed under the lock that guards the replica
	Bytes  int64             // size of the rows
}

// LogProgress describes how many of an update log's control entries a state contains.
type LogProgress struct {
	Epoch          perdure.Epoch // the newest epoch that has begun in the log
	ControlEntries uint64        // number of facts of that epoch that the state contains
}

// header is the JSON header of a snapshot.
type header struct {
	Seq uint64        `json:"seq"`
	Cut perdure.Clock `json:"cut"` // the newest cut that the shard has left
	// The cut that the shard has left and that is not known to be saved; 0 if there is none.
	Writing  perdure.Clock      `json:"writing,omitempty"`
	End      perdure.Clock      `json:"end"`
	Named    perdure.Clock      `json:"named,omitempty"`
	Segments []protocol.Segment `json:"segments,omitempty"`
	States   []int              `json:"states"` // by slot: size of its saved state; -1: none
	Tables   []headerTable      `json:"tables"`
	Intake   consistency.State  `json:"intake"`
	// With an update log: the newest epoch that has begun in it, and how many facts of that epoch the state contains.
	LogEpoch       perdure.Epoch `json:"life,omitempty"`
	ControlEntries uint64        `json:"facts,omitempty"`
}

type headerTable struct {
	Spec perdure.TableSpec `json:"spec"`
	Rows int               `json:"rows"` // rows that the shard holds
}

// maxSnapshots is the maximum number of snapshots that a shard keeps next to its update log: two complete ones, and one
// being written.
const maxSnapshots = 3

// Snapshot captures the current state.
func (st *State) Snapshot(life LogProgress) *Snapshot {
	sv := &st.cuts
	h := header{
		Seq: st.rows.seq, Cut: sv.left, Writing: sv.unsaved, End: sv.schedule.End, Named: sv.schedule.Named,
		Segments: sv.segments,
		Intake:   st.intake.State(), LogEpoch: life.Epoch, ControlEntries: life.ControlEntries,
	}
	if life.Epoch > 0 {
		drop := max(0, len(st.snapshotStates)-maxSnapshots+1)
		st.snapshotStates = append(st.snapshotStates[drop:], slotstate.Names(st.rows.states))
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
		h.Tables = append(h.Tables, headerTable{p.Spec, rows.Rows()})
	}
	b, err := json.Marshal(&h)
	if err != nil { // cannot happen: it is plain data
		panic(fmt.Sprintf("replica: encode a snapshot: %v", err))
	}
	snap.Header = append(binary.LittleEndian.AppendUint64(nil, uint64(len(b))), b...)
	for _, b := range bulk {
		snap.Header = append(snap.Header, b...)
	}
	return snap
}

// sizeOf returns the length of b, or -1 if b is nil.
func sizeOf(b []byte) int {
	if b == nil {
		return -1
	}
	return len(b)
}

// IncomingSnapshot is a snapshot being received. Rows are read directly into their final memory.
type IncomingSnapshot struct {
	shard          perdure.ShardID
	job            *perdure.JobSpec
	words          []byte // the header, until it is complete
	header         header
	content        Content
	runs           [][]byte // memory for the rows that are still missing; no run is empty
	headerComplete bool     // the header is complete
}

// NewIncomingSnapshot starts to receive a shard's snapshot.
func NewIncomingSnapshot(job *perdure.JobSpec, shard perdure.ShardID) *IncomingSnapshot {
	return &IncomingSnapshot{job: job, shard: shard}
}

// HeaderComplete reports whether the header is complete, so that rows follow.
func (in *IncomingSnapshot) HeaderComplete() bool { return in.headerComplete }

// LogProgress returns how many of the update log's facts the snapshot contains. The header must be complete.
func (in *IncomingSnapshot) LogProgress() LogProgress {
	return LogProgress{in.header.LogEpoch, in.header.ControlEntries}
}

// AddHeader takes the next bytes of the header. The last ones allocate memory for the rows.
func (in *IncomingSnapshot) AddHeader(words []byte, last bool) error {
	in.words = append(in.words, words...)
	if !last {
		return nil
	}
	return in.parse()
}

// Missing returns the memory runs that the missing rows must be read into, in order.
func (in *IncomingSnapshot) Missing() [][]byte { return in.runs }

// Filled records that all missing rows are in place.
func (in *IncomingSnapshot) Filled() { in.runs = nil }

// take returns the next n bytes of the header.
func (in *IncomingSnapshot) take(n int) ([]byte, error) {
	if n < 0 || n > len(in.words) {
		return nil, fmt.Errorf("the snapshot's header is truncated: %d more bytes expected", n)
	}
	b := in.words[:n:n]
	in.words = in.words[n:]
	return b, nil
}

// parse decodes the header, and allocates memory for the rows.
func (in *IncomingSnapshot) parse() error {
	size, err := in.take(8)
	if err != nil {
		return err
	}
	n := binary.LittleEndian.Uint64(size)
	words, err := in.take(int(min(n, uint64(len(in.words)+1))))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(words, &in.header); err != nil {
		return err
	}
	if err := in.takeStates(); err != nil {
		return err
	}
	if err := in.takePending(); err != nil {
		return err
	}
	if len(in.words) > 0 {
		return fmt.Errorf("the snapshot's header has %d extra bytes", len(in.words))
	}
	in.words, in.headerComplete, in.content.Seq = nil, true, in.header.Seq
	for t := range in.header.Tables {
		if err := in.addPart(&in.header.Tables[t]); err != nil {
			return err
		}
	}
	return nil
}

func (in *IncomingSnapshot) takeStates() error {
	intake, least := &in.header.Intake, in.job.Slots
	n := len(intake.Slots)
	if n < least || n > perdure.MaxSlots || len(intake.Applied) != n || len(intake.Intervals) != n ||
		len(in.header.States) != n {
		return fmt.Errorf("the snapshot has %d slots, but the job has %d", n, least)
	}
	for _, size := range in.header.States {
		var state []byte
		if size >= 0 {
			b, err := in.take(size)
			if err != nil {
				return err
			}
			state = append(make([]byte, 0, size), b...) // a copy, because it outlives the buffer
		}
		in.content.States = append(in.content.States, state)
	}
	return nil
}

func (in *IncomingSnapshot) takePending() error {
	for i := range in.header.Intake.Slots {
		for j := range in.header.Intake.Slots[i].Pending {
			u := &in.header.Intake.Slots[i].Pending[j]
			for _, size := range u.Sizes {
				if size < 0 {
					u.Parts = append(u.Parts, nil)
					continue
				}
				b, err := in.take(size)
				if err != nil {
					return err
				}
				u.Parts = append(u.Parts, append(make([]byte, 0, size), b...)) // separate memory, because it is reused
			}
		}
	}
	return nil
}

// addPart allocates memory for a table's rows.
func (in *IncomingSnapshot) addPart(t *headerTable) error {
	if err := t.Spec.Validate(in.job.Shards); err != nil {
		return err
	}
	first, rows := placement.Range(&t.Spec, in.job.Shards, in.shard)
	if t.Spec.Sparse {
		rows = t.Rows
	}
	if t.Rows != rows || rows < 0 || rows > table.MaxStoredRows && t.Spec.Sparse {
		return fmt.Errorf("the snapshot has the wrong number of rows (%d) for table %s", t.Rows, t.Spec.Name)
	}
	p := table.NewUninitialized(t.Spec, perdure.TableID(len(in.content.Parts)), in.job.Seed, first, rows)
	in.content.Parts = append(in.content.Parts, p)
	for _, run := range p.Image().Memory() {
		if len(run) > 0 {
			in.runs = append(in.runs, run)
		}
	}
	return nil
}

// AddRows takes the next rows. If they are already in place, as inPlace reports, the replica keeps their memory.
func (in *IncomingSnapshot) AddRows(body []byte) (inPlace bool, err error) {
	inPlace = len(body) > 0 && len(in.runs) > 0 && &body[0] == &in.runs[0][0]
	for from := body; len(from) > 0; {
		if len(in.runs) == 0 {
			return inPlace, fmt.Errorf("the snapshot has %d extra bytes of rows", len(from))
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

// Finish decodes the rows from the received bytes.
func (in *IncomingSnapshot) Finish() error {
	if len(in.runs) > 0 {
		return fmt.Errorf("the snapshot ends before all rows have arrived")
	}
	for _, p := range in.content.Parts {
		p.Image().ConvertByteOrder()
		if err := p.FinishRestore(); err != nil {
			return err
		}
	}
	return nil
}

// installSnapshot replaces the state by a finished snapshot.
func (st *State) installSnapshot(in *IncomingSnapshot) {
	c, h, sv := &in.content, &in.header, &st.cuts
	st.rows.parts, st.rows.states, st.rows.seq = c.Parts, c.States, c.Seq
	st.intake = consistency.Restore(&h.Intake, st.mutations)
	st.updateTableSettings()
	sv.left, sv.unsaved, sv.schedule.End, sv.schedule.Named, sv.segments = h.Cut, h.Writing, h.End, h.Named, h.Segments
}

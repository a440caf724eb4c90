package server

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/data/wire"
)

// incoming is a snapshot that is being received, by the goroutine that receives from its
// connection: rows go straight to where they will lie. It takes the shard's place when it
// is whole.
type incoming struct {
	sh   *shard
	name shardName
	pos  uint64
	part uint16 // the next piece's

	words   []byte // of the head, until it is whole
	head    snapshotHead
	content content
	runs    [][]byte // memory of rows that are still to come; none of them is empty
	whole   bool
}

// errNotWanted ends the connection of a snapshot that is not of the shard's present
// life, or that another one has overtaken.
var errNotWanted = errors.New("server: the snapshot is not wanted")

// place returns where the body of the connection's next frame is to lie.
func (c *conn) place(s *Server, f *wire.Frame, n int) []byte {
	if f.Kind == wire.KindSnapshot && f.Flags&wire.FlagNone == 0 && c.taking != nil {
		if runs := c.taking.runs; len(runs) > 0 && 0 < n && n <= len(runs[0]) {
			return runs[0][:n:n]
		}
	}
	if f.Kind == wire.KindUpdate || f.Kind == wire.KindSnapshot {
		return s.buffers.payload(n) // to be kept as it is
	}
	return nil
}

// piece takes a piece of a snapshot, and says so.
func (sh *shard) piece(c *conn, f *wire.Frame) error {
	body := f.Body
	f.Body = nil // it may be memory of rows
	in, err := sh.expected(c, f)
	if err != nil {
		return err
	}
	last, size := f.Flags&wire.FlagLast != 0, len(body)
	if f.Flags&wire.FlagNone != 0 {
		in.words = append(in.words, body...)
		sh.s.buffers.keep(body)
		if last {
			err = in.parse()
		}
	} else if err = in.takeRows(body); err == nil && last {
		err = in.finish()
	}
	if err != nil {
		sh.drops(c)
		if !errors.Is(err, errNotWanted) {
			err = fmt.Errorf("a snapshot of shard %d: %w", sh.id, err)
		}
		return err
	}
	sh.s.pace.wait(sh.s.ctx, size)
	have := wire.Frame{Header: f.Header}
	have.Kind, have.Flags = wire.KindHave, 0
	return c.tc.TrySend(have) // now: its sender waits for it
}

// expected returns the snapshot that a piece is the next of.
func (sh *shard) expected(c *conn, f *wire.Frame) (*incoming, error) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.log == nil || sh.retired() || sh.place.config.Head || sh.name != name(&f.Header) || !sh.precededBy(c) {
		return nil, errNotWanted
	}
	head := f.Flags&wire.FlagNone != 0
	if f.Part == 0 && head && c.taking == nil && sh.log.Wants(f.Request) {
		c.taking = &incoming{sh: sh, name: sh.name, pos: f.Request}
		sh.incoming = c.taking // another one is not wanted any more
	}
	in := c.taking
	if in == nil || in != sh.incoming || in.part != f.Part || in.pos != f.Request || head != !in.whole {
		return nil, errNotWanted
	}
	in.part++
	return in, nil
}

// drops forgets a snapshot that a connection was to bring.
func (sh *shard) drops(c *conn) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if in := c.taking; in != nil && sh.incoming == in {
		sh.incoming = nil
	}
}

// take returns the first n bytes of what the head has left.
func (in *incoming) take(n int) ([]byte, error) {
	if n < 0 || n > len(in.words) {
		return nil, fmt.Errorf("its head ends where %d bytes more are announced", n)
	}
	b := in.words[:n:n]
	in.words = in.words[n:]
	return b, nil
}

// parse reads the head, and makes room for the rows.
func (in *incoming) parse() error {
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
	in.words, in.whole, in.content.seq = nil, true, in.head.Seq
	for t := range in.head.Tables {
		if err := in.addPart(&in.head.Tables[t]); err != nil {
			return err
		}
	}
	return nil
}

func (in *incoming) takeStates() error {
	intake, least := &in.head.Intake, in.sh.job.Slots
	if n := len(intake.Slots); n < least || n > perdure.MaxSlots || len(intake.Applied) != n || len(intake.Spans) != n || len(in.head.States) != n {
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
		in.content.states = append(in.content.states, state)
	}
	return nil
}

func (in *incoming) takePending() error {
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
func (in *incoming) addPart(t *snapshotTable) error {
	job := &in.sh.job
	if err := t.Spec.Validate(job.Shards); err != nil {
		return err
	}
	first, rows := perdure.RowID(0), t.Rows
	if !t.Spec.Sparse {
		first, rows = placement.Range(t.Spec.Rows, job.Shards, in.sh.id)
	}
	if t.Rows != rows || rows < 0 || rows > table.MaxStored && t.Spec.Sparse {
		return fmt.Errorf("it has %d rows of table %s", t.Rows, t.Spec.Name)
	}
	p := table.Blank(t.Spec, perdure.TableID(len(in.content.parts)), job.Seed, first, rows)
	in.content.parts = append(in.content.parts, p)
	for _, run := range p.Image().Memory() {
		if len(run) > 0 {
			in.runs = append(in.runs, run)
		}
	}
	return nil
}

// takeRows takes the next rows, which may lie where they belong already.
func (in *incoming) takeRows(body []byte) error {
	inPlace := len(body) > 0 && len(in.runs) > 0 && &body[0] == &in.runs[0][0]
	for from := body; len(from) > 0; {
		if len(in.runs) == 0 {
			return fmt.Errorf("it has %d bytes of rows too many", len(from))
		}
		n := min(len(from), len(in.runs[0]))
		if !inPlace {
			copy(in.runs[0], from[:n])
		}
		if from, in.runs[0] = from[n:], in.runs[0][n:]; len(in.runs[0]) == 0 {
			in.runs = in.runs[1:]
		}
	}
	if !inPlace {
		in.sh.s.buffers.keep(body)
	}
	return nil
}

// finish makes the shard what the snapshot says.
func (in *incoming) finish() error {
	if len(in.runs) > 0 {
		return fmt.Errorf("rows are missing at its end")
	}
	if err := in.settle(); err != nil {
		return err
	}
	sh := in.sh
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.incoming != in || sh.retired() || sh.name != in.name || !sh.log.Wants(in.pos) {
		return errNotWanted
	}
	sh.incoming = nil
	sh.restored(in)
	return nil
}

// settle makes parts of the rows' bytes.
func (in *incoming) settle() error {
	for _, p := range in.content.parts {
		p.Image().Settle()
		if err := p.Restored(); err != nil {
			return err
		}
	}
	return nil
}

// restored needs sh.mu.
func (sh *shard) restored(in *incoming) {
	sh.adopt(in)
	sh.log.Restored(in.pos)
	sh.carryOut()
	sh.s.notify()
}

// adopt makes the shard what a snapshot says. It needs sh.mu.
func (sh *shard) adopt(in *incoming) {
	c, head := &in.content, &in.head
	sh.parts, sh.states, sh.seq = c.parts, c.states, c.seq
	sh.intake = consistency.Restore(&head.Intake, sh.s.cfg.Weakened)
	sh.cut, sh.writing, sh.schedule.End, sh.schedule.Named, sh.segments = head.Cut, head.Writing, head.End, head.Named, head.Segments
	clear(sh.logged)
	sh.makeRoom()
	sh.out = sh.newPushes()
	sh.renewed = true
	sh.makeSubs(true)
	sh.applyAll() // what its sender had left to another goroutine
}

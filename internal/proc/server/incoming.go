package server

import (
	"errors"
	"fmt"

	"github.com/perdure/perdure/internal/core/link"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/wire"
)

// incoming is a snapshot that is being received, by the goroutine that receives from its
// connection: rows go straight to where they will lie. It takes the shard's place when it
// is whole.
type incoming struct {
	*replica.Incoming
	name link.Name
	pos  uint64
	part uint16 // the next piece's
}

// errNotWanted ends the connection of a snapshot that is not of the shard's present
// life, or that another one has overtaken.
var errNotWanted = errors.New("server: the snapshot is not wanted")

// place returns where the body of the connection's next frame is to lie.
func (c *conn) place(s *Server, f *wire.Frame, n int) []byte {
	if f.Kind == wire.KindSnapshot && f.Flags&wire.FlagNone == 0 && c.taking != nil {
		if runs := c.taking.Missing(); len(runs) > 0 && 0 < n && n <= len(runs[0]) {
			return runs[0][:n:n]
		}
	}
	if f.Kind == wire.KindUpdate || f.Kind == wire.KindSnapshot {
		return s.buffers.Payload(n) // to be kept as it is
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
		err = in.AddWords(body, last)
		sh.s.buffers.Keep(body)
	} else {
		err = sh.takeRows(in, body, last)
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
	if sh.link.Log() == nil || sh.retired() || sh.link.Place().Head || sh.name != link.NameOf(&f.Header) ||
		!sh.link.PrecededBy(c.index, c.Incarnation) {
		return nil, errNotWanted
	}
	head := f.Flags&wire.FlagNone != 0
	if f.Part == 0 && head && c.taking == nil && sh.link.Log().Wants(f.Request) {
		c.taking = &incoming{Incoming: replica.NewIncoming(&sh.job, sh.id), name: sh.name, pos: f.Request}
		sh.incoming = c.taking // another one is not wanted any more
	}
	in := c.taking
	if in == nil || in != sh.incoming || in.part != f.Part || in.pos != f.Request || head == in.Whole() {
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

// takeRows takes the next rows, which may lie where they belong already.
func (sh *shard) takeRows(in *incoming, body []byte, last bool) error {
	inPlace, err := in.AddRows(body)
	if err != nil {
		return err
	}
	if !inPlace {
		sh.s.buffers.Keep(body)
	}
	if !last {
		return nil
	}
	if err := in.Finish(); err != nil {
		return err
	}
	return sh.install(in)
}

// install makes the shard what a snapshot says that is whole.
func (sh *shard) install(in *incoming) error {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.incoming != in || sh.retired() || sh.name != in.name || !sh.link.Log().Wants(in.pos) {
		return errNotWanted
	}
	sh.incoming = nil
	sh.adopt(in.Incoming)
	sh.link.Restored(in.pos)
	sh.advance()
	sh.s.notify()
	return nil
}

// adopt makes the shard what a snapshot says. It needs sh.mu.
func (sh *shard) adopt(in *replica.Incoming) {
	sh.rep.Adopt(in)
	sh.slots.grow(len(sh.rep.State.Applied()))
}

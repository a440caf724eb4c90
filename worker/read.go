package worker

import (
	"context"
	"errors"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/reads"
	"github.com/perdure/perdure/internal/data/wire"
)

// What is read, and how a read is served, package reads decides. Here its calls wait, and
// what it has due is sent.

// newReads begins to read the job's tables. It needs c.mu.
func (c *Client) newReads(shards int) *reads.Reader {
	return reads.New(reads.Config{
		Slot: c.slot, Slots: c.job.Slots, Exact: c.cfg.Observer, Bytes: c.cfg.CacheBytes,
		OnOutage: c.job.OnOutage, OutageRows: c.job.OutageRows,
	}, shards)
}

// readStats returns what was counted of reads. It needs c.mu.
func (c *Client) readStats() *reads.Stats {
	if c.reads == nil {
		return &reads.Stats{}
	}
	return c.reads.Stats()
}

// setMoment tells reads what the clock and the view are. It needs c.mu.
func (c *Client) setMoment() {
	now := reads.Moment{Clock: c.out.Clock(), End: c.view.End, Begun: consistency.Always, Spans: c.out.Spans()}
	if c.slot >= 0 && int(c.slot) < len(c.view.Slots) && c.out.TwoStep() {
		now.Begun = c.view.Slots[c.slot].Start
	}
	c.reads.SetMoment(now)
}

// read reads rows into dst.
func (t *Table) read(ctx context.Context, rows *wire.Rows, dst []float32) error {
	c := t.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stats.began.IsZero() {
		c.stats.began = time.Now()
	}
	for {
		if err := c.usable(); err != nil {
			return err
		}
		call := t.rows.Read(rows, dst, c.out)
		if err := c.await(ctx, call, c.usable); c.readsOn(err) {
			continue
		} else if err != nil {
			return err
		}
		if again, err := call.End(rows); !again {
			return err
		}
	}
}

// readsOn reports whether a read that ended with err is simply made again: an observer
// does nothing that a roll-back could undo.
func (c *Client) readsOn(err error) bool {
	return c.cfg.Observer && errors.Is(err, perdure.ErrRolledBack)
}

// await sends a call's requests and waits until all are answered, an error of check, or a
// roll-back. After an error the call's memory is not written to any more. It needs c.mu.
func (c *Client) await(ctx context.Context, call *reads.Call, check func() error) error {
	if call.Done() {
		return nil
	}
	c.carryOut()
	begin := time.Now()
	defer func() {
		c.stats.blocked(begin, call)
		c.waited(begin)
	}()
	err := c.wait(ctx, func() (bool, error) {
		if err := check(); err != nil {
			return false, err
		}
		if call.RolledBack() {
			return false, perdure.ErrRolledBack
		}
		return call.Done(), nil
	})
	if err != nil {
		c.abandon(call)
	}
	return err
}

// abandon gives a call up and waits until no answer is being received into its memory. It
// needs c.mu.
func (c *Client) abandon(call *reads.Call) {
	call.Abandon()
	woken := c.newWait()
	defer c.freeWait(woken)
	for c.carryOut(); call.Receives(); c.carryOut() {
		c.mu.Unlock()
		<-woken
		c.mu.Lock()
	}
}

// carryOut does what reads has due. It needs c.mu.
func (c *Client) carryOut() {
	if c.gather() {
		c.flush()
	}
}

// gather does what reads has due, but for sending what it gathers for servers, and reports
// whether that is anything. It needs c.mu.
func (c *Client) gather() (any bool) {
	due := c.reads.Due()
	for i := range due.Frames {
		sh := c.shards[due.Frames[i].Shard]
		f := c.shardFrame(sh, due.Frames[i].Kind)
		f.Request, f.Clock = due.Frames[i].Request, due.Frames[i].Clock
		f.Flags, f.Payload = due.Frames[i].Flags, due.Frames[i].Payload
		sh.reader.batch = append(sh.reader.batch, f)
	}
	for _, from := range due.Close {
		for _, p := range c.peers {
			if &p.answers == from && p.conn != nil {
				go p.conn.Close()
			}
		}
	}
	if due.Wake {
		c.broadcast()
	}
	return len(due.Frames) > 0
}

// place says where an answer is to be received: see reads.Reader.Land.
func (c *Client) place(p *peer, f *wire.Frame, n int) []byte {
	if f.Kind != wire.KindRows {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle(p)
	return c.reads.Land(&p.answers, f, n)
}

// settle says that a connection is not receiving into a reader's memory any more. It needs
// c.mu.
func (c *Client) settle(p *peer) {
	if c.reads.Settle(&p.answers) {
		c.broadcast()
	}
}

// taken follows up on what a server has sent of rows. It needs c.mu.
func (c *Client) taken(err error) error {
	c.carryOut()
	return err
}

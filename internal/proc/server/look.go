package server

import (
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/chain"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/proc/shardstore"
)

// Look is a snapshot of a server for monitoring. Counters start with the process.
type Look struct {
	Index    int    // the server's number; -1 if it has not joined yet
	NotReady string // why the server does not serve all its shards; "" if it does
	LogWaits string // why writes to the update log are delayed; "" if they are not

	Shards      map[Part]int
	Unready     int           // of these, shards that do not serve, except joiners
	MinClock    perdure.Clock // the smallest of its shards; -1 if it has none
	Tables      map[string]Rows
	Waiting     int    // reads
	Unread      *int64 // update log records that are not applied yet; nil if there is no log or the number is unknown
	Connections int
	Refused     int64 // connections rejected because the peer had too many

	Updates, Answers int64 // updates applied and reads answered

	Saves, SaveFailures, SaveBytes int64 // segments and snapshots
	SaveTime                       time.Duration
}

// Part is the role of a replica in its chain.
type Part string

// The roles of replicas. A replica without neighbours is the head.
const (
	Head    Part = "head"
	Middle  Part = "middle"
	Tail    Part = "tail"
	Joining Part = "joining"
)

// Rows is the size of a table on this server.
type Rows struct{ Rows, Bytes int64 }

// done counts the work of shards.
type done struct{ updates, answers int64 }

func (d *done) add(o done) { d.updates, d.answers = d.updates+o.updates, d.answers+o.answers }

// doneBy returns the work of a shard. The caller must hold the shard's lock.
func doneBy(rep *replica.Replica, to *service) done {
	return done{rep.State.UpdatesApplied, to.answers}
}

// work is the state shared by all shards of a server.
type work struct {
	parallel bool                  // there are enough cores to apply several shards in parallel
	turn     chan struct{}         // capacity 1: held while a shard's rows are read for a background save
	saves    shardstore.SaveCounts // safe for concurrent use

	// Server.mu guards the fields below.
	past     done                // by shards that have left the server
	retiring map[*shard]struct{} // shards that have left and are not counted in past yet
}

// Eye gives access to a server's Look.
type Eye struct{ s *Server }

// Look acquires the server's lock and then the lock of each shard, one after the other. Only the caller of Look waits
// for a busy shard.
func (e Eye) Look() (l Look) {
	s := e.s
	s.mu.Lock()
	l = Look{
		Index: s.index, MinClock: -1, Connections: len(s.conns), LogWaits: s.waits.Reason(), Shards: map[Part]int{},
		Tables: map[string]Rows{}, Refused: s.admission.Refused(),
	}
	switch {
	case s.job == nil:
		l.NotReady = "it has not joined its job yet"
	case s.drain.draining:
		l.NotReady = "it is draining"
	}
	var shards []*shard
	for _, sh := range s.shards {
		shards = append(shards, sh)
	}
	for sh := range s.work.retiring {
		shards = append(shards, sh)
	}
	held := len(s.shards)
	all := s.work.past // a shard that retires after this is in the list
	s.mu.Unlock()
	for _, sh := range shards {
		all.add(l.add(sh))
	}
	l.Updates, l.Answers = all.updates, all.answers
	if l.NotReady == "" && l.Unready > 0 {
		l.NotReady = fmt.Sprintf("%d of %d shards do not serve yet", l.Unready, held)
	}
	n := &s.work.saves
	l.Saves, l.SaveFailures, l.SaveBytes = n.Saves.Load(), n.Failures.Load(), n.Bytes.Load()
	l.SaveTime = time.Duration(n.Nanoseconds.Load())
	return l
}

// add adds a shard to the Look and returns the shard's work.
func (l *Look) add(sh *shard) done {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.retired() {
		return doneBy(sh.rep, &sh.service)
	}
	part := partOf(sh.link.Role())
	l.Shards[part]++
	if !sh.answers() && part != Joining {
		l.Unready++
	}
	l.Waiting += sh.rep.Readers.Waiting()
	if sh.stream != nil {
		if n := sh.stream.Unread(); n != nil {
			l.Unread = sum(l.Unread, *n)
		}
	}
	if !sh.rep.State.HasRows() {
		return doneBy(sh.rep, &sh.service)
	}
	if at := sh.rep.State.MinClock(); l.MinClock < 0 || at < l.MinClock {
		l.MinClock = at
	}
	for _, p := range sh.rep.State.Parts() {
		t, n := l.Tables[p.Spec.Name], int64(p.Stored())
		l.Tables[p.Spec.Name] = Rows{t.Rows + n, t.Bytes + n*int64(p.RowBytes())}
	}
	return doneBy(sh.rep, &sh.service)
}

// partOf returns the role of a replica at that position in a chain.
func partOf(at *chain.Role) Part {
	switch {
	case at.Joining:
		return Joining
	case at.Head:
		return Head
	case at.Tail:
		return Tail
	}
	return Middle
}

func sum(n *int64, more int64) *int64 {
	if n != nil {
		more += *n
	}
	return &more
}

package server

import (
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/link"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/proc/shardstore"
)

// Look is how a server is at one moment, for those who watch it. What is counted began with the process.
type Look struct {
	Index    int    // its number; -1: it has no place yet
	NotReady string // why it does not serve all that it holds; "": it does
	LogWaits string // why what goes to the update log waits; "": nothing does

	Shards      map[Part]int
	Unready     int           // of these, shards that do not serve, but for joiners
	MinClock    perdure.Clock // the least of its shards; -1: it has none
	Tables      map[string]Rows
	Waiting     int    // reads
	Unread      *int64 // records of the update log that its rows lack; nil: none, or it is not known
	Connections int
	Refused     int64 // connections of peers that had as many as one may have

	Updates, Answers int64 // applied, and of reads

	Saves, SaveFailures, SaveBytes int64 // segments and snapshots
	SaveTime                       time.Duration
}

// Part is a replica's in its chain.
type Part string

// The parts. One that is alone is the head.
const (
	Head    Part = "head"
	Middle  Part = "middle"
	Tail    Part = "tail"
	Joining Part = "joining"
)

// Rows are what a server has of a table.
type Rows struct{ Rows, Bytes int64 }

// done is what shards have done.
type done struct{ updates, answers int64 }

func (d *done) add(o done) { d.updates, d.answers = d.updates+o.updates, d.answers+o.answers }

// doneBy is what a shard has done. It needs its lock.
func doneBy(rep *replica.Replica, to *service) done { return done{rep.State.Done, to.answers} }

// work is what a server does on the side of its shards.
type work struct {
	parallel bool                  // there are cores for several shards at once
	turn     chan struct{}         // capacity 1: in it while a shard's rows are read to be written in the background
	saves    shardstore.SaveCounts // safe for concurrent use

	// Server.mu guards what follows.
	past     done                // by shards that are not here any more
	retiring map[*shard]struct{} // that are not here any more, and not counted in past yet
}

// Eye looks at a server.
type Eye struct{ s *Server }

// Look asks all who do the server's work: it waits for the lock of the server, and then for that of each shard, one
// after the other. So nobody waits for a shard that is at work but whoever looks.
func (e Eye) Look() (l Look) {
	s := e.s
	s.mu.Lock()
	l = Look{
		Index: s.index, MinClock: -1, Connections: len(s.conns), LogWaits: s.waits.Why(), Shards: map[Part]int{},
		Tables: map[string]Rows{}, Refused: s.door.Refused(),
	}
	switch {
	case s.job == nil:
		l.NotReady = "it has no place in its job yet"
	case s.leaving.draining:
		l.NotReady = "it hands over what it holds, to end"
	}
	var shards []*shard
	for _, sh := range s.shards {
		shards = append(shards, sh)
	}
	for sh := range s.work.retiring {
		shards = append(shards, sh)
	}
	held := len(s.shards)
	all := s.work.past // one that retires from now on is among these
	s.mu.Unlock()
	for _, sh := range shards {
		all.add(l.add(sh))
	}
	l.Updates, l.Answers = all.updates, all.answers
	if l.NotReady == "" && l.Unready > 0 {
		l.NotReady = fmt.Sprintf("%d of its %d shards do not serve yet", l.Unready, held)
	}
	n := &s.work.saves
	l.Saves, l.SaveFailures, l.SaveBytes = n.Saves.Load(), n.Failures.Load(), n.Bytes.Load()
	l.SaveTime = time.Duration(n.Nanoseconds.Load())
	return l
}

// add adds a shard to a look, and returns what it has done.
func (l *Look) add(sh *shard) done {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.retired() {
		return doneBy(sh.rep, &sh.service)
	}
	part := partOf(sh.link.Place())
	l.Shards[part]++
	if !sh.answers() && part != Joining {
		l.Unready++
	}
	l.Waiting += sh.rep.Audience.Waiting()
	if sh.stream != nil {
		if n := sh.stream.Unread(); n != nil {
			l.Unread = sum(l.Unread, *n)
		}
	}
	if !sh.rep.State.Has() {
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

// partOf is a replica's part where it has that place.
func partOf(at *link.Place) Part {
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

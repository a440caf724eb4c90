package server

import (
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/chain"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/proc/shardstore"
)

// Stats is a snapshot of a server for monitoring. Counters start with the process.
type Stats struct {
	Index         int    // the server's number; -1 if it has not joined yet
	NotReady      string // why the server does not serve all its shards; "" if it does
	LogWaitReason string // why writes to the update log are delayed; "" if they are not

	Shards      map[ChainRole]int
	Unready     int           // of these, shards that do not serve, except joiners
	MinClock    perdure.Clock // the smallest of its shards; -1 if it has none
	Tables      map[string]TableSize
	Waiting     int    // reads
	Unread      *int64 // update log records that are not applied yet; nil if there is no log or the number is unknown
	Connections int
	Refused     int64 // connections rejected because the peer had too many

	Updates, Answers int64 // updates applied and reads answered

	Saves, SaveFailures, SaveBytes int64 // segments and snapshots
	SaveTime                       time.Duration
}

// ChainRole is the role of a replica in its chain.
type ChainRole string

// The roles of replicas. A replica without neighbours is the head.
const (
	Head    ChainRole = "head"
	Middle  ChainRole = "middle"
	Tail    ChainRole = "tail"
	Joining ChainRole = "joining"
)

// TableSize is the size of a table on this server.
type TableSize struct{ Rows, Bytes int64 }

// workCounts counts the work of shards.
type workCounts struct{ updates, answers int64 }

func (d *workCounts) add(o workCounts) {
	d.updates, d.answers = d.updates+o.updates, d.answers+o.answers
}

// workCountsLocked returns the work of a shard. The caller must hold the shard's lock.
func workCountsLocked(rep *replica.Replica, to *service) workCounts {
	return workCounts{rep.State.UpdatesApplied, to.answers}
}

// sharedState is the state shared by all shards of a server.
type sharedState struct {
	parallel bool                  // there are enough cores to apply several shards in parallel
	readSem  chan struct{}         // capacity 1: held while a shard's rows are read for a background save
	saves    shardstore.SaveCounts // safe for concurrent use

	// Server.mu guards the fields below.
	retiredCounts workCounts          // by shards that have left the server
	retiring      map[*shard]struct{} // shards that have left and are not counted in past yet
}

// Monitor gives access to a server's Stats.
type Monitor struct{ s *Server }

// Stats acquires the server's lock and then the lock of each shard, one after the other. Only the caller of Stats waits
// for a busy shard.
func (e Monitor) Stats() (l Stats) {
	s := e.s
	s.mu.Lock()
	l = Stats{
		Index: s.index, MinClock: -1, Connections: len(s.conns), LogWaitReason: s.waits.Reason(),
		Shards: map[ChainRole]int{}, Tables: map[string]TableSize{}, Refused: s.admission.Refused(),
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
	for sh := range s.shared.retiring {
		shards = append(shards, sh)
	}
	held := len(s.shards)
	all := s.shared.retiredCounts // a shard that retires after this is in the list
	s.mu.Unlock()
	for _, sh := range shards {
		all.add(l.add(sh))
	}
	l.Updates, l.Answers = all.updates, all.answers
	if l.NotReady == "" && l.Unready > 0 {
		l.NotReady = fmt.Sprintf("%d of %d shards are not serving yet", l.Unready, held)
	}
	n := &s.shared.saves
	l.Saves, l.SaveFailures, l.SaveBytes = n.Saves.Load(), n.Failures.Load(), n.Bytes.Load()
	l.SaveTime = time.Duration(n.Nanoseconds.Load())
	return l
}

// add adds a shard to the Stats and returns the shard's work.
func (l *Stats) add(sh *shard) workCounts {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.retired() {
		return workCountsLocked(sh.rep, &sh.service)
	}
	part := chainRoleOf(sh.link.Role())
	l.Shards[part]++
	if !sh.servesLocked() && part != Joining {
		l.Unready++
	}
	l.Waiting += sh.rep.Readers.Waiting()
	if sh.stream != nil {
		if n := sh.stream.UnreadLocked(); n != nil {
			l.Unread = sum(l.Unread, *n)
		}
	}
	if !sh.rep.State.HasRows() {
		return workCountsLocked(sh.rep, &sh.service)
	}
	if at := sh.rep.State.MinClock(); l.MinClock < 0 || at < l.MinClock {
		l.MinClock = at
	}
	for _, p := range sh.rep.State.Parts() {
		t, n := l.Tables[p.Spec.Name], int64(p.Stored())
		l.Tables[p.Spec.Name] = TableSize{t.Rows + n, t.Bytes + n*int64(p.RowBytes())}
	}
	return workCountsLocked(sh.rep, &sh.service)
}

// chainRoleOf returns the role of a replica at that position in a chain.
func chainRoleOf(at *chain.Role) ChainRole {
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

package protocol

import (
	"errors"
	"reflect"
	"slices"
	"testing"

	"github.com/perdure/perdure"
)

// TestWhatIsTold checks that changes that may trigger a decision are sent immediately. Counts are sent on request, when
// the shard reaches the job's end, and together with other changes of the shard.
func TestWhatIsTold(t *testing.T) {
	const end = 9
	one := int64(1)
	for name, c := range map[string]struct {
		change  func(sh *ShardStatus)
		at, all bool // sent immediately; sent with counts
	}{
		"nothing":              {func(*ShardStatus) {}, false, false},
		"a clock":              {func(sh *ShardStatus) { sh.MinClock++ }, false, true},
		"the job's last clock": {func(sh *ShardStatus) { sh.MinClock = end }, true, true},
		"updates":              {func(sh *ShardStatus) { sh.Seq++ }, false, true},
		"how far it is behind": {func(sh *ShardStatus) { sh.Unread = &one }, false, true},
		"how long a save took": {func(sh *ShardStatus) { sh.SaveSeconds = 1 }, false, true},
		"it serves":            {func(sh *ShardStatus) { sh.Ready = true }, true, true},
		"another epoch":        {func(sh *ShardStatus) { sh.Epoch++ }, true, true},
		"another life":         {func(sh *ShardStatus) { sh.Since++ }, true, true},
		"it has joined":        {func(sh *ShardStatus) { sh.Joined = true }, true, true},
		"it has yielded":       {func(sh *ShardStatus) { sh.Yielded = true }, true, true},
		"a cut that it missed": {func(sh *ShardStatus) { sh.Cuts.Missed = true }, true, true},
		"a cut that it knows":  {func(sh *ShardStatus) { sh.Cuts.Named = 8 }, true, true},
		"a roster":             {func(sh *ShardStatus) { sh.Roster++ }, true, true},
		"a problem":            {func(sh *ShardStatus) { sh.Problem = "the disk is full" }, true, true},
		"what it has applied":  {func(sh *ShardStatus) { sh.Applied = []perdure.Clock{3} }, true, true},
		"a fence":              {func(sh *ShardStatus) { sh.Fences = []Fence{{Slot: 1}} }, true, true},
		"a segment":            {func(sh *ShardStatus) { sh.Segments = []Segment{{Cut: 4}} }, true, true},
	} {
		for _, counts := range []bool{false, true} {
			var s ServerDeltaEncoder
			s.Delta(&ServerStatus{Shards: []ShardStatus{{Shard: 2, MinClock: 3}}}, end, false)
			next := ShardStatus{Shard: 2, MinClock: 3}
			c.change(&next)
			d, more := s.Delta(&ServerStatus{Shards: []ShardStatus{next}}, end, counts)
			if sent := len(d.Shards) > 0; sent != (c.at || counts && c.all) || more || d.Number != 2 {
				t.Errorf("%s (counts: %v): told %v, in word %d", name, counts, sent, d.Number)
			}
		}
	}
}

// TestFencesThatChanged checks that a delta contains the changed, new and removed fences of a shard.
func TestFencesThatChanged(t *testing.T) {
	f := func(slots ...perdure.Slot) (list []Fence) {
		for _, s := range slots {
			list = append(list, Fence{Slot: s})
		}
		return list
	}
	carried := f(1, 3)
	carried[1].Carried = true
	for _, c := range []struct {
		before, now, changed []Fence
		gone                 []perdure.Slot
	}{
		{nil, nil, nil, nil},
		{nil, f(1, 3), f(1, 3), nil},
		{f(1, 3), nil, nil, []perdure.Slot{1, 3}},
		{f(1, 3), f(1, 3), nil, nil},
		{f(1, 3), carried, carried[1:], nil},
		{f(1, 3), f(2, 3, 4), f(2, 4), []perdure.Slot{1}},
		{f(2), f(1, 3), f(1, 3), []perdure.Slot{2}},
	} {
		changed, gone := changedFences(c.before, c.now)
		if !slices.Equal(changed, c.changed) || !slices.Equal(gone, c.gone) {
			t.Errorf("%v after %v: %v changed and %v are gone, want %v and %v", c.now, c.before, changed, gone,
				c.changed, c.gone)
		}
	}
}

func shard(s perdure.ShardID, clock perdure.Clock, problem string) ShardStatus {
	n := int64(clock)
	return ShardStatus{Shard: s, MinClock: clock, Problem: problem, Unread: &n}
}

// TestHeard checks that the receiver reconstructs the sent status. Its callback receives each affected shard with its
// previous state. The first message of a connection replaces the whole state.
func TestHeard(t *testing.T) {
	var speaker ServerDeltaEncoder
	var word ObservedServer
	say := func(st ServerStatus) (received map[perdure.ShardID][2]bool) {
		received = map[perdure.ShardID][2]bool{}
		d, _ := speaker.Delta(&st, 0, true)
		word.Apply(&d, func(s perdure.ShardID, before *ObservedShard, now *ShardDelta) {
			received[s] = [2]bool{before != nil, now != nil}
		})
		if got := word.Status(); !reflect.DeepEqual(got, st) {
			t.Fatalf("it is known to be\n%+v, and says\n%+v", got, st)
		}
		return received
	}
	for i, c := range []struct {
		again   bool // on a new connection
		shards  []ShardStatus
		heard   map[perdure.ShardID][2]bool
		problem string
		clock   perdure.Clock
		unread  int64 // -1: unknown
	}{
		{false, nil, map[perdure.ShardID][2]bool{}, "", -1, -1},
		{
			false,
			[]ShardStatus{shard(1, 4, ""), shard(2, 3, "")},
			map[perdure.ShardID][2]bool{1: {false, true}, 2: {false, true}},
			"", 3, 7,
		},
		{
			false,
			[]ShardStatus{shard(1, 4, ""), shard(2, 3, "full")},
			map[perdure.ShardID][2]bool{2: {true, true}},
			"full", 3, 7,
		},
		{
			false,
			[]ShardStatus{shard(1, 4, "lost"), shard(2, 3, "full")},
			map[perdure.ShardID][2]bool{1: {true, true}},
			"lost", 3, 7,
		},
		{
			false,
			[]ShardStatus{shard(2, 3, "full"), {Shard: 5, MinClock: 9}},
			map[perdure.ShardID][2]bool{1: {true, false}, 5: {false, true}},
			"full", 3, -1,
		},
		{
			true,
			[]ShardStatus{{Shard: 5, MinClock: 9}},
			map[perdure.ShardID][2]bool{2: {true, false}, 5: {true, true}},
			"", 9, -1,
		},
	} {
		if c.again {
			speaker = ServerDeltaEncoder{}
		}
		received := say(ServerStatus{Revision: uint64(i), Shards: c.shards})
		unread := int64(-1)
		if n := word.Unread(); n != nil {
			unread = *n
		}
		if !reflect.DeepEqual(received, c.heard) || word.Problem() != c.problem || word.MinClock() != c.clock ||
			unread != c.unread {
			t.Errorf("word %d: heard of %v; problem %q, clock %d, %d unread; want %+v", i, received, word.Problem(),
				word.MinClock(), unread, c)
		}
	}
}

// TestManyFacts checks that a status too large for one message is sent in several and then known completely.
func TestManyFacts(t *testing.T) {
	st := ServerStatus{}
	for s := range perdure.ShardID(5) {
		st.Shards = append(st.Shards, ShardStatus{Shard: s, Applied: make([]perdure.Clock, maxDeltaItems/2+1)})
	}
	var speaker ServerDeltaEncoder
	var word ObservedServer
	n := 0
	for more := true; more; n++ {
		var d ServerDelta
		d, more = speaker.Delta(&st, 0, false)
		if len(d.Shards) > 2 {
			t.Errorf("word %d tells of %d shards", d.Number, len(d.Shards))
		}
		word.Apply(&d, func(perdure.ShardID, *ObservedShard, *ShardDelta) {})
	}
	if got := word.Status(); n != 3 || !reflect.DeepEqual(got, st) {
		t.Errorf("after %d words %d shards are known", n, len(got.Shards))
	}
}

// TestWorkerSpeaker checks that a worker's counters and the duration of an outage are sent only with counts. The start
// of an outage and its shards are sent immediately.
func TestWorkerSpeaker(t *testing.T) {
	var speaker WorkerDeltaEncoder
	var known WorkerStatus
	say := func(st WorkerStatus, counts bool) WorkerDelta {
		d := speaker.Delta(&st, counts)
		known.Apply(&d)
		return d
	}
	out := func(seconds float64, shards ...perdure.ShardID) *perdure.WorkerOutage {
		return &perdure.WorkerOutage{Shards: shards, Seconds: seconds}
	}
	if d := say(WorkerStatus{}, false); d.Number != 1 || !d.HasAcked || !d.HasOutage || !d.HasCounters {
		t.Errorf("the first word leaves something out: %+v", d)
	}
	st := WorkerStatus{Clock: 3, Outage: out(1, 2), Counters: perdure.WorkerCounters{Samples: 5}}
	if d := say(st, false); d.HasCounters || !d.HasOutage || d.HasAcked || known.Clock != 3 {
		t.Errorf("an outage begins, and is told as %+v", d)
	}
	st.Outage = out(2, 2)
	if d := say(st, false); d.HasOutage || known.Outage.Seconds != 1 || known.Counters.Samples != 0 {
		t.Errorf("an outage lasts, and is told as %+v", d)
	}
	if d := say(st, true); d.Number != 4 || !reflect.DeepEqual(known, st) {
		t.Errorf("with the counts %+v is known, not %+v", known, st)
	}
	st.Outage, st.Acked = nil, []AckedClock{{Shard: 2, Applied: 3}}
	if say(st, false); !reflect.DeepEqual(known, st) {
		t.Errorf("at its end %+v is known, not %+v", known, st)
	}
}

// TestFollows checks that the number of the next message reveals a lost message.
func TestFollows(t *testing.T) {
	for _, c := range []struct {
		last, number uint64
		ok           bool
	}{{0, 1, true}, {7, 8, true}, {0, 2, false}, {7, 7, false}, {7, 9, false}, {7, 1, false}} {
		if err := CheckSequence(c.last, c.number); (err == nil) != c.ok || err != nil && !errors.Is(err, ErrStatusGap) {
			t.Errorf("word %d after %d: %v", c.number, c.last, err)
		}
	}
}

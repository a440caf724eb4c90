package updatelog

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestLostAck checks that a group whose acknowledgement is lost appears twice, and that the order is kept.
func TestLostAck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := memoryBackend{NewMemory()}
		l := open1(t, w)
		w.LoseAcks(2)
		put1(t, l, "a")
		put1(t, l, "b")
		wantTexts(t, l, Oldest, "a a a b")
	})
}

// TestDelay checks that the records of two producers interleave in a slow log.
func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := memoryBackend{NewMemory()}
		w.SetDelay(func(int) time.Duration { return time.Second })
		l, other := open1(t, w), open1(t, w)
		started := time.Now()
		p, q := start(t, l, pattern(1, 2*MaxRecord)), start(t, other, pattern(2, 2*MaxRecord))
		must(t, (<-p).err)
		must(t, (<-q).err)
		if took := time.Since(started); took != 3*time.Second {
			t.Fatalf("three records at one second each take %v", took)
		}
		entries, _, err := read(t, l, Oldest)
		must(t, err)
		if len(entries) != 2 || entries[0].Resume >= entries[0].Position {
			t.Fatalf("%d entries; the first at %d has resume position %d: its records are not interleaved",
				len(entries),
				entries[0].Position, entries[0].Resume)
		}
	})
}

// TestTooSlow checks that a group stored too slowly is ignored by all readers, and is sent again until it is fast
// enough.
func TestTooSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := memoryBackend{NewMemory()}
		n := 0
		w.SetDelay(func(int) time.Duration {
			if n++; n == 2 {
				return MaxSpan
			}
			return 0
		})
		l := open1(t, w)
		at := put1(t, l, pattern(1, 2*MaxRecord)) // three records per attempt
		entries, resume, err := read(t, l, Oldest)
		must(t, err)
		if at != 6 || len(entries) != 1 || entries[0].Position != 6 || resume != 7 {
			t.Fatalf("durable at %d, %d entries, resume position %d; want success on the second attempt", at,
				len(entries), resume)
		}
	})
}

// TestDeadGroup checks that readers stop waiting for the incomplete group of a dead producer.
func TestDeadGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := memoryBackend{NewMemory()}
		l := open1(t, w)
		dead := group(7, 1, pattern(1, 2*MaxRecord))
		put1(t, l, "a")
		w.put(t, 1, dead[0])
		put1(t, l, "b")
		up := make(chan Position, 2)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _ = l.Read(ctx, 1, Oldest, func(Entry) error { return nil }, func(p Position) { up <- p }) }()
		started := time.Now()
		if p := <-up; p != 2 {
			t.Errorf("caught up with resume position %d, want 2, where a group is open", p)
		}
		if p := <-up; p != 4 || time.Since(started) != MaxSpan {
			t.Errorf("after %v: resume position %d, want 4 after %v", time.Since(started), p, MaxSpan)
		}
		w.put(t, 1, dead[1])
		w.put(t, 1, dead[2])
		put1(t, l, "c")
		wantTexts(t, l, Oldest, "a b c")
	})
}

// TestAwayGroup checks that readers wait for an open group while the log is unavailable, because the log may have the
// rest.
func TestAwayGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := memoryBackend{NewMemory()}
		l := open1(t, w)
		text := pattern(1, 2*MaxRecord)
		parts := group(7, 1, text)
		w.put(t, 1, parts[0])
		up, got := make(chan Position, 2), make(chan string, 1)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			_ = l.Read(ctx, 1, Oldest, func(e Entry) error { got <- string(e.Payload); return nil },
				func(p Position) { up <- p })
		}()
		<-up
		synctest.Wait()
		w.set(func() { // the remaining records are stored without waking readers
			s := w.stream(job, 1)
			for _, r := range parts[1:] {
				s.records = append(s.records, memoryRecord{stored: time.Now(), bytes: r})
			}
			w.unavailable = true
		})
		time.Sleep(3 * MaxSpan)
		w.SetUnavailable(false)
		if s := <-got; s != text {
			t.Errorf("%s came", short(s))
		}
	})
}

// TestAlter checks that a change to a stored record is detected.
func TestAlter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := memoryBackend{NewMemory()}
		l := open1(t, w)
		at := put1(t, l, strings.Repeat("x", 100))
		w.Alter(job, 1, at, func(record []byte) { record[90]++ })
		_, _, err := read(t, l, Oldest)
		wantError(t, "a changed record", err, ErrDamaged, "checksum")
	})
}

// TestWaits checks that WaitReasons reports the start and the end of a wait once, and that appends wait for a log that
// stores nothing.
func TestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, w, news := NewMemory(), WaitReasons{}, 0
		l, err := m.Open(Options{Job: job, Shards: 2, Status: func(shard int, why error) {
			if w.Record(shard, why) {
				news++
			}
		}})
		must(t, err)
		defer l.Close()
		put1(t, l, "a")
		m.SetBroken(true)
		b := start(t, l, "b")
		time.Sleep(time.Minute) // of virtual time
		if got := w.Reason(); news != 1 || got != "the log's disk is full or failing" {
			t.Errorf("notified %d times: %q", news, got)
		}
		wantTexts(t, l, Oldest, "a")
		m.SetBroken(false)
		must(t, (<-b).err)
		if got := w.Reason(); news != 2 || got != "" {
			t.Errorf("notified %d times: %q", news, got)
		}
	})
}

// TestLateAnswer checks that a producer is notified after one second without an answer, and again when the answer
// arrives.
func TestLateAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory()
		var sent []string
		var mu sync.Mutex
		l, err := m.Open(Options{Job: job, Shards: 2, Status: func(shard int, why error) {
			mu.Lock()
			defer mu.Unlock()
			sent = append(sent, fmt.Sprint(shard, " ", why))
		}})
		must(t, err)
		defer l.Close()
		for _, takes := range []time.Duration{900 * time.Millisecond, 10 * time.Second, 0} {
			m.SetDelay(func(int) time.Duration { return takes })
			put1(t, l, "a")
		}
		mu.Lock()
		defer mu.Unlock()
		if got := strings.Join(sent, "; "); got != "1 "+ErrAway.Error()+": no response within 1s; 1 <nil>" {
			t.Errorf("notifications %q", got)
		}
	})
}

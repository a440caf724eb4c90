package updatelog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	const nats = "github.com/nats-io/nats-server/v2/server"
	// On a busy machine these end some time after Shutdown of their server has returned.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction(nats+".(*fileStore).flushStreamStateLoop"),
		goleak.IgnoreTopFunction(nats+"/ats.Register.func1"))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// backend is a log under test in the conformance suite, with faults that no client can cause.
type backend interface {
	open(t testing.TB, o Options) Log
	// put stores a raw record, bypassing all clients.
	put(t testing.TB, shard int, record []byte)
	// restart stops the log, calls during, and starts the log again.
	restart(t testing.TB, during func())
	// loseEnd removes shard 1's records from a position on, where the given text starts, while the log is stopped.
	loseEnd(t testing.TB, from Position, text string)
	// limit limits the size of each stream for clients that open the log later.
	limit(bytes int)
}

const job = "job-1"

type memoryBackend struct{ *Memory }

func (w memoryBackend) open(t testing.TB, o Options) Log {
	l, err := w.Open(o)
	must(t, err)
	return l
}

func (w memoryBackend) put(t testing.TB, shard int, record []byte) {
	_, err := (&memoryClient{w.Memory, job}).publish(t.Context(), shard, [][]byte{record})
	must(t, err)
}

func (w memoryBackend) restart(_ testing.TB, during func()) {
	w.SetUnavailable(true)
	during()
	w.SetUnavailable(false)
}

func (w memoryBackend) loseEnd(_ testing.TB, from Position, _ string) { w.TruncateFrom(job, 1, from) }

func (w memoryBackend) limit(bytes int) { w.SetLimit(bytes) }

// serverBackend is a log on JetStream, stored in a directory.
type serverBackend struct {
	dir    string
	server Server
	most   int64
}

func newServerBackend(t testing.TB, s Sync) *serverBackend {
	w := &serverBackend{dir: t.TempDir()}
	var err error
	w.server, err = Serve(w.dir, ServeOptions{Sync: s})
	must(t, err)
	t.Cleanup(func() { must(t, w.server.Close()) })
	return w
}

func (w *serverBackend) dial(t testing.TB, o Options) (Log, error) {
	return Dial(t.Context(), w.server.URL(), DialOptions{Options: o, MaxBytes: w.most})
}

func (w *serverBackend) open(t testing.TB, o Options) Log {
	l, err := w.dial(t, o)
	must(t, err)
	return l
}

func (w *serverBackend) put(t testing.TB, shard int, record []byte) {
	l := w.open(t, Options{Job: job, Shards: shard + 1})
	defer l.Close()
	_, err := l.(*log).store.publish(t.Context(), shard, [][]byte{record})
	must(t, err)
}

func (w *serverBackend) restart(t testing.TB, during func()) {
	must(t, w.server.Close())
	during()
	var err error
	w.server, err = Serve(w.dir, ServeOptions{})
	must(t, err)
}

func (w *serverBackend) loseEnd(t testing.TB, _ Position, text string) {
	files, _ := filepath.Glob(filepath.Join(w.dir, "jetstream", "$G", "streams", StreamName(job, 1), "msgs", "*"))
	cut := 0
	for _, file := range files {
		b, err := os.ReadFile(file)
		must(t, err)
		if filepath.Base(file) == "index.db" { // written on a graceful shutdown only, so missing after a crash
			must(t, os.Remove(file))
		} else if at := bytes.Index(b, []byte(text)); at >= 0 {
			cut++
			must(t, os.Truncate(file, int64(at)))
		}
	}
	if cut != 1 {
		t.Fatalf("%d of %d files contain the text", cut, len(files))
	}
}

func (w *serverBackend) limit(bytes int) { w.most = int64(bytes) }

func TestConformance(t *testing.T) {
	cases := map[string]func(t *testing.T, w backend){
		"order":                testOrder,
		"large":                testLarge,
		"together":             testTogether,
		"interleaved":          testInterleaved,
		"killed in a group":    testKilled,
		"given up":             testGivenUp,
		"middle":               testMiddle,
		"trim":                 testTrim,
		"follow":               testFollow,
		"caught up":            testCaughtUp,
		"restart":              testRestart,
		"lost end":             testLostEnd,
		"lost end of others":   testLostOthers,
		"damage":               testDamage,
		"other versions":       testOtherVersions,
		"full":                 testFull,
		"never fits":           testNeverFits,
		"fits in parts":        testFitsInParts,
		"bound":                testBound,
		"closed":               testClosed,
		"misuse":               testMisuse,
		"shards are their own": testShards,
	}
	for name, run := range cases {
		t.Run("memory/"+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { run(t, memoryBackend{NewMemory()}) })
		})
		t.Run("jetstream/"+name, func(t *testing.T) { run(t, newServerBackend(t, SyncInterval)) })
	}
}

func open1(t testing.TB, w backend) Log {
	l := w.open(t, Options{Job: job, Shards: 2})
	t.Cleanup(func() { must(t, l.Close()) })
	return l
}

// outcome is the result of an Append.
type outcome struct {
	at  Position
	err error
}

// start appends an entry to shard 1 and returns a channel for its outcome.
func start(t testing.TB, l Log, text string) <-chan outcome {
	t.Helper()
	c := make(chan outcome, 1)
	must(t, l.Append(t.Context(), 1, [][]byte{[]byte(text[:len(text)/2]), nil, []byte(text[len(text)/2:])},
		func(at Position, err error) { c <- outcome{at, err} }))
	return c
}

// put1 appends an entry and waits until it is durable.
func put1(t testing.TB, l Log, text string) Position {
	t.Helper()
	o := <-start(t, l, text)
	must(t, o.err)
	return o.at
}

// refused1 appends to shard 1 and returns the error.
func refused1(t testing.TB, l Log) error {
	t.Helper()
	done := make(chan error, 1)
	if err := l.Append(t.Context(), 1, [][]byte{[]byte("next")},
		func(_ Position, err error) { done <- err }); err != nil {
		return err
	}
	return <-done
}

var errEnough = errors.New("enough")

// read reads shard 1 from a position on until it has caught up.
func read(t testing.TB, l Log, from Position) (entries []Entry, resume Position, err error) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	err = l.Read(ctx, 1, from,
		func(e Entry) error { entries = append(entries, e); return nil },
		func(r Position) { resume = r; cancel(errEnough) })
	if context.Cause(ctx) == errEnough {
		err = nil
	}
	return entries, resume, err
}

func texts(entries []Entry) string {
	var all []string
	for _, e := range entries {
		all = append(all, short(string(e.Payload)))
	}
	return strings.Join(all, " ")
}

// short abbreviates long texts in messages.
func short(s string) string {
	if len(s) <= 8 {
		return s
	}
	return fmt.Sprintf("%s…%d", s[:4], len(s))
}

func wantTexts(t testing.TB, l Log, from Position, want string) (entries []Entry, resume Position) {
	t.Helper()
	entries, resume, err := read(t, l, from)
	if got := texts(entries); err != nil || got != want {
		t.Fatalf("read from %d: %q, %v; want %q", from, got, err, want)
	}
	return entries, resume
}

func wantError(t testing.TB, what string, got, want error, part string) {
	t.Helper()
	if !errors.Is(got, want) || strings.Contains(got.Error(), "\n") || !strings.Contains(got.Error(), part) {
		t.Fatalf("%s: got error %v, want one line that wraps %q and contains %q", what, got, want, part)
	}
}

func testOrder(t *testing.T, w backend) {
	l := open1(t, w)
	const n = 300
	var all []string
	var mu sync.Mutex
	var done []int
	last := make(chan struct{})
	for i := range n {
		all = append(all, fmt.Sprint("e", i))
		must(t, l.Append(t.Context(), 1, [][]byte{[]byte(all[i])}, func(_ Position, err error) {
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if done = append(done, i); len(done) == n {
				close(last)
			}
		}))
	}
	<-last
	for i, d := range done {
		if i != d {
			t.Fatalf("call %d of done was for entry %d", i, d)
		}
	}
	entries, resume := wantTexts(t, l, Oldest, strings.Join(all, " "))
	for i, e := range entries[1:] {
		if e.Position < entries[i].Position || e.Resume < entries[i].Resume {
			t.Fatalf("entry %d is at %d, %d, after one at %d, %d", i+1, e.Position, e.Resume, entries[i].Position,
				entries[i].Resume)
		}
	}
	if at := entries[n-1]; at.Resume != at.Position+1 || resume != at.Resume {
		t.Fatalf("the last entry is at %d with resume position %d; the read ended with %d", at.Position, at.Resume,
			resume)
	}
}

// pattern returns a text in which a misplaced byte is noticed.
func pattern(seed, n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*31 + i>>8*7 + seed)
	}
	return string(b)
}

func testLarge(t *testing.T, w backend) {
	l := open1(t, w)
	want := []string{"a", pattern(1, 5<<20), "", pattern(2, MaxRecord), "z"}
	var at Position
	for _, s := range want {
		at = put1(t, l, s)
	}
	entries, _, err := read(t, l, Oldest)
	must(t, err)
	for i, e := range entries {
		if string(e.Payload) != want[i] {
			t.Fatalf("entry %d is %s, want %s", i, short(string(e.Payload)), short(want[i]))
		}
	}
	if len(entries) != len(want) || entries[len(want)-1].Position != at {
		t.Fatalf("%d entries up to position %d, want %d up to %d", len(entries), entries[len(entries)-1].Position,
			len(want), at)
	}
	if records := entries[1].Position - entries[0].Position; records != 6 {
		t.Fatalf("5 MiB take %d records, want 6 including headers", records)
	}
}

// testTogether checks that entries that wait at the same time share records.
func testTogether(t *testing.T, w backend) {
	l := open1(t, w)
	put1(t, l, "first")
	var last <-chan outcome
	w.restart(t, func() {
		for range 50 {
			last = start(t, l, "x")
		}
	})
	at := <-last
	must(t, at.err)
	entries, _ := wantTexts(t, l, Oldest, "first"+strings.Repeat(" x", 50))
	records := map[Position]int{}
	for i, e := range entries {
		records[e.Position]++
		if i+1 < len(entries) && entries[i+1].Position == e.Position && e.Resume > e.Position {
			t.Fatalf("an entry at %d is followed by another at the same position, but has resume position %d",
				e.Position, e.Resume)
		}
	}
	if len(records) > 3 { // some of the others form a group immediately, and later ones follow in the next
		t.Fatalf("51 entries take %d records, want at most 3", len(records))
	}
	wantTexts(t, l, at.at, strings.TrimSpace(strings.Repeat(" x", records[at.at])))
}

// group returns the records of a group with one entry for shard 1.
func group(producer, number uint64, text string) [][]byte {
	return encode(Header{Job: job, Shard: 1, Producer: producer, Group: number}, [][][]byte{{[]byte(text)}})
}

func testInterleaved(t *testing.T, w backend) {
	l := open1(t, w)
	a, b := pattern(1, 2*MaxRecord), pattern(2, 2*MaxRecord)
	p, q := group(7, 1, a), group(8, 1, b)
	for _, r := range [][]byte{p[0], q[0], p[1], q[1]} {
		w.put(t, 1, r)
	}
	put1(t, l, "small")
	for _, r := range [][]byte{q[2], p[2]} {
		w.put(t, 1, r)
	}
	entries, resume, err := read(t, l, Oldest)
	must(t, err)
	if len(entries) != 3 || string(entries[0].Payload) != "small" || string(entries[1].Payload) != b ||
		string(entries[2].Payload) != a {
		t.Fatalf("read %s, want small and both large entries", texts(entries))
	}
	want := [][2]Position{{5, 1}, {6, 1}, {7, 8}}
	for i, e := range entries {
		if [2]Position{e.Position, e.Resume} != want[i] {
			t.Fatalf("entry %d: position %d, resume %d, want %v", i, e.Position, e.Resume, want[i])
		}
		again, _, err := read(t, l, e.Resume)
		must(t, err)
		for _, later := range entries[i+1:] {
			if !strings.Contains(texts(again), short(string(later.Payload))) {
				t.Fatalf("resuming from %d returns %s without the entry at %d", e.Resume, texts(again),
					later.Position)
			}
		}
	}
	if resume != 8 {
		t.Fatalf("wrong final resume position %d", resume)
	}
}

func testKilled(t *testing.T, w backend) {
	l := open1(t, w)
	dead := group(7, 1, pattern(1, 2*MaxRecord))
	w.put(t, 1, dead[0])
	w.put(t, 1, dead[1])
	put1(t, l, "after")
	other := group(8, 1, pattern(2, 2*MaxRecord)) // another producer, and another attempt
	again := group(7, 2, pattern(3, 2*MaxRecord))
	w.put(t, 1, other[2])
	w.put(t, 1, again[2])
	put1(t, l, "end")
	wantTexts(t, l, Oldest, "after end")
}

// testGivenUp checks that a resent group replaces its incomplete predecessor, late records included.
func testGivenUp(t *testing.T, w backend) {
	l := open1(t, w)
	a := pattern(1, 2*MaxRecord)
	first, second := group(7, 1, a), group(7, 2, a)
	for _, r := range [][]byte{first[0], first[1], second[0], first[2], second[1], second[2]} {
		w.put(t, 1, r)
	}
	hole := group(7, 3, a)
	w.put(t, 1, hole[0])
	w.put(t, 1, hole[2])
	entries, resume := wantTexts(t, l, Oldest, short(a))
	if string(entries[0].Payload) != a || entries[0].Position != 6 || resume != 9 {
		t.Fatalf("position %d, resume %d, want 6, 9", entries[0].Position, resume)
	}
}

func testMiddle(t *testing.T, w backend) {
	l := open1(t, w)
	var at []Position
	for i := range 6 {
		at = append(at, put1(t, l, fmt.Sprint("e", i)))
	}
	wantTexts(t, l, at[3], "e3 e4 e5")
	wantTexts(t, l, at[5]+1, "")
	_, _, err := read(t, l, at[5]+2)
	wantError(t, "reading after the end", err, ErrTrimmed, "")
}

func testTrim(t *testing.T, w backend) {
	l := open1(t, w)
	first, next, err := l.Extent(t.Context(), 1)
	if err != nil || first != 1 || next != 1 {
		t.Fatalf("extent of an empty log: %d, %d, %v", first, next, err)
	}
	for i := range 6 {
		put1(t, l, fmt.Sprint("e", i))
	}
	must(t, l.Trim(t.Context(), 1, 4))
	must(t, l.Trim(t.Context(), 1, 2)) // already trimmed
	if first, next, err = l.Extent(t.Context(), 1); err != nil || first != 4 || next != 7 {
		t.Fatalf("extent %d, %d, %v, want 4, 7", first, next, err)
	}
	wantTexts(t, l, Oldest, "e3 e4 e5")
	_, _, err = read(t, l, 3)
	wantError(t, "reading trimmed entries", err, ErrTrimmed, "4")
	must(t, l.Trim(t.Context(), 1, 1000))
	if first, next, err = l.Extent(t.Context(), 1); err != nil || first != 7 || next != 7 {
		t.Fatalf("extent %d, %d, %v, want 7, 7", first, next, err)
	}
	if at := put1(t, l, "new"); at != 7 {
		t.Fatalf("the next entry is at %d, want 7", at)
	}
	wantTexts(t, l, 7, "new")
}

func testFollow(t *testing.T, w backend) {
	l, other := open1(t, w), open1(t, w)
	put1(t, l, "old")
	got, up := make(chan string, 9), make(chan Position, 9)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		ended <- l.Read(ctx, 1, Oldest, func(e Entry) error { got <- string(e.Payload); return nil },
			func(p Position) { up <- p })
	}()
	if s, p := <-got, <-up; s != "old" || p != 2 {
		t.Errorf("got %s, caught up at %d, want old and 2", s, p)
	}
	for _, s := range []string{"x", "y"} {
		put1(t, other, s)
		if g := <-got; g != s {
			t.Errorf("got %s, want %s", g, s)
		}
	}
	cancel()
	wantError(t, "the reading", <-ended, context.Canceled, "")
	err := l.Read(t.Context(), 1, Oldest, func(Entry) error { return errEnough }, nil)
	wantError(t, "an error of deliver", err, errEnough, "")
}

// testCaughtUp checks that a reader is notified when it has read all existing entries.
func testCaughtUp(t *testing.T, w backend) {
	l := open1(t, w)
	if _, resume := wantTexts(t, l, Oldest, ""); resume != 1 {
		t.Fatalf("resume position %d of an empty log, want 1", resume)
	}
	dead := group(7, 1, pattern(1, 2*MaxRecord))
	w.put(t, 1, dead[0])
	if _, resume := wantTexts(t, l, Oldest, ""); resume != 1 {
		t.Fatalf("resume position %d of a log that ends within a group, want 1", resume)
	}
	put1(t, l, "a")
	entries, resume := wantTexts(t, l, Oldest, "a")
	if resume != 1 || entries[0].Resume != 1 {
		t.Fatalf("resume positions %d and %d, want 1 because a group is open", entries[0].Resume, resume)
	}
	for _, r := range dead[1:] {
		w.put(t, 1, r)
	}
	if _, resume = wantTexts(t, l, Oldest, "a "+short(pattern(1, 2*MaxRecord))); resume != 5 {
		t.Fatalf("resume position %d, want 5", resume)
	}
}

func testRestart(t *testing.T, w backend) {
	waits := make(chan error, 99)
	l := w.open(t, Options{Job: job, Shards: 2, Status: func(shard int, why error) {
		if shard != 1 {
			t.Errorf("status reported for shard %d", shard)
		}
		waits <- why
	}})
	defer l.Close()
	put1(t, l, "before")
	got := make(chan string, 9)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		ended <- l.Read(ctx, 1, Oldest, func(e Entry) error { got <- string(e.Payload); return nil }, nil)
	}()
	if s := <-got; s != "before" {
		t.Errorf("got %s first, want before", s)
	}
	var all []<-chan outcome
	w.restart(t, func() {
		for i := range 5 {
			all = append(all, start(t, l, fmt.Sprint("w", i)))
		}
		if err := <-waits; !errors.Is(err, ErrAway) {
			t.Errorf("status %v, want ErrAway", err)
		}
	})
	for i, c := range all {
		must(t, (<-c).err)
		if s := <-got; s != fmt.Sprint("w", i) {
			t.Errorf("got %s, want w%d", s, i)
		}
	}
	for err := range waits {
		if err == nil {
			break
		}
	}
	cancel()
	<-ended
	wantTexts(t, l, Oldest, "before w0 w1 w2 w3 w4")
}

// testLostEnd checks that neither readers nor producers continue on a log that comes back without its last records. A
// reader that has read further would miss the records that replace the lost ones.
func testLostEnd(t *testing.T, w backend) {
	for name, after := range map[string]int{"no new records": 0, "as many new records": 4} {
		l, other := open1(t, w), open1(t, w)
		first := put1(t, l, "before")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		got, ended := make(chan string, 99), make(chan error, 1)
		go func() {
			ended <- l.Read(ctx, 1, first, func(e Entry) error { got <- string(e.Payload); return nil }, nil)
		}()
		from := put1(t, l, "lost "+name)
		for s := ""; s != "last "+name; s = <-got {
			if s == "" {
				put1(t, l, "last "+name)
			}
		}
		w.restart(t, func() { w.loseEnd(t, from, "lost "+name) })
		for i := range after {
			put1(t, other, fmt.Sprint(name, i))
		}
		wantError(t, name+": reading", <-ended, ErrDamaged, "it was acknowledged")
		if after == 0 {
			wantError(t, name+": appending", refused1(t, l), ErrDamaged, "start the job again")
		}
	}
}

// testLostOthers checks that a producer learns that its last records are lost, although other producers appended more
// records since, so that positions grew. It is notified immediately and on its next append. Producers whose last record
// still exists, or was trimmed, are not affected.
func testLostOthers(t *testing.T, w backend) {
	lost := make(chan error, 9)
	tell := func(shard int, err error) { lost <- fmt.Errorf("shard %d: %w", shard, err) }
	l, other := w.open(t, Options{Job: job, Shards: 2, OnLost: tell}), w.open(t,
		Options{Job: job, Shards: 2, OnLost: tell})
	defer l.Close()
	defer other.Close()
	put1(t, other, "before")
	from := put1(t, l, "lost without a reader")
	w.restart(t, func() { w.loseEnd(t, from, "lost without a reader") })
	for range 3 {
		put1(t, other, "after")
	}
	wantError(t, "the reported loss", <-lost, ErrDamaged, fmt.Sprintf("record %d of stream perdure-job-1-1", from))
	wantError(t, "appending", refused1(t, l), ErrDamaged, "start the job again")
	put1(t, other, "last")
	third := w.open(t, Options{Job: job, Shards: 2, OnLost: tell})
	defer third.Close()
	must(t, other.Trim(t.Context(), 1, put1(t, third, "kept")))
	from = put1(t, third, "lost of a third")
	w.restart(t, func() { w.loseEnd(t, from, "lost of a third") })
	wantError(t, "the reported loss", <-lost, ErrDamaged, fmt.Sprintf("record %d of stream perdure-job-1-1", from))
	put1(t, other, "goes on")
	if len(lost) > 0 {
		t.Errorf("another producer was notified: %v", <-lost)
	}
}

func testDamage(t *testing.T, w backend) {
	l := open1(t, w)
	put1(t, l, "good")
	for _, at := range []int{0, 7, 10, 14, 20, 30, 50, -1} { // covers every part of a record
		r := bytes.Clone(group(7, 1, "damaged")[0])
		r[(at+len(r))%len(r)] ^= 4
		first, next, err := l.Extent(t.Context(), 1)
		must(t, err)
		w.put(t, 1, r)
		put1(t, l, "behind")
		entries, _, err := read(t, l, first)
		wantError(t, fmt.Sprintf("damage of byte %d", at), err, ErrDamaged, "perdure-job-1-1")
		var where *DamageError
		if !errors.As(err, &where) || where.Shard != 1 || where.Position != next || texts(entries) != "good" {
			t.Fatalf("byte %d: %+v after %q, want damage at %d", at, where, texts(entries), next)
		}
		must(t, l.Trim(t.Context(), 1, next+2))
		put1(t, l, "good")
	}
	for what, r := range map[string][]byte{
		"job job-2": encode(Header{Job: "job-2", Shard: 1, Producer: 1, Group: 1}, [][][]byte{{}})[0],
		"shard 0":   encode(Header{Job: job, Shard: 0, Producer: 1, Group: 1}, [][][]byte{{}})[0],
		"header":    []byte("hello"),
	} {
		_, next, err := l.Extent(t.Context(), 1)
		must(t, err)
		w.put(t, 1, r)
		_, _, err = read(t, l, next)
		wantError(t, "a record of another shard", err, ErrDamaged, what)
	}
}

func testOtherVersions(t *testing.T, w backend) {
	l := open1(t, w)
	for _, version := range []byte{Version - 1, Version + 1} {
		_, next, err := l.Extent(t.Context(), 1)
		must(t, err)
		r := group(7, 1, "other version")[0]
		r[4] = version
		seal(r)
		w.put(t, 1, r)
		_, _, err = read(t, l, next)
		wantError(t, "a record of another version", err, ErrRefused, fmt.Sprintf(
			"(format %d, this one reads format %d); use the version that wrote it", version, Version))
	}
}

func testFull(t *testing.T, w backend) {
	w.limit(100_000)
	waits := make(chan error, 999)
	l := w.open(t, Options{Job: job, Shards: 2, Status: func(_ int, why error) { waits <- why }})
	defer l.Close()
	big := strings.Repeat("x", 30_000)
	for range 3 {
		put1(t, l, big)
	}
	waiting := start(t, l, big)
	small := start(t, l, "small") // would fit, but must stay in order
	if err := <-waits; !errors.Is(err, ErrFull) {
		t.Fatalf("status %v, want ErrFull", err)
	}
	if err := <-waits; !errors.Is(err, ErrFull) { // reported again with each retry
		t.Fatalf("status %v, want ErrFull", err)
	}
	must(t, l.Trim(t.Context(), 1, 3))
	must(t, (<-waiting).err)
	must(t, (<-small).err)
	wantTexts(t, l, 3, short(big)+" "+short(big)+" small")
}

func testNeverFits(t *testing.T, w backend) {
	w.limit(100_000)
	l := open1(t, w)
	put1(t, l, "a")
	o := <-start(t, l, strings.Repeat("x", 200_000))
	wantError(t, "an entry larger than the stream's limit", o.err, ErrRefused, "200")
	err := l.Append(t.Context(), 1, nil, func(Position, error) {})
	wantError(t, "the next", err, ErrRefused, "200")
}

// testFitsInParts appends far more than a stream holds. The entries are sent in groups that fit while the stream is
// trimmed.
func testFitsInParts(t *testing.T, w backend) {
	w.limit(100_000)
	full := make(chan struct{}, 999)
	l := w.open(t, Options{Job: job, Shards: 2, Status: func(_ int, why error) {
		if errors.Is(why, ErrFull) {
			full <- struct{}{}
		}
	}})
	defer l.Close()
	put1(t, l, "a")
	const n = 30
	var done []<-chan outcome
	w.restart(t, func() {
		for i := range n {
			done = append(done, start(t, l, pattern(i, 10_000)))
		}
	})
	for _, d := range done {
		for here := true; here; {
			select {
			case o := <-d:
				must(t, o.err)
				here = false
			case <-full:
				_, next, err := l.Extent(t.Context(), 1)
				must(t, err)
				must(t, l.Trim(t.Context(), 1, next))
			}
		}
	}
}

func testBound(t *testing.T, w backend) {
	l := w.open(t, Options{Job: job, Shards: 2, MaxInFlight: 100})
	defer l.Close()
	big := strings.Repeat("x", 80)
	w.restart(t, func() {
		start(t, l, big)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		err := l.Append(ctx, 0, [][]byte{[]byte(big)}, func(Position,
			error,
		) {
			t.Error("done was called for an entry that was not accepted")
		})
		wantError(t, "an Append above the bound", err, context.DeadlineExceeded, "")
	})
	put1(t, l, big)
	put1(t, l, strings.Repeat("y", 1000)) // any size may be sent alone
	wantTexts(t, l, Oldest, fmt.Sprintf("%s %s %s", short(big), short(big), "yyyy…1000"))
}

func testClosed(t *testing.T, w backend) {
	l := w.open(t, Options{Job: job, Shards: 2, MaxInFlight: 1})
	put1(t, l, "a")
	up, ended, waits := make(chan Position, 1), make(chan error), make(chan error)
	go func() {
		ended <- l.Read(t.Context(), 1, Oldest, func(Entry) error { return nil }, func(p Position) { up <- p })
	}()
	<-up
	var late <-chan outcome
	w.restart(t, func() {
		late = start(t, l, "b")
		go func() { waits <- l.Append(t.Context(), 1, [][]byte{[]byte("c")}, nil) }()
		must(t, l.Close())
	})
	wantError(t, "an entry in flight", (<-late).err, ErrClosed, "")
	wantError(t, "a blocked Append", <-waits, ErrClosed, "")
	wantError(t, "a reader", <-ended, ErrClosed, "")
	wantError(t, "Append", l.Append(t.Context(), 1, nil, nil), ErrClosed, "")
	_, _, err := l.Extent(t.Context(), 1)
	wantError(t, "Extent", err, ErrClosed, "")
	wantError(t, "Trim", l.Trim(t.Context(), 1, 1), ErrClosed, "")
	wantError(t, "Read", l.Read(t.Context(), 1, 1, nil, nil), ErrClosed, "")
	must(t, l.Close())
}

func testMisuse(t *testing.T, w backend) {
	l := open1(t, w)
	for _, shard := range []int{-1, 2} {
		wantError(t, "Append", l.Append(t.Context(), shard, nil, nil), ErrRefused, "0 to 1")
		wantError(t, "Read", l.Read(t.Context(), shard, 1, nil, nil), ErrRefused, "0 to 1")
		wantError(t, "Trim", l.Trim(t.Context(), shard, 1), ErrRefused, "0 to 1")
		_, _, err := l.Extent(t.Context(), shard)
		wantError(t, "Extent", err, ErrRefused, "0 to 1")
	}
	for _, o := range []Options{
		{Job: "a.b", Shards: 1},
		{Job: "", Shards: 1},
		{Job: "a"},
		{Job: strings.Repeat("a", 65), Shards: 1},
	} {
		if err := o.check(); !errors.Is(err, ErrRefused) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func testShards(t *testing.T, w backend) {
	l := open1(t, w)
	c := make(chan outcome, 1)
	must(t, l.Append(t.Context(), 0, [][]byte{[]byte("zero")}, func(at Position, err error) { c <- outcome{at, err} }))
	must(t, (<-c).err)
	if at := put1(t, l, "one"); at != 1 {
		t.Fatalf("the first entry of the shard is at %d, want 1", at)
	}
	wantTexts(t, l, Oldest, "one")
}

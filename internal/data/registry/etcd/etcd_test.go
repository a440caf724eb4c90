package etcd

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/perdure/perdure/internal/data/registry"
	"github.com/perdure/perdure/internal/data/registry/registrytest"
)

var seedFlag = flag.Uint64("etcd.seed", 1, "the seed of random choices")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// quick is the timing for a fake server, which answers immediately.
var quick = timing{
	ttl: 2 * time.Second, renew: time.Millisecond, renewDeadline: time.Minute, firstAttempt: 5 * time.Second,
	maxAttempt: 5 * time.Second,
	patience:   10 * time.Second, pause: time.Millisecond, release: time.Second, now: time.Now,
}

func open(t testing.TB, f *registrytest.EtcdServer, change ...func(*timing)) *Registry {
	t.Helper()
	timing := quick
	for _, c := range change {
		c(&timing)
	}
	r, err := openWith(t.Context(), "etcd://"+f.Addr+"/a/job", timing)
	must(t, err)
	t.Cleanup(func() { must(t, r.Close()) })
	return r
}

func subject(t testing.TB) (registrytest.Clients, func()) {
	f := registrytest.NewEtcd(t, nil)
	return func(t testing.TB) registry.Registry { return open(t, f) }, f.Expire
}

func TestConformance(t *testing.T) {
	registrytest.Run(t, registrytest.Implementation{Name: "etcd", New: subject})
}

func TestLinearizable(t *testing.T) {
	registrytest.Linearizable(t, registrytest.Implementation{Name: "etcd", New: subject})
}

func acquire(t testing.TB, r *Registry) *lease {
	t.Helper()
	l, err := r.Acquire(t.Context(), registry.Holder{PID: 7, Host: "box"})
	must(t, err)
	return l.(*lease)
}

func save(t testing.TB, l registry.Lease, doc []byte, previous uint64) uint64 {
	t.Helper()
	revision, err := l.Save(t.Context(), doc, previous)
	must(t, err)
	return revision
}

func wantDoc(t testing.TB, r *Registry, doc []byte, revision uint64) {
	t.Helper()
	got, at, err := r.Load(t.Context())
	if err != nil || !bytes.Equal(got, doc) || at != revision {
		t.Errorf("got %.20q (%d bytes) at revision %d, error %v; want %.20q (%d bytes) at %d", got, len(got), at, err,
			doc,
			len(doc), revision)
	}
}

func wantError(t testing.TB, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) || strings.Contains(got.Error(), "\n") {
		t.Errorf("%s: got error %v, want one line that wraps %q", what, got, want)
	}
}

// document generates a document with lines like those of a job record.
func document(rng *rand.Rand, size int) []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, `{"shard":%d,"server":%d,"epoch":%d,"since":%d},`, i, rng.IntN(100), rng.IntN(1000),
			rng.Uint32())
	}
	return b.Bytes()[:size]
}

// small limits transactions to a few chunks, so that most documents need several.
func small(r *Registry) *Registry {
	r.txnBytes = 30 << 10
	return r
}

// names returns the keys of a registry, without its prefix.
func names(f *registrytest.EtcdServer) (names []string) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	for key := range maps.Keys(f.Keys) {
		names = append(names, strings.TrimPrefix(key, "a/job/"))
	}
	slices.Sort(names)
	return names
}

// nth injects a fault into the nth call from now on. struck reports whether it occurred.
func nth(f *registrytest.EtcdServer, n int, is registrytest.Fault) (struck func() bool) {
	var mu sync.Mutex
	f.InjectFaults(func(string) registrytest.Fault {
		mu.Lock()
		defer mu.Unlock()
		if n--; n == 0 {
			return is
		}
		return registrytest.NoFault
	})
	return func() bool { mu.Lock(); defer mu.Unlock(); return n <= 0 }
}

// TestSaveAgain checks that a Save takes effect once, whichever of its calls is lost or succeeds without an answer, and
// also if it was given up and is retried.
func TestSaveAgain(t *testing.T) {
	rng := rand.New(rand.NewPCG(*seedFlag, 0))
	one, two := document(rng, 90<<10), document(rng, 150<<10)
	for _, is := range []registrytest.Fault{registrytest.RequestLost, registrytest.ReplyLost} {
		for _, patience := range []time.Duration{quick.patience, 0} {
			for n, struck := 1, true; struck; n++ {
				f := registrytest.NewEtcd(t, nil)
				// Renewals would count as calls.
				r := small(open(t, f, func(t *timing) { t.patience, t.renew = patience, time.Hour }))
				l := acquire(t, r)
				first := save(t, l, one, 0)
				was := nth(f, n, is)
				second, err := l.Save(t.Context(), two, first)
				struck = was()
				f.InjectFaults(nil)
				if err != nil {
					if patience > 0 || !struck {
						t.Fatalf("call %d, fault %d: %v", n, is, err)
					}
					wantError(t, "an abandoned Save", err, registry.ErrUnavailable)
					second = save(t, l, two, first)
				}
				wantDoc(t, r, two, second)
				_, err = l.Save(t.Context(), two, first)
				wantError(t, "saving again", err, registry.ErrConflict)
				clean(t, f, two)
			}
		}
	}
}

// TestMemberSilent checks that a member that does not answer, like one whose machine is gone, is replaced by another
// one permanently.
func TestMemberSilent(t *testing.T) {
	f := registrytest.NewEtcd(t, nil)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // never accepts
	must(t, err)
	defer silent.Close()
	hasty := quick
	hasty.firstAttempt, hasty.renew = 500*time.Millisecond, time.Hour
	r, err := openWith(t.Context(), "etcd://"+f.Addr+","+silent.Addr().String()+"/a/job", hasty)
	must(t, err)
	defer r.Close()
	if r.members.hosts[0] == f.Addr {
		r.members.reportFailure(r.members.current())
	}
	turn := r.members.current()
	l := acquire(t, r)
	revision := save(t, l, []byte("1"), 0)
	wantDoc(t, r, []byte("1"), revision)
	if now := r.members.current(); now != turn+1 || r.members.hosts[0] != f.Addr {
		t.Errorf("switched members %d times, last to %s; want once, to %s", now-turn, r.members.hosts[0], f.Addr)
	}
	must(t, silent.Close())
	r.members.reportFailure(r.members.current()) // the member is gone
	wantDoc(t, r, []byte("1"), revision)
}

// TestMay checks that timeouts grow every second attempt, up to the maximum.
func TestMay(t *testing.T) {
	var may []time.Duration
	for unheard := range 8 {
		may = append(may, defaultTiming.attemptTimeout(unheard))
	}
	ms := time.Millisecond
	want := []time.Duration{
		300 * ms, 300 * ms, 600 * ms, 600 * ms, 1200 * ms, 1200 * ms, 2000 * ms, 2000 * ms,
	}
	if !slices.Equal(
		may,
		want,
	) || defaultTiming.attemptTimeout(1000) != defaultTiming.maxAttempt || quick.attemptTimeout(0) != quick.maxAttempt {
		t.Errorf("timeouts %v, want %v", may, want)
	}
}

// clean checks that the registry has only the keys that a document needs.
func clean(t testing.TB, f *registrytest.EtcdServer, doc []byte) {
	t.Helper()
	want := []string{headKey, holderKey}
	for _, c := range splitChunks(doc) {
		want = append(want, chunkKeys+c.name)
	}
	slices.Sort(want)
	if got := names(f); !slices.Equal(got, slices.Compact(want)) {
		t.Errorf("got %d keys, want %d", len(got), len(want))
	}
}

// TestSaveOtherwise checks that after a Save with an unknown result, another document cannot be saved unnoticed, and
// that another process's identical document is not mistaken for the own one.
func TestSaveOtherwise(t *testing.T) {
	f := registrytest.NewEtcd(t, nil)
	r := open(t, f, func(t *timing) { t.patience = 0 })
	l := acquire(t, r)
	fail := func(is registrytest.Fault) {
		f.InjectFaults(func(call string) registrytest.Fault {
			if call == "Txn" {
				return is
			}
			return registrytest.NoFault
		})
	}
	first := save(t, l, []byte("zero"), 0)
	fail(registrytest.ReplyLost)
	_, err := l.Save(t.Context(), []byte("one"), first)
	wantError(t, "Save", err, registry.ErrUnavailable)
	f.InjectFaults(nil)
	_, err = l.Save(t.Context(), []byte("other"), first)
	wantError(t, "another Save", err, registry.ErrConflict)
	second := save(t, l, []byte("one"), first) // had taken effect
	wantDoc(t, r, []byte("one"), second)

	fail(registrytest.RequestLost)
	_, err = l.Save(t.Context(), []byte("two"), second)
	wantError(t, "Save", err, registry.ErrUnavailable)
	f.InjectFaults(nil)
	f.Expire()
	successor := acquire(t, open(t, f))
	third := save(t, successor, []byte("two"), second)
	_, err = l.Save(t.Context(), []byte("two"), second)
	wantError(t, "the same document of another process", err, registry.ErrLost)
	wantDoc(t, r, []byte("two"), third)
}

// TestLate checks that an abandoned Save that reaches etcd after another one changes nothing.
func TestLate(t *testing.T) {
	f := registrytest.NewEtcd(t, nil)
	r := open(t, f)
	l := acquire(t, r)
	first := save(t, l, []byte("one"), 0)
	ctx, cancel := context.WithCancel(t.Context())
	f.InjectFaults(func(call string) registrytest.Fault {
		if call != "Txn" {
			return registrytest.NoFault
		}
		f.InjectFaults(nil)
		cancel()
		return registrytest.Delayed
	})
	_, err := l.Save(ctx, []byte("late"), first)
	wantError(t, "Save", err, context.Canceled)
	second := save(t, l, []byte("two"), first)
	close(f.ResumeDelayed)
	<-f.DelayedDone
	wantDoc(t, r, []byte("two"), second)
	clean(t, f, []byte("two"))
}

// TestLostMidway checks that a lease that ends at any call of a Save, while another process takes over and saves,
// results in ErrLost and changes nothing, even if chunks were already put.
func TestLostMidway(t *testing.T) {
	rng := rand.New(rand.NewPCG(*seedFlag, 1))
	zero, mine, others := document(rng, 60<<10), document(rng, 150<<10), document(rng, 90<<10)
	for n, more := 1, true; more; n++ {
		f := registrytest.NewEtcd(t, nil)
		slow := func(t *timing) { t.renew = time.Hour }
		r, other := small(open(t, f, slow)), small(open(t, f, slow))
		l := acquire(t, r)
		first := save(t, l, zero, 0)
		var second uint64
		left := n
		f.InjectFaults(func(string) registrytest.Fault {
			if left--; left == 0 {
				f.InjectFaults(nil)
				f.Expire()
				second = save(t, acquire(t, other), others, first)
			}
			return registrytest.NoFault
		})
		saved, err := l.Save(t.Context(), mine, first)
		f.InjectFaults(nil)
		if more = left <= 0; !more {
			must(t, err)
			wantDoc(t, other, mine, saved)
			continue
		}
		wantError(t, fmt.Sprintf("Save, call %d", n), err, registry.ErrLost)
		wantDoc(t, r, others, second)
		<-l.Done()
		doc := append(others, 'x') // the next Save removes what the dead process left
		save(t, other.lease, doc, second)
		clean(t, f, doc)
	}
}

// TestLostAfterSending checks what Save returns if the lease ends after an attempt without an answer: ErrOutcomeUnknown
// if the next holder has saved, because the attempt may have taken effect before that; otherwise the outcome is known.
func TestLostAfterSending(t *testing.T) {
	for _, fault := range []registrytest.Fault{registrytest.ReplyLost, registrytest.RequestLost} {
		for _, retries := range []bool{true, false} { // within the call, and by the caller
			for _, saves := range []bool{true, false} { // of the next holder
				name := fmt.Sprintf("fault %d, retries %v, next holder saves %v", fault, retries, saves)
				t.Run(name, func(t *testing.T) { testLostAfterSending(t, fault, retries, saves) })
			}
		}
	}
}

func testLostAfterSending(t *testing.T, fault registrytest.Fault, retries, nextSaves bool) {
	f := registrytest.NewEtcd(t, nil)
	r := open(t, f, func(t *timing) {
		t.renew = time.Hour
		if !retries {
			t.patience = 0
		}
	})
	other := open(t, f)
	l := acquire(t, r)
	first := save(t, l, []byte("one"), 0)
	takeOver := func() {
		f.InjectFaults(nil)
		f.Expire()
		next := acquire(t, other)
		if nextSaves {
			_, at, err := other.Load(t.Context())
			must(t, err)
			save(t, next, []byte("three"), at)
		}
	}
	sent := false
	f.InjectFaults(func(string) registrytest.Fault {
		if !sent {
			sent = true
			return fault
		}
		takeOver()
		return registrytest.NoFault
	})
	saved, err := l.Save(t.Context(), []byte("two"), first)
	if !retries {
		wantError(t, "Save", err, registry.ErrUnavailable)
		takeOver()
		saved, err = l.Save(t.Context(), []byte("two"), first)
	}
	switch {
	case nextSaves:
		wantError(t, "Save", err, registry.ErrOutcomeUnknown)
		_, err = l.Save(t.Context(), []byte("two"), first) // finds the lease ended
		wantError(t, "Save once more", err, registry.ErrOutcomeUnknown)
	case fault == registrytest.ReplyLost:
		must(t, err)
		wantDoc(t, r, []byte("two"), saved)
	default:
		wantError(t, "Save", err, registry.ErrLost)
		if errors.Is(err, registry.ErrOutcomeUnknown) {
			t.Errorf("the document was not replaced, but Save returned %v", err)
		}
		wantDoc(t, r, []byte("one"), first)
	}
	_, err = l.Save(t.Context(), []byte("four"), first)
	if !errors.Is(err, registry.ErrLost) && !errors.Is(err, registry.ErrConflict) ||
		errors.Is(err, registry.ErrOutcomeUnknown) {
		t.Errorf("another Save returned %v", err)
	}
}

// TestNeverHalf checks that concurrent readers of large documents, which need several transactions, always get a
// complete document and its revision.
func TestNeverHalf(t *testing.T) {
	f := registrytest.NewEtcd(t, nil)
	r := small(open(t, f))
	l := acquire(t, r)
	rng := rand.New(rand.NewPCG(*seedFlag, 2))
	type loaded struct {
		doc      string
		revision uint64
	}
	docs, stop := map[uint64]string{0: ""}, make(chan struct{})
	var wg sync.WaitGroup
	var all [2][]loaded
	for i := range all {
		reader := open(t, f)
		wg.Go(func() {
			for {
				doc, revision, err := reader.Load(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				all[i] = append(all[i], loaded{string(doc), revision})
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	at, doc := uint64(0), document(rng, 60<<10)
	for range 40 {
		from := rng.IntN(len(doc))
		doc = slices.Concat(doc[:from], document(rng, rng.IntN(90<<10)), doc[min(len(doc), from+rng.IntN(90<<10)):])
		at = save(t, l, doc, at)
		docs[at] = string(doc)
	}
	close(stop)
	wg.Wait()
	n := 0
	for _, one := range all {
		for _, got := range one {
			if n++; docs[got.revision] != got.doc {
				t.Fatalf("revision %d: loaded %d bytes, want the saved %d bytes", got.revision, len(got.doc),
					len(docs[got.revision]))
			}
		}
	}
	t.Logf("%d loads; seed %d", n, *seedFlag)
	wantDoc(t, r, doc, at)
	clean(t, f, doc)
}

// TestSmallChange checks that a small change of a large document writes little data, even if it shifts all later bytes.
func TestSmallChange(t *testing.T) {
	f := registrytest.NewEtcd(t, nil)
	r := open(t, f)
	l := acquire(t, r)
	rng := rand.New(rand.NewPCG(*seedFlag, 3))
	doc := document(rng, 1<<20)
	at := save(t, l, doc, 0)
	calls := func() (txns, put int) { f.Mu.Lock(); defer f.Mu.Unlock(); return f.Calls["Txn"], f.Written }
	txns, put := calls()
	const changes = 10
	for range changes {
		from := rng.IntN(len(doc))
		doc = slices.Concat(doc[:from], []byte("new"), doc[from+rng.IntN(6):])
		at = save(t, l, doc, at)
	}
	again, wrote := calls()
	if each := (wrote - put) / changes; each > 32<<10 {
		t.Errorf("a small change of %d bytes wrote %d bytes", len(doc), each)
	} else {
		t.Logf("a small change of %d bytes wrote %d bytes on average", len(doc), each)
	}
	if again-txns != changes {
		t.Errorf("%d saves took %d transactions", changes, again-txns)
	}
	wantDoc(t, r, doc, at)
	clean(t, f, doc)
}

// TestAway checks that an unavailable registry does not end a lease. When it is available again, the holder can save;
// if the lease is gone, the holder is notified.
func TestAway(t *testing.T) {
	f := registrytest.NewEtcd(t, nil)
	r := open(t, f, func(t *timing) { t.patience = 5 * time.Millisecond })
	l := acquire(t, r)
	first := save(t, l, []byte("one"), 0)
	tried := make(chan struct{})
	away := func() {
		n := 0
		var mu sync.Mutex
		f.InjectFaults(func(call string) registrytest.Fault {
			mu.Lock()
			defer mu.Unlock()
			if call == "LeaseKeepAlive" {
				if n++; n == 5 {
					close(tried)
				}
			}
			return registrytest.RequestLost
		})
	}
	away()
	_, err := l.Save(t.Context(), []byte("two"), first)
	wantError(t, "Save", err, registry.ErrUnavailable)
	_, _, err = r.Load(t.Context())
	wantError(t, "Load", err, registry.ErrUnavailable)
	_, err = open(t, f, func(t *timing) { t.patience = 0 }).Acquire(t.Context(), registry.Self())
	wantError(t, "Acquire", err, registry.ErrUnavailable)
	<-tried
	if l.ended() {
		t.Error("an unavailable registry ended a lease")
	}
	f.InjectFaults(nil)
	second := save(t, l, []byte("two"), first)
	wantDoc(t, r, []byte("two"), second)

	tried = make(chan struct{})
	away()
	<-tried
	f.Expire()
	f.InjectFaults(nil)
	<-l.Done()
	_, err = l.Save(t.Context(), []byte("three"), second)
	wantError(t, "Save", err, registry.ErrLost)
}

// TestGivenUp checks that a holder that is cut off alone gives up its lease.
func TestGivenUp(t *testing.T) {
	f := registrytest.NewEtcd(t, nil)
	r := open(t, f, func(t *timing) { t.renewDeadline, t.patience = 20*time.Millisecond, 0 })
	l := acquire(t, r)
	f.InjectFaults(func(string) registrytest.Fault { return registrytest.RequestLost })
	<-l.Done()
	f.InjectFaults(nil)
	_, err := l.Save(t.Context(), nil, 0)
	wantError(t, "Save", err, registry.ErrLost)
}

// TestKeyTakenAway checks that deleting the holder's key ends the lease.
func TestKeyTakenAway(t *testing.T) {
	f := registrytest.NewEtcd(t, nil)
	r := open(t, f)
	l := acquire(t, r)
	f.Mu.Lock()
	delete(f.Keys, "a/job/"+holderKey)
	f.Mu.Unlock()
	<-l.Done()
}

// TestAcquireUnheard checks that a failed Acquire, and one that succeeded without an answer, do not block others.
func TestAcquireUnheard(t *testing.T) {
	for _, is := range []registrytest.Fault{registrytest.RequestLost, registrytest.ReplyLost} {
		for n, struck := 1, true; struck; n++ {
			f := registrytest.NewEtcd(t, nil)
			r := open(t, f)
			was := nth(f, n, is)
			l := acquire(t, r)
			struck = was()
			f.InjectFaults(nil)
			save(t, l, []byte("one"), 0)
			must(t, l.Release())
			f.Mu.Lock()
			if len(f.Leases) > 0 &&
				is != registrytest.ReplyLost { // a lease granted without an answer expires by itself
				t.Errorf("call %d: %d leases left", n, len(f.Leases))
			}
			f.Mu.Unlock()
		}
	}
}

// TestErrors checks that etcd's errors become one line that names the registry, and that temporary ones are retried.
func TestErrors(t *testing.T) {
	f := registrytest.NewEtcd(t, nil)
	r := open(t, f)
	l := acquire(t, r)
	_, err := l.Save(t.Context(), make([]byte, maxBytes+1), 0)
	wantError(t, "an oversized document", err, errLarge)
	first := save(t, l, []byte("one"), 0)
	for what, spoil := range map[string]func(){
		"head":  func() { f.Keys["a/job/"+headKey].Value = []byte("PERDURE REGISTRY-HEAD 1 x") },
		"chunk": func() { f.Keys["a/job/"+chunkKeys+chunkName([]byte("one"))].Value = []byte("two") },
		"none":  func() { delete(f.Keys, "a/job/"+chunkKeys+chunkName([]byte("one"))) },
		"older": func() { f.Keys["a/job/"+headKey].Value = []byte("PERDURE REGISTRY-HEAD 0 x") },
		"newer": func() { f.Keys["a/job/"+headKey].Value = []byte("PERDURE REGISTRY-HEAD 2 x") },
	} {
		f.Mu.Lock()
		was := maps.Clone(f.Keys)
		for key, kv := range was {
			f.Keys[key] = registrytest.Copy(kv)
		}
		spoil()
		f.Mu.Unlock()
		_, _, err := r.Load(t.Context())
		want := registry.ErrCorrupt
		if what == "newer" || what == "older" {
			want = registry.ErrOtherVersion
		}
		wantError(t, what, err, want)
		if err != nil && !strings.HasPrefix(err.Error(), "registry: etcd://"+f.Addr+"/a/job: ") {
			t.Errorf("%q does not name the registry", err)
		}
		f.Mu.Lock()
		f.Keys = was
		f.Mu.Unlock()
	}
	wantDoc(t, r, []byte("one"), first)
}

var update = flag.Bool("update", false, "write the golden files")

// TestGolden checks that later versions can read the keys in etcd.
func TestGolden(t *testing.T) {
	const golden = "testdata/keys-1.golden"
	f := registrytest.NewEtcd(t, nil)
	r := open(t, f)
	l := acquire(t, r)
	save(t, l, document(rand.New(rand.NewPCG(1, 1)), 100<<10), save(t, l, []byte("one"), 0))
	var got bytes.Buffer
	f.Mu.Lock()
	for _, key := range slices.Sorted(maps.Keys(f.Keys)) {
		if strings.Contains(key, chunkKeys) {
			fmt.Fprintf(&got, "%s: %d bytes\n", key, len(f.Keys[key].Value))
		} else {
			fmt.Fprintf(&got, "%s: %s\n", key, f.Keys[key].Value)
		}
	}
	f.Mu.Unlock()
	if *update {
		must(t, os.WriteFile(golden, got.Bytes(), 0o666))
	}
	want, err := os.ReadFile(golden)
	must(t, err)
	if got.String() != string(want) {
		t.Errorf("it holds\n%s\nnot\n%s", got.String(), want)
	}
}

func FuzzHead(f *testing.F) {
	f.Add((&head{writeID: "1.1", bytes: 3, chunks: []string{chunkName([]byte("one"))}}).encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := decodeHead(b)
		if err == nil {
			_, err = h.document(map[string][]byte{chunkName([]byte("one")): []byte("one")})
		}
		if err != nil && !errors.Is(err, registry.ErrCorrupt) && !errors.Is(err, registry.ErrOtherVersion) {
			t.Fatalf("unexpected kind of error: %v", err)
		}
	})
}

package conformance

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/registry"
)

// CatalogSubject is an implementation of a catalog that is tested.
type CatalogSubject struct {
	Name string
	// Make returns what opens clients of a new catalog, each as another process would, which are closed when the test
	// ends; and what takes the lease of a job away from a holder that lives.
	Make func(t testing.TB) (open func(t testing.TB) registry.Catalog, expire func(name string))
}

// Catalogs tests an implementation. The registries of jobs pass the suite of registries, too.
func Catalogs(t *testing.T, s CatalogSubject) {
	for name, run := range map[string]func(t *testing.T, open func(t testing.TB) registry.Catalog, expire func(string)){
		"jobs come and go":          testJobs,
		"one of many has the name":  testOneName,
		"names and records":         testNames,
		"a leader publishes":        testPublish,
		"wishes":                    testWishes,
		"who leads is not removed":  testRemoveHeld,
		"another job of that name":  testSuccessor,
		"removed while others come": testRemoveRace,
		"a catalog that is closed":  testClosedCatalog,
		"jobs do not meet":          testApart,
	} {
		t.Run(s.Name+"/"+name, func(t *testing.T) {
			open, expire := s.Make(t)
			run(t, open, expire)
		})
	}
	Run(t, Subject{Name: s.Name, Make: func(t testing.TB) (Clients, func()) {
		open, expire := s.Make(t)
		c := open(t)
		must(t, c.Create(t.Context(), "first", []byte("record")))
		return func(t testing.TB) registry.Registry { return post(t, c, "first") }, func() { expire("first") }
	}})
}

func post(t testing.TB, c registry.Catalog, name string) registry.Post {
	t.Helper()
	p, err := c.Open(t.Context(), name)
	must(t, err)
	t.Cleanup(func() { must(t, p.Close()) })
	return p
}

// wantJobs compares a list, and what is found by each name. A holder is "held", or nobody.
func wantJobs(t testing.TB, c registry.Catalog, want ...registry.Entry) {
	t.Helper()
	same := func(e registry.Entry) registry.Entry {
		if e.Holder != "" {
			e.Holder = "held"
		}
		return e
	}
	all, err := c.List(t.Context())
	must(t, err)
	for i := range all {
		all[i] = same(all[i])
		e, err := c.Find(t.Context(), all[i].Name)
		if err != nil || !reflect.DeepEqual(same(e), all[i]) {
			t.Errorf("of %s the list has %v, and it is found as %v, %v", e.Name, all[i], e, err)
		}
	}
	if len(all)+len(want) > 0 && !reflect.DeepEqual(all, want) {
		t.Errorf("it has %q; want %q", all, want)
	}
}

func testJobs(t *testing.T, open func(testing.TB) registry.Catalog, _ func(string)) {
	a, b := open(t), open(t)
	wantJobs(t, a)
	_, err := a.Find(t.Context(), "one")
	wantError(t, "finding what is not there", err, registry.ErrNoJob)
	_, err = a.Open(t.Context(), "one")
	wantError(t, "opening what is not there", err, registry.ErrNoJob)
	for _, name := range []string{"two", "one-a", "one"} { // which etcd has in another order
		must(t, a.Create(t.Context(), name, []byte("of "+name)))
	}
	must(t, a.Create(t.Context(), "one", []byte("of one"))) // as after an answer that was lost
	wantError(t, "a name that is taken", b.Create(t.Context(), "one", []byte("another")), registry.ErrTaken)
	one := registry.Entry{Name: "one", Record: []byte("of one")}
	two := registry.Entry{Name: "two", Record: []byte("of two")}
	wantJobs(t, b, one, registry.Entry{Name: "one-a", Record: []byte("of one-a")}, two)
	wantError(t, "removing another", b.Remove(t.Context(), "one-a", []byte("another")), registry.ErrNoJob)
	must(t, b.Remove(t.Context(), "one-a", []byte("of one-a")))
	wantJobs(t, a, one, two)
	wantError(t, "removing it again", b.Remove(t.Context(), "one-a", []byte("of one-a")), registry.ErrNoJob)
}

func testOneName(t *testing.T, open func(testing.TB) registry.Catalog, _ func(string)) {
	const many = 8
	var errs [many]error
	var clients [many]registry.Catalog
	for i := range clients {
		clients[i] = open(t)
	}
	var wg sync.WaitGroup
	for i := range many {
		wg.Go(func() { errs[i] = clients[i].Create(t.Context(), "one", []byte{'a' + byte(i)}) })
	}
	wg.Wait()
	won := -1
	for i, err := range errs {
		if err != nil {
			wantError(t, "losing", err, registry.ErrTaken)
			continue
		}
		if won >= 0 {
			t.Errorf("both %d and %d have the name", won, i)
		}
		won = i
	}
	wantJobs(t, clients[0], registry.Entry{Name: "one", Record: []byte{'a' + byte(won)}})
}

func testNames(t *testing.T, open func(testing.TB) registry.Catalog, _ func(string)) {
	c := open(t)
	for _, name := range []string{"", "-a", "a-", "A", "a.b", "a/b", "..", "a_b", "ä", "a b", strings.Repeat("a", 64)} {
		_, err := c.Find(t.Context(), name)
		wantError(t, fmt.Sprintf("finding %q", name), err, perdure.ErrUsage)
		wantError(t, fmt.Sprintf("creating %q", name), c.Create(t.Context(), name, []byte("x")), perdure.ErrUsage)
		wantError(t, fmt.Sprintf("removing %q", name), c.Remove(t.Context(), name, []byte("x")), perdure.ErrUsage)
		wantError(t, fmt.Sprintf("a wish of %q", name), c.Wish(t.Context(), name, nil, []byte("x")), perdure.ErrUsage)
	}
	for _, size := range []int{0, registry.MostRecord + 1} {
		err := c.Create(t.Context(), "a", make([]byte, size))
		wantError(t, fmt.Sprintf("a record of %d bytes", size), err, perdure.ErrUsage)
	}
	wantJobs(t, c)
	var want []registry.Entry
	for _, name := range []string{"0", "a", strings.Repeat("a", 63)} {
		record := slices.Repeat([]byte("x"), registry.MostRecord)
		must(t, c.Create(t.Context(), name, record))
		want = append(want, registry.Entry{Name: name, Record: record})
	}
	wantJobs(t, c, want...)
}

func testPublish(t *testing.T, open func(testing.TB) registry.Catalog, expire func(string)) {
	c := open(t)
	must(t, c.Create(t.Context(), "one", []byte("r")))
	a, b := post(t, c, "one"), post(t, c, "one")
	wantError(t, "publishing without a lease", a.Publish(t.Context(), []byte("x")), registry.ErrLost)
	e := registry.Entry{Name: "one", Record: []byte("r"), State: []byte("a1"), Holder: "held"}
	l := acquire(t, a)
	must(t, a.Publish(t.Context(), e.State))
	wantJobs(t, c, e)
	e.State = []byte("a2")
	must(t, a.Publish(t.Context(), e.State))
	wantError(t, "publishing what another leads", b.Publish(t.Context(), []byte("x")), registry.ErrLost)
	wantJobs(t, c, e)
	at := save(t, l, "document", 0) // which no list has
	must(t, l.Release())
	e.Holder = ""
	wantJobs(t, c, e)
	wantError(t, "publishing after Release", a.Publish(t.Context(), []byte("x")), registry.ErrLost)
	l = acquire(t, b)
	expire("one")
	held := acquire(t, a)
	wantError(t, "publishing with a lease that was taken away", b.Publish(t.Context(), []byte("x")), registry.ErrLost)
	e.State, e.Holder = []byte("a3"), "held"
	must(t, a.Publish(t.Context(), e.State))
	wantJobs(t, c, e)
	save(t, held, "another", at)
	must(t, l.Release())
	must(t, held.Release())
}

func testWishes(t *testing.T, open func(testing.TB) registry.Catalog, _ func(string)) {
	c := open(t)
	must(t, c.Create(t.Context(), "one", []byte("r")))
	p := post(t, c, "one")
	want := func(wish string) {
		t.Helper()
		got, err := p.Wish(t.Context())
		if err != nil || string(got) != wish || (got == nil) != (wish == "") {
			t.Errorf("the wish is %q, %v; want %q", got, err, wish)
		}
	}
	want("")
	must(t, c.Wish(t.Context(), "one", []byte("r"), []byte("stop")))
	want("stop")
	l := acquire(t, p)
	must(t, c.Wish(t.Context(), "one", []byte("r"), []byte("go on")))
	want("go on")
	wantJobs(t, c, registry.Entry{Name: "one", Record: []byte("r"), Wish: []byte("go on"), Holder: "held"})
	err := c.Wish(t.Context(), "one", []byte("another"), []byte("stop"))
	wantError(t, "a wish of another job", err, registry.ErrNoJob)
	wantError(t, "a wish of none", c.Wish(t.Context(), "two", []byte("r"), []byte("stop")), registry.ErrNoJob)
	want("go on")
	must(t, l.Release())
}

func testRemoveHeld(t *testing.T, open func(testing.TB) registry.Catalog, _ func(string)) {
	c, record := open(t), []byte("r")
	must(t, c.Create(t.Context(), "one", record))
	p := post(t, c, "one")
	l := acquire(t, p)
	save(t, l, "document", 0)
	must(t, p.Publish(t.Context(), []byte("state")))
	err := c.Remove(t.Context(), "one", record)
	wantError(t, "removing what is led", err, registry.ErrHeld)
	if !strings.Contains(fmt.Sprint(err), "pid 7 on box") {
		t.Errorf("%q does not say who leads", err)
	}
	wantJobs(t, c, registry.Entry{Name: "one", Record: record, State: []byte("state"), Holder: "held"})
	must(t, l.Release())
	must(t, c.Remove(t.Context(), "one", record))
	wantJobs(t, c)
}

// testSuccessor: nothing of a job that was removed is the next one's of that name.
func testSuccessor(t *testing.T, open func(testing.TB) registry.Catalog, _ func(string)) {
	c := open(t)
	must(t, c.Create(t.Context(), "one", []byte("r")))
	old := post(t, c, "one")
	l := acquire(t, old)
	save(t, l, strings.Repeat("document", 20000), 0)
	must(t, old.Publish(t.Context(), []byte("state")))
	must(t, c.Wish(t.Context(), "one", []byte("r"), []byte("stop")))
	must(t, l.Release())
	must(t, c.Remove(t.Context(), "one", []byte("r")))
	must(t, c.Create(t.Context(), "one", []byte("s")))
	wantJobs(t, c, registry.Entry{Name: "one", Record: []byte("s")})
	wantError(t, "removing the former", c.Remove(t.Context(), "one", []byte("r")), registry.ErrNoJob)
	wantError(t, "a wish of the former", c.Wish(t.Context(), "one", []byte("r"), []byte("x")), registry.ErrNoJob)
	_, err := l.Save(t.Context(), []byte("late"), 0)
	wantError(t, "Save of the former", err, registry.ErrLost)
	wantDoc(t, post(t, c, "one"), "", 0)
}

// testRemoveRace: of somebody who takes the lease and looks whether the job is there, and somebody who removes it, one
// is refused.
func testRemoveRace(t *testing.T, open func(testing.TB) registry.Catalog, _ func(string)) {
	c, d := open(t), open(t)
	for range 30 {
		must(t, c.Create(t.Context(), "one", []byte("r")))
		p, err := d.Open(t.Context(), "one")
		must(t, err)
		var removed, found error
		var wg sync.WaitGroup
		wg.Go(func() { removed = c.Remove(t.Context(), "one", []byte("r")) })
		wg.Go(func() {
			if _, found = p.Acquire(t.Context(), someone); found == nil {
				_, found = d.Find(t.Context(), "one")
			}
		})
		wg.Wait()
		if (removed == nil) == (found == nil) {
			t.Fatalf("removing gave %v, and leading %v", removed, found)
		}
		must(t, p.Close())
		if removed != nil {
			must(t, c.Remove(t.Context(), "one", []byte("r")))
		}
	}
}

func testClosedCatalog(t *testing.T, open func(testing.TB) registry.Catalog, _ func(string)) {
	c := open(t)
	must(t, c.Create(t.Context(), "one", []byte("r")))
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	try := func(ctx context.Context, want error) {
		t.Helper()
		_, err := c.List(ctx)
		wantError(t, "List", err, want)
		_, err = c.Find(ctx, "one")
		wantError(t, "Find", err, want)
		_, err = c.Open(ctx, "one")
		wantError(t, "Open", err, want)
		wantError(t, "Create", c.Create(ctx, "two", []byte("r")), want)
		wantError(t, "Wish", c.Wish(ctx, "one", []byte("r"), []byte("x")), want)
		wantError(t, "Remove", c.Remove(ctx, "one", []byte("r")), want)
	}
	try(cancelled, context.Canceled)
	must(t, c.Close())
	must(t, c.Close())
	try(t.Context(), registry.ErrClosed)
	wantJobs(t, open(t), registry.Entry{Name: "one", Record: []byte("r")})
}

func testApart(t *testing.T, open func(testing.TB) registry.Catalog, expire func(string)) {
	c := open(t)
	for _, name := range []string{"one", "one-a"} {
		must(t, c.Create(t.Context(), name, []byte("of "+name)))
	}
	one, other := post(t, c, "one"), post(t, c, "one-a")
	l, m := acquire(t, one), acquire(t, other)
	save(t, l, "of one", 0)
	at := save(t, m, "of the other", 0)
	must(t, one.Publish(t.Context(), []byte("state")))
	expire("one")
	<-l.Done()
	must(t, c.Remove(t.Context(), "one", []byte("of one")))
	save(t, m, "still of the other", at)
	must(t, other.Publish(t.Context(), []byte("another")))
	wantJobs(t, c,
		registry.Entry{Name: "one-a", Record: []byte("of one-a"), State: []byte("another"), Holder: "held"})
	must(t, m.Release())
}

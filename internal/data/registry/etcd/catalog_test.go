package etcd

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/data/registry"
	"github.com/perdure/perdure/internal/data/registry/conformance"
)

func openCatalog(t testing.TB, f *fake) *Catalog {
	t.Helper()
	c, err := openCatalogWith(t.Context(), "etcd://"+f.addr+"/a/jobs", quick)
	must(t, err)
	t.Cleanup(func() { must(t, c.Close()) })
	return c
}

func TestCatalog(t *testing.T) {
	conformance.Catalogs(t, conformance.CatalogSubject{
		Name: "etcd",
		Make: func(t testing.TB) (func(t testing.TB) registry.Catalog, func(string)) {
			f := newFake(t, nil)
			return func(t testing.TB) registry.Catalog { return openCatalog(t, f) },
				func(name string) { f.expireBelow("/jobs/" + name + "/") }
		},
	})
}

// TestCatalogAgain: whichever call of a change is lost, or takes effect unheard, the change succeeds, once.
func TestCatalogAgain(t *testing.T) {
	for _, fate := range []fault{lost, unheard} {
		for at := range 3 {
			t.Run(fmt.Sprintf("%d/%d", fate, at), func(t *testing.T) {
				f := newFake(t, nil)
				c := openCatalog(t, f)
				strike := func() {
					var calls atomic.Int32
					f.strikes(func(call string) fault {
						if call == "LeaseKeepAlive" || call == "Range" {
							return none
						}
						if calls.Add(1) == int32(at+1) {
							return fate
						}
						return none
					})
				}
				r, ctx := []byte("r"), t.Context()
				strike()
				must(t, c.Create(ctx, "one", r))
				f.strikes(nil)
				p, err := c.Open(ctx, "one")
				must(t, err)
				_, err = p.Acquire(ctx, registry.Holder{PID: 7})
				must(t, err)
				strike()
				must(t, p.Publish(ctx, []byte("1")))
				must(t, p.Publish(ctx, []byte("2")))
				strike()
				must(t, c.Wish(ctx, "one", r, []byte("w")))
				f.strikes(nil)
				e, err := c.Find(ctx, "one")
				if err != nil || string(e.State)+string(e.Wish) != "2w" {
					t.Errorf("%q, %v", e, err)
				}
				must(t, p.Close())
				strike()
				must(t, c.Remove(ctx, "one", r))
				f.strikes(nil)
				if n := len(f.names()); n > 0 {
					t.Errorf("%d keys are left", n)
				}
			})
		}
	}
}

// TestPublishLate: a state whose call arrives when a later one was published replaces nothing.
func TestPublishLate(t *testing.T) {
	f := newFake(t, nil)
	c, err := openCatalogWith(t.Context(), "etcd://"+f.addr+"/a/jobs", quick)
	must(t, err)
	defer c.Close()
	c.t.try = quick.try / 100
	must(t, c.Create(t.Context(), "one", []byte("r")))
	p, err := c.Open(t.Context(), "one")
	must(t, err)
	_, err = p.Acquire(t.Context(), registry.Holder{PID: 7})
	must(t, err)
	must(t, p.Publish(t.Context(), []byte("1")))
	var held atomic.Bool
	f.strikes(func(call string) fault {
		if call != "Txn" || held.Swap(true) {
			return none
		}
		return late
	})
	must(t, p.Publish(t.Context(), []byte("2"))) // by its second try
	must(t, p.Publish(t.Context(), []byte("3")))
	close(f.proceed)
	<-f.proceeded
	e, err := c.Find(t.Context(), "one")
	if err != nil || string(e.State) != "3" {
		t.Errorf("it is %q, %v", e.State, err)
	}
	must(t, p.Close())
}

// TestPublishFenced: one whose lease was taken away publishes nothing, though he has not noticed it, and though the
// next one has published nothing yet.
func TestPublishFenced(t *testing.T) {
	f := newFake(t, nil)
	blind := quick
	blind.renew = time.Hour
	c, err := openCatalogWith(t.Context(), "etcd://"+f.addr+"/a/jobs", blind)
	must(t, err)
	defer c.Close()
	must(t, c.Create(t.Context(), "one", []byte("r")))
	old, err := c.Open(t.Context(), "one")
	must(t, err)
	defer old.Close()
	_, err = old.Acquire(t.Context(), registry.Holder{PID: 7})
	must(t, err)
	must(t, old.Publish(t.Context(), []byte("1")))
	for _, next := range []bool{false, true} {
		f.expire()
		if next {
			p, err := c.Open(t.Context(), "one")
			must(t, err)
			defer p.Close()
			_, err = p.Acquire(t.Context(), registry.Holder{PID: 8})
			must(t, err)
		}
		wantError(t, "publishing late", old.Publish(t.Context(), []byte("2")), registry.ErrLost)
	}
	e, err := c.Find(t.Context(), "one")
	if err != nil || string(e.State) != "1" {
		t.Errorf("it is %q, %v", e.State, err)
	}
}

// TestListIsOneCall: however many jobs there are, and however large their documents, a list is one call, and reads none
// of those.
func TestListIsOneCall(t *testing.T) {
	f := newFake(t, nil)
	c := openCatalog(t, f)
	const many = 20
	for i := range many {
		name := fmt.Sprintf("job-%d", i)
		must(t, c.Create(t.Context(), name, []byte("r")))
		p, err := c.Open(t.Context(), name)
		must(t, err)
		l, err := p.Acquire(t.Context(), registry.Holder{PID: 7})
		must(t, err)
		save(t, l, []byte(strings.Repeat("a document", 10000)), 0)
		must(t, p.Publish(t.Context(), []byte("s")))
		must(t, p.Close())
	}
	f.mu.Lock()
	before := maps.Clone(f.calls)
	f.mu.Unlock()
	all, err := c.List(t.Context())
	must(t, err)
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(all) != many || f.calls["Range"] != before["Range"]+1 || f.calls["Txn"] != before["Txn"] {
		t.Errorf("%d jobs by %v, before %v", len(all), f.calls, before)
	}
	for key := range f.keys {
		if !slices.ContainsFunc([]string{"/jobs/job-", "/facts/job-"}, func(s string) bool {
			return strings.HasPrefix(key, "a/jobs"+s)
		}) {
			t.Errorf("key %s", key)
		}
	}
}

// expireBelow ends the leases of keys that have a text in them.
func (f *fake) expireBelow(text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key, kv := range maps.Clone(f.keys) {
		if strings.Contains(key, text) && kv.Lease != 0 {
			f.over(kv.Lease)
		}
	}
}

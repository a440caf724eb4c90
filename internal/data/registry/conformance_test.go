package registry_test

import (
	"os"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/registry"
	"github.com/perdure/perdure/internal/data/registry/registrytest"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func subjects() []registrytest.Implementation {
	file := func(fsys disk.FS, path string) registrytest.Clients {
		return func(t testing.TB) registry.Registry {
			r, err := registry.OpenFile(fsys, path)
			must(t, err)
			r.Poll = time.Millisecond
			t.Cleanup(func() { must(t, r.Close()) })
			return r
		}
	}
	return []registrytest.Implementation{
		{Name: "memory", VirtualTime: true, New: func(testing.TB) (registrytest.Clients, func()) {
			r := registry.NewMemory()
			return func(t testing.TB) registry.Registry {
				another := r.NewClient()
				t.Cleanup(func() { must(t, another.Close()) })
				return another
			}, r.Expire
		}},
		{Name: "file", New: func(t testing.TB) (registrytest.Clients, func()) {
			path := t.TempDir() + "/a/b/registry"
			return file(disk.OS(), path), func() { must(t, os.Remove(path+".lock")) }
		}},
		{Name: "file in memory", VirtualTime: true, New: func(testing.TB) (registrytest.Clients, func()) {
			m := disk.NewMemory()
			return file(m, "/a/b/registry"), func() { m.FailAfter(0) }
		}},
	}
}

func TestConformance(t *testing.T) {
	for _, s := range subjects() {
		registrytest.Run(t, s)
	}
}

func TestLinearizable(t *testing.T) {
	for _, s := range subjects() {
		registrytest.Linearizable(t, s)
	}
}

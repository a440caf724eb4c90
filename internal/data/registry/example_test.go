package registry_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/registry"
)

// Only the holder of the lease may save, over the revision that it knows.
func Example() {
	ctx := context.Background()
	r, err := registry.OpenFile(disk.NewMemory(), "run/registry")
	fmt.Println(err)
	lease, err := r.Acquire(ctx, registry.Self())
	fmt.Println(err)
	_, err = r.Acquire(ctx, registry.Self())
	fmt.Println(errors.Is(err, registry.ErrHeld))
	revision, err := lease.Save(ctx, []byte("view 1"), 0)
	fmt.Println(revision, err)
	_, err = lease.Save(ctx, []byte("view 1, too"), 0)
	fmt.Println(errors.Is(err, registry.ErrConflict))
	doc, revision, err := r.Load(ctx)
	fmt.Println(string(doc), revision, err)
	fmt.Println(r.Close())
	// Output:
	// <nil>
	// <nil>
	// true
	// 1 <nil>
	// true
	// view 1 1 <nil>
	// <nil>
}

package registry_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/perdure/perdure/disk"
	"github.com/perdure/perdure/registry"
)

// Of two writers that have loaded one revision, the second is told so.
func Example() {
	ctx := context.Background()
	r, err := registry.OpenFile(disk.NewMemory(), "run/registry")
	fmt.Println(err)
	revision, err := r.Save(ctx, []byte("view 1"), 0)
	fmt.Println(revision, err)
	_, err = r.Save(ctx, []byte("view 1, too"), 0)
	fmt.Println(errors.Is(err, registry.ErrConflict))
	fmt.Println(r.Close())
	// Output:
	// <nil>
	// 1 <nil>
	// true
	// <nil>
}

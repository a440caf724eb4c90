package storetest

import (
	"slices"

	"github.com/perdure/perdure/internal/data/store"
)

// LaggingList is a store whose List omits the newest objects, in violation of the contract.
type LaggingList struct {
	store.Store
	Hidden []string // names
}

// List returns the store's objects without the unlisted ones.
func (l *LaggingList) List(prefix string) ([]store.Entry, error) {
	all, err := l.Store.List(prefix)
	return slices.DeleteFunc(all, func(e store.Entry) bool { return slices.Contains(l.Hidden, e.Name) }), err
}

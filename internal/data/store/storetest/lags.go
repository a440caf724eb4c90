package storetest

import (
	"slices"

	"github.com/perdure/perdure/internal/data/store"
)

// Lags is a store whose List does not have the newest objects yet, against the contract of stores.
type Lags struct {
	store.Store
	Unlisted []string // names
}

// List returns what objects there are, but for the newest.
func (l *Lags) List(prefix string) ([]store.Entry, error) {
	all, err := l.Store.List(prefix)
	return slices.DeleteFunc(all, func(e store.Entry) bool { return slices.Contains(l.Unlisted, e.Name) }), err
}

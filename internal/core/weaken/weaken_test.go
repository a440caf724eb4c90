package weaken_test

import (
	"context"
	"testing"

	"github.com/perdure/perdure/internal/core/weaken"
)

func TestOf(t *testing.T) {
	if got := weaken.Of(t.Context()); got != (weaken.Set{}) {
		t.Errorf("a context that says nothing has %+v", got)
	}
	want := weaken.Set{Cuts: true}
	if got := weaken.Of(context.WithValue(t.Context(), weaken.Key{}, want)); got != want {
		t.Errorf("a context with %+v has %+v", want, got)
	}
}

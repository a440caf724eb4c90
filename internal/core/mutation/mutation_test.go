package mutation_test

import (
	"context"
	"testing"

	"github.com/perdure/perdure/internal/core/mutation"
)

func TestOf(t *testing.T) {
	if got := mutation.Of(t.Context()); got != (mutation.Set{}) {
		t.Errorf("a context that says nothing has %+v", got)
	}
	want := mutation.Set{Cuts: true}
	if got := mutation.Of(context.WithValue(t.Context(), mutation.Key{}, want)); got != want {
		t.Errorf("a context with %+v has %+v", want, got)
	}
}

package terminal

import (
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
)

// NopView is a view that shows nothing.
type NopView struct{}

// Message implements View.
func (NopView) Message(string) {}

// Start implements View.
func (NopView) Start(*settings.Run, string) {}

// Event implements View.
func (NopView) Event(*State, wire.Event) {}

// Progress implements View.
func (NopView) Progress(*State) {}

// End implements View.
func (NopView) End(*rundir.Summary, string, []supervisor.Fault) {}

// Close implements View.
func (NopView) Close() {}

package screen

import (
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
)

// Silent is a view that shows nothing.
type Silent struct{}

// Say implements View.
func (Silent) Say(string) {}

// Begin implements View.
func (Silent) Begin(*settings.Run, string) {}

// Event implements View.
func (Silent) Event(*State, wire.Event) {}

// Progress implements View.
func (Silent) Progress(*State) {}

// End implements View.
func (Silent) End(*rundir.Summary, string, []supervisor.Fault) {}

// Close implements View.
func (Silent) Close() {}

package screen

import (
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/tally"
)

// Silent is a view that shows nothing.
type Silent struct{}

// Say implements View.
func (Silent) Say(string) {}

// Begin implements View.
func (Silent) Begin(*settings.Run, string) {}

// Event implements View.
func (Silent) Event(*tally.Now, wire.Event) {}

// Progress implements View.
func (Silent) Progress(*tally.Now) {}

// End implements View.
func (Silent) End(*rundir.Summary, string, []supervisor.Fault) {}

// Close implements View.
func (Silent) Close() {}

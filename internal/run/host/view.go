package host

import (
	"log/slog"

	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/run/screen"
)

// view logs what whoever looks after the job says itself. What the coordinator says is in the log already.
type view struct {
	screen.Silent
	Log *slog.Logger
}

func (v view) Say(line string) { v.Log.Info(line) }

func (v view) Event(_ *screen.State, e wire.Event) {
	if e.Target == "" && (e.Kind == "trouble" || e.Kind == "closing") {
		v.Log.Warn(e.Text)
	}
}

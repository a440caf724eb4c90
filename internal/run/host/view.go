package host

import (
	"log/slog"

	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/run/screen"
)

// view logs messages of this process. The coordinator logs its own messages.
type view struct {
	screen.NopView
	Log *slog.Logger
}

func (v view) Message(line string) { v.Log.Info(line) }

func (v view) Event(_ *screen.State, e wire.Event) {
	if e.Target == "" && (e.Kind == "trouble" || e.Kind == "closing") {
		v.Log.Warn(e.Text)
	}
}

package host

import (
	"log/slog"

	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/run/terminal"
)

// view logs messages of this process. The coordinator logs its own messages.
type view struct {
	terminal.NopView
	Log *slog.Logger
}

func (v view) Message(line string) { v.Log.Info(line) }

func (v view) Event(_ *terminal.State, e wire.Event) {
	if e.Target == "" && (e.Kind == "trouble" || e.Kind == "closing") {
		v.Log.Warn(e.Text)
	}
}

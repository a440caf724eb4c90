package updatelog_test

import (
	"context"

	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/proc/logserver"
)

func init() {
	updatelog.Serve = func(dir string, o updatelog.ServeOptions) (updatelog.Server, error) {
		s, err := logserver.Serve(dir, logserver.ServeOptions{
			Listen: o.Listen, Token: o.Token, Sync: o.Sync, MaxBytes: o.MaxBytes,
		})
		if err != nil {
			return nil, err
		}
		return served{s}, nil
	}
	updatelog.InspectFolder, updatelog.ErrRunning = logserver.InspectDir, logserver.ErrRunning
	updatelog.Unwritable = logserver.Unwritable
}

type served struct{ *logserver.Server }

func (s served) Look(ctx context.Context) (updatelog.ServerState, error) {
	st, err := s.Server.State(ctx)
	return updatelog.ServerState(st), err
}

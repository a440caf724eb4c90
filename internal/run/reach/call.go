package reach

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/control"
	"github.com/perdure/perdure/internal/run/secrets"
)

// mostAddress bounds what is read of a file that has an address, in bytes.
const mostAddress = 1 << 12

// Control returns a client of a running job's control API: at an address, or of the run in a
// folder, which is the newest in runs/ where none is named. found is the folder.
func Control(address, run, secretFile string) (c *control.Client, found string, err error) {
	if address != "" {
		k, err := secrets.Read(secretFile, run, wire.RoleWorker)
		return control.NewClient(address, k.Job), run, err
	}
	if run == "" {
		runs, _ := filepath.Glob("runs/*/control") // the pattern is right
		if len(runs) == 0 {
			return nil, "", fmt.Errorf("%w: there is no run in runs/; name one with --run DIR or --address HOST:PORT",
				perdure.ErrUsage)
		}
		newest := slices.MaxFunc(runs, func(a, b string) int { return modified(a).Compare(modified(b)) })
		run = filepath.Dir(newest)
	}
	b, err := disk.ReadRegular(filepath.Join(run, "control"), mostAddress)
	if err != nil {
		return nil, run, fmt.Errorf("%s is no run's folder: %w", run, err)
	}
	k, err := secrets.ReadOf(secretFile, run)
	return control.NewClient(strings.TrimSpace(string(b)), k.Job), run, err
}

func modified(path string) time.Time {
	if i, err := os.Stat(path); err == nil {
		return i.ModTime()
	}
	return time.Time{}
}

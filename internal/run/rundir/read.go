package rundir

import (
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/perdure/perdure/internal/data/disk"
)

// mostSummary bounds what is read of a summary.json: its largest part is a few numbers
// for each worker and each failure.
const mostSummary = 64 << 20

// ReadSummary reads the summary.json of a run that has ended; fs.ErrNotExist where it
// has none.
func ReadSummary(run string) (s Summary, err error) {
	path := filepath.Join(run, summaryFile)
	b, err := disk.ReadRegular(path, mostSummary)
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	if err != nil {
		return s, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

package rundir

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/perdure/perdure/internal/data/disk"
)

// maxSummary limits the size of a summary.json that is read. Its largest part is a few numbers for each worker and each
// failure.
const maxSummary = 64 << 20

// ReadSummaryText returns the content of the summary.json of a run that has ended, which is valid JSON. The error is
// fs.ErrNotExist if the file is missing.
func ReadSummaryText(run string) ([]byte, error) {
	path := filepath.Join(run, summaryFile)
	b, err := disk.ReadRegular(path, maxSummary)
	if err == nil && !json.Valid(b) {
		err = errors.New("it is not valid JSON")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return b, nil
}

// ReadSummary reads the summary.json of a run that has ended. The error is fs.ErrNotExist if the file is missing.
func ReadSummary(run string) (s Summary, err error) {
	path := filepath.Join(run, summaryFile)
	b, err := disk.ReadRegular(path, maxSummary)
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	if err != nil {
		return s, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

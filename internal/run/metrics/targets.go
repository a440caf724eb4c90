package metrics

import (
	"io"
	"path/filepath"

	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/run/plain"
	"github.com/perdure/perdure/internal/run/rundir"
)

// Target is where a process can be watched, as Prometheus' file_sd reads it.
type Target struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

// NewTarget is the target of a process of a job. The board and the alerts count on all three labels.
func NewTarget(job, role, id, addr string) Target {
	return Target{[]string{addr}, map[string]string{"job": job, "role": role, "id": id}}
}

// WriteTargets says in a folder where processes can be watched, in place of what it said before.
func WriteTargets(folder string, all []Target) error {
	path := filepath.ToSlash(filepath.Join(folder, rundir.TargetsFile))
	return disk.WriteFile(disk.OS(), path, func(out io.Writer) error { return plain.JSON(out, all) })
}

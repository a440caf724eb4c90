package metrics

import (
	"io"
	"path/filepath"

	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/rundir"
)

// Target is the metrics address of a process in the format of Prometheus's file_sd.
type Target struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

// NewTarget returns the target of a process of a job. The dashboard and the alerts depend on all three labels.
func NewTarget(job, role, id, addr string) Target {
	return Target{[]string{addr}, map[string]string{"job": job, "role": role, "id": id}}
}

// WriteTargets writes the metrics addresses of processes to a directory, replacing the previous ones.
func WriteTargets(dir string, all []Target) error {
	path := filepath.ToSlash(filepath.Join(dir, rundir.TargetsFile))
	return disk.WriteFile(disk.OS(), path, func(out io.Writer) error { return humanize.JSON(out, all) })
}

package runs

import (
	"path/filepath"
	"strings"

	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/rundir"
)

// Cost returns the cost of a finished run. It returns nil for other runs and without prices.
func (r *Run) Cost(prices *Prices) *Bill {
	if r.Summary == nil || prices == nil {
		return nil
	}
	return prices.Bill(r.used())
}

// used returns a run's usage according to its directory. It counts the initial machines, and ignores processes that
// joined or left later.
func (r *Run) used() billUsage {
	s := r.Summary
	u := billUsage{Seconds: s.WallSeconds, Roles: map[string]roleUsage{}}
	machines := map[string]int{
		string(wire.RoleCoordinator): 1, string(wire.RoleServer): s.Servers, string(wire.RoleWorker): s.Workers,
	}
	absent := r.absent()
	for role, n := range machines {
		used := roleUsage{Machines: n, Absent: absent[role], CPU: s.Usage[role].CPUSeconds}
		if role == string(wire.RoleWorker) && s.TimeSplit != nil {
			for _, w := range s.TimeSplit.Workers {
				used.Waiting += w.StalenessS + w.CommunicationS
			}
		}
		u.Roles[role] = used
	}
	if strings.HasPrefix(r.Settings.Checkpoints.Store, "s3://") {
		u.Puts = r.puts()
	}
	u.Bytes = r.stored()
	return u
}

// absent returns how long the machines of each role were unavailable, in seconds, according to planned faults that end
// a process.
func (r *Run) absent() map[string]float64 {
	away := map[string]float64{}
	var planned []supervisor.Fault
	for _, text := range r.Settings.Faults {
		if f, err := supervisor.ParseFault(text); err == nil &&
			(f.Kind == supervisor.FaultKill || f.Kind == supervisor.FaultTerm) {
			planned = append(planned, f)
		}
	}
	took := make([]map[string]bool, len(planned)) // targets found for each planned fault
	for _, f := range r.Summary.Failures {
		for i := range planned {
			p := &planned[i]
			role, _, _ := strings.Cut(f.Target, ":")
			hit := string(p.Kind) == f.Kind && (p.Target.String() == f.Target ||
				p.Target.Index == supervisor.All && string(p.Target.Role) == role)
			if !hit || took[i][f.Target] || !p.When.ByClock && f.AtSeconds < p.When.Since.Seconds() {
				continue
			}
			if took[i] == nil {
				took[i] = map[string]bool{}
			}
			took[i][f.Target] = true
			away[role] += max(0, min(p.For.Seconds(), r.Summary.WallSeconds-f.AtSeconds))
			break
		}
	}
	return away
}

// puts returns about how many objects were written to a bucket: for each checkpoint one per shard, and the manifest.
func (r *Run) puts() (n float64) {
	events, err := rundir.Events(r.Folder)
	if err != nil {
		return 0
	}
	for _, e := range events {
		if e.Kind == "checkpoint" {
			n += float64(r.Summary.Shards + 1)
		}
	}
	return n
}

// stored returns how many bytes the run kept: the final sizes of its checkpoints, snapshots and update log. If they are
// in an external store, it returns the size of the model times the number of checkpoints kept.
func (r *Run) stored() (bytes float64) {
	sizes := func(name string) float64 { return float64(rundir.Bytes(filepath.Join(r.Folder, name))) }
	if r.Settings.Checkpoints.Store != "" {
		return sizes(rundir.ModelFile) * float64(max(1, r.Settings.Checkpoints.Keep))
	}
	for _, name := range rundir.DataDirs {
		bytes += sizes(name)
	}
	return bytes
}

package metrics

import (
	"fmt"

	"github.com/perdure/perdure/internal/proc/httpdebug"
)

var (
	hostMetrics   []*httpdebug.Metric
	newHostMetric = metricConstructor(&hostMetrics)

	keptAlive = newHostMetric(httpdebug.Gauge, "perdure_host_processes",
		"Running processes that the host keeps alive.", "process_role")
	restarted = newHostMetric(httpdebug.Counter, "perdure_host_restarts_total",
		"Processes of the host that ended and were restarted.", "process_role")
)

// RoleProcesses describes a host's processes of one role.
type RoleProcesses struct {
	Role              string
	Running, Restarts int
}

// Host returns a probe of a host. why is the reason why the host does not do its work, or "".
func Host(look func() (all []RoleProcesses, why string), who Identity) *httpdebug.Probe {
	return httpdebug.NewProbe(StuckTimeout, func() (l httpdebug.State) {
		all, why := look()
		l.NotReady = why
		for _, k := range all {
			l.Activity += fmt.Sprintf("%d %ss run; ", k.Running, k.Role)
			l.Samples = append(l.Samples, keptAlive.Sample(float64(k.Running), k.Role),
				restarted.Sample(float64(k.Restarts), k.Role))
		}
		return l
	}, func() []httpdebug.Sample { return common(&who) })
}

package metrics

import (
	"fmt"

	"github.com/perdure/perdure/internal/proc/httpdebug"
)

var (
	ofHost []*httpdebug.Metric
	inHost = known(&ofHost)

	keptAlive = inHost(httpdebug.Gauge, "perdure_host_processes",
		"Processes that the host keeps alive and that run now.", "process_role")
	restarted = inHost(httpdebug.Counter, "perdure_host_restarts_total",
		"Processes of the host that ended and were started again.", "process_role")
)

// Kept is what a host knows of its processes of one role.
type Kept struct {
	Role              string
	Running, Restarts int
}

// Host asks a host how it is. why says why it does not do its work; "": it does.
func Host(look func() (all []Kept, why string), who Who) *httpdebug.Probe {
	return httpdebug.NewProbe(Bound, func() (l httpdebug.Look) {
		all, why := look()
		l.NotReady = why
		for _, k := range all {
			l.Does += fmt.Sprintf("%d %ss run; ", k.Running, k.Role)
			l.Samples = append(l.Samples, keptAlive.Is(float64(k.Running), k.Role),
				restarted.Is(float64(k.Restarts), k.Role))
		}
		return l
	}, func() []httpdebug.Sample { return common(&who) })
}

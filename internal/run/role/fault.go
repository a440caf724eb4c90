package role

import (
	"fmt"
	"time"

	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// ApplyFault injects a fault into this process's network or computing: "cut 0 2s", "slow 3 0s", "jitter 2 1s". "end 0
// 0s" makes a worker end the job. The jitter is drawn from seed.
func ApplyFault(o wire.Order, faults *transport.FaultLayer, p *pacer, seed uint64) {
	var kind, duration string
	var factor float64
	if _, err := fmt.Sscanf(o.Spec, "%s %g %s", &kind, &factor, &duration); err != nil {
		return
	}
	d, err := time.ParseDuration(duration)
	if err != nil {
		return
	}
	switch {
	case kind == "cut":
		faults.Cut(d)
	case p != nil && kind == "end":
		p.End()
	case p != nil:
		p.Set(kind, factor, d, seed)
	case kind == "slow":
		faults.Slow(factor, d)
	case kind == "jitter":
		faults.Jitter(factor, d, seed)
	}
}

package membership

import "github.com/perdure/perdure/internal/core/failuredetector"

// ripe is how long a complaint must have been made, in multiples of the patience, before it counts.
const ripe = 2

// checkPartitions handles processes that cannot reach each other although the coordinator can reach both: see package
// failuredetector. An excluded server counts as silent, whatever it sends, until all can reach it. So everything that
// follows from silence also happens here, and nothing else.
func (r *record) checkPartitions(w *failuredetector.Partitions) {
	j := r.job
	if w.Quiet() && !j.complains() {
		return // the usual case, even in the largest jobs
	}
	all := failuredetector.PartitionJob{Servers: len(j.servers), Live: make([]bool, len(j.servers)+len(j.slots))}
	addrs, said := make([]string, len(j.servers)), []failuredetector.Complaint(nil)
	whose := func(n int) (Kind, int) {
		if n < len(j.servers) {
			return Server, n
		}
		return Worker, n - len(j.servers)
	}
	for n := range all.Live {
		k, index := whose(n)
		p, o := j.place(k, index)
		if k == Server {
			addrs[n] = p.Addr
		}
		all.Live[n] = p.Process != "" && !o.gone && o.connected
		for _, addr := range o.unreached() {
			if all.Live[n] {
				said = append(said, failuredetector.Complaint{From: n, Addr: addr})
			}
		}
	}
	news := w.Look(&all, said, addrs, j.tick, ripe*j.watch.Patience(), func(n int) string { return target(whose(n)) })
	for i := range j.servers {
		j.servers[i].muted = all.Live[i] && w.Out(addrs[i]) && !j.weak.Rifts
	}
	for _, is := range news {
		kind := "unreached"
		if is.Over {
			kind = "reached"
		}
		r.event(kind, is.Whom, "%s", is.Text)
	}
}

// complains reports whether any process cannot reach a server.
func (j *job) complains() bool {
	for _, k := range []Kind{Server, Worker} {
		for i := range j.size(k) {
			if _, o := j.place(k, i); len(o.unreached()) > 0 {
				return true
			}
		}
	}
	return false
}

// unreached returns the latest list of addresses that the process cannot reach.
func (o *observed) unreached() []string {
	switch {
	case o.server != nil:
		return o.server.Unreached
	case o.worker != nil:
		return o.worker.Unreached
	}
	return nil
}

package membership

import "github.com/perdure/perdure/internal/core/failuredetector"

// complaintPatience is how long a complaint must have been made, in multiples of the patience, before it counts.
const complaintPatience = 2

// checkPartitions handles processes that cannot reach each other although the coordinator can reach both: see package
// failuredetector. An excluded server counts as silent, whatever it sends, until all can reach it. So everything that
// follows from silence also happens here, and nothing else.
func (r *recorder) checkPartitions(w *failuredetector.Partitions) {
	j := r.job
	if w.IsQuiet() && !j.hasComplaints() {
		return // the usual case, even in the largest jobs
	}
	all := failuredetector.Processes{Servers: len(j.servers), Live: make([]bool, len(j.servers)+len(j.slots))}
	addrs, said := make([]string, len(j.servers)), []failuredetector.Complaint(nil)
	owner := func(n int) (Kind, int) {
		if n < len(j.servers) {
			return Server, n
		}
		return Worker, n - len(j.servers)
	}
	for n := range all.Live {
		k, index := owner(n)
		p, o := j.member(k, index)
		if k == Server {
			addrs[n] = p.Addr
		}
		all.Live[n] = p.Process != "" && !o.gone && o.connected
		for _, addr := range o.unreachable() {
			if all.Live[n] {
				said = append(said, failuredetector.Complaint{From: n, Addr: addr})
			}
		}
	}
	news := w.Update(&all, said, addrs, j.tick, complaintPatience*j.detector.Patience(),
		func(n int) string { return target(owner(n)) })
	for i := range j.servers {
		j.servers[i].excluded = all.Live[i] && w.IsExcluded(addrs[i]) && !j.mutations.Partitions
	}
	for _, is := range news {
		kind := "unreached"
		if is.Resolved {
			kind = "reached"
		}
		r.event(kind, is.Process, "%s", is.Text)
	}
}

// hasComplaints reports whether any process cannot reach a server.
func (j *jobState) hasComplaints() bool {
	for _, k := range []Kind{Server, Worker} {
		for i := range j.size(k) {
			if _, o := j.member(k, i); len(o.unreachable()) > 0 {
				return true
			}
		}
	}
	return false
}

// unreachable returns the latest list of addresses that the process cannot reach.
func (o *observed) unreachable() []string {
	switch {
	case o.server != nil:
		return o.server.Unreachable
	case o.worker != nil:
		return o.worker.Unreachable
	}
	return nil
}

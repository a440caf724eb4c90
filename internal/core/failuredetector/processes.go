package failuredetector

import "slices"

// A partial partition separates two processes that both still reach the coordinator. Neither is silent, yet the job may
// stall for as long as the partition lasts.
//
// The coordinator only knows which process reports that it cannot reach which server. It cannot know which of the two
// is cut off. Therefore it excludes one end of every complaint, and as few processes as possible.

// Pair is a complaint: From cannot reach To. Servers are numbered from 0, and workers follow the last server.
type Pair struct{ From, To int }

// Processes describes the processes of a job: numbers below Servers are servers, the others are workers. Live marks
// the processes that participate and are not known to be dead.
type Processes struct {
	Servers int
	Live    []bool
}

// Exclude returns the processes to exclude, in ascending order.
//
//   - A worker that cannot reach more than half of the servers is cut off itself. It is excluded, and its complaints
//     do not count.
//   - Then servers are excluded one by one: the one with the most complaints by it and about it, and of equal ones the
//     one with the highest number.
//   - At most half of the servers and half of the workers are excluded, since the rest must do all of their work.
//     Complaints beyond that have no effect.
func (j *Processes) Exclude(pairs []Pair) (out []int) {
	servers, workers := j.count(0, j.Servers), j.count(j.Servers, len(j.Live))
	ends := j.ends(pairs)
	spare := workers / 2
	for n := j.Servers; n < len(j.Live) && spare > 0; n++ {
		if 2*len(ends[n]) > servers {
			out, spare = append(out, n), spare-1
			removeProcess(ends, n)
		}
	}
	for spare = servers / 2; spare > 0; spare-- {
		most := -1
		for n := j.Servers - 1; n >= 0; n-- {
			if len(ends[n]) > 0 && (most < 0 || len(ends[n]) > len(ends[most])) {
				most = n
			}
		}
		if most < 0 {
			break
		}
		out = append(out, most)
		removeProcess(ends, most)
	}
	slices.Sort(out)
	return out
}

// count returns how many of the processes numbered from ≤ n < until are live.
func (j *Processes) count(from, until int) (n int) {
	for _, live := range j.Live[from:until] {
		if live {
			n++
		}
	}
	return n
}

// ends returns, for each live process, the live processes that it is partitioned from.
func (j *Processes) ends(pairs []Pair) map[int]map[int]bool {
	ends := map[int]map[int]bool{}
	for _, p := range pairs {
		if p.From == p.To || !j.Live[p.From] || !j.Live[p.To] {
			continue
		}
		for _, way := range []Pair{p, {p.To, p.From}} {
			if ends[way.From] == nil {
				ends[way.From] = map[int]bool{}
			}
			ends[way.From][way.To] = true
		}
	}
	return ends
}

// removeProcess removes an excluded process from all complaints.
func removeProcess(ends map[int]map[int]bool, n int) {
	for other := range ends[n] {
		delete(ends[other], n)
	}
	delete(ends, n)
}

package failuredetector

import "slices"

// A partition separates two processes that both still reach the coordinator. Neither is silent, yet the job may stand
// still for as long as the partition lasts.
//
// The coordinator knows only who reports that it cannot reach whom; it cannot know which of the two is cut off.
// Therefore one end of every complaint is excluded, and as few processes as possible.

// Pair is a complaint: From cannot reach To. Servers have the numbers from 0 on, and workers those behind them.
type Pair struct{ From, To int }

// PartitionJob is who there is: the numbers below Servers are servers. Live says who takes part and is not
// known to be dead.
type PartitionJob struct {
	Servers int
	Live    []bool
}

// Out returns who is done without, in order.
//
//   - A worker that cannot reach more than half of the servers is cut off itself, and what it says of them does not
//     count.
//   - Of servers the one goes first that has the most complaints by it and of it, and of several the last.
//   - No more than half of the servers, and no more than half of the workers, are done without: whoever is left has to
//     do all their work. Complaints that are left then change nothing.
func (j *PartitionJob) Out(pairs []Pair) (out []int) {
	servers, workers := j.count(0, j.Servers), j.count(j.Servers, len(j.Live))
	ends := j.ends(pairs)
	spare := workers / 2
	for n := j.Servers; n < len(j.Live) && spare > 0; n++ {
		if 2*len(ends[n]) > servers {
			out, spare = append(out, n), spare-1
			part(ends, n)
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
		part(ends, most)
	}
	slices.Sort(out)
	return out
}

// count counts who is live, of some numbers.
func (j *PartitionJob) count(from, until int) (n int) {
	for _, live := range j.Live[from:until] {
		if live {
			n++
		}
	}
	return n
}

// ends returns, for each who is live, with whom it has a rift.
func (j *PartitionJob) ends(pairs []Pair) map[int]map[int]bool {
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

// part takes one who is done without out of all complaints.
func part(ends map[int]map[int]bool, n int) {
	for other := range ends[n] {
		delete(ends[other], n)
	}
	delete(ends, n)
}

package etcd

import (
	"math/rand/v2"
	"slices"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// memberSelector selects the etcd member that receives all requests, and switches to the next one on failure. The
// client's own round-robin would send a third of all calls to a member whose machine is gone, until its connection is
// found to be broken.
type memberSelector struct {
	client *clientv3.Client

	mu       sync.Mutex // guards the fields below
	hosts    []string   // the first one is used
	switches int        // number of switches
}

// shuffled returns the hosts in random order, so that clients start with different members.
func shuffled(hosts []string) []string {
	hosts = slices.Clone(hosts)
	rand.Shuffle(len(hosts), func(i, j int) { hosts[i], hosts[j] = hosts[j], hosts[i] })
	return hosts
}

// current returns the current turn. Call it before a request.
func (m *memberSelector) current() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.switches
}

// reportFailure switches to the next member, unless another failed call of the same turn has already done so.
func (m *memberSelector) reportFailure(turn int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.switches != turn || len(m.hosts) == 1 {
		return
	}
	m.switches++
	m.hosts = append(m.hosts[1:], m.hosts[0])
	m.client.SetEndpoints(m.hosts[0])
}

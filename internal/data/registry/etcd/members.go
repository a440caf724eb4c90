package etcd

import (
	"math/rand/v2"
	"slices"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// members has one member of etcd asked, and the next one when that fails. The client itself takes them in turns: then
// a third of all calls wait for a member whose machine is gone, until its connection is held to be broken.
type members struct {
	client *clientv3.Client

	mu    sync.Mutex // guards all below
	hosts []string   // the first is asked
	turn  int        // how often another one was taken
}

// shuffled is members in any order: not all clients begin with the same one.
func shuffled(hosts []string) []string {
	hosts = slices.Clone(hosts)
	rand.Shuffle(len(hosts), func(i, j int) { hosts[i], hosts[j] = hosts[j], hosts[i] })
	return hosts
}

// asked says which turn it is, for who is about to ask.
func (m *members) asked() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.turn
}

// failed has the next member be asked, unless another call has failed of that turn.
func (m *members) failed(turn int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.turn != turn || len(m.hosts) == 1 {
		return
	}
	m.turn++
	m.hosts = append(m.hosts[1:], m.hosts[0])
	m.client.SetEndpoints(m.hosts[0])
}

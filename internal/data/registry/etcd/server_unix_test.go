//go:build unix

package etcd

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/registry"
	"github.com/perdure/perdure/internal/data/registry/registrytest"
)

var serverFlag = flag.String("etcd.server", "",
	"path of an etcd program for tests with a real server; empty: skip them")

// member is a real etcd server that can be killed and stalled.
type member struct {
	testing.TB
	client string // the member's address
	args   []string
	cmd    *exec.Cmd
	log    *os.File
}

// cluster is a cluster of one or more members.
type cluster struct {
	testing.TB
	members  []*member
	prefixes atomic.Int64
	raw      *clientv3.Client
}

// start starts a cluster. It skips the test if no server program was named.
func start(t testing.TB, members int, more ...string) *cluster {
	t.Helper()
	if *serverFlag == "" {
		t.Skip("needs -etcd.server; run make check-etcd")
	}
	program, err := filepath.Abs(*serverFlag)
	must(t, err)
	c := &cluster{TB: t}
	var peers []string
	var listening []net.Listener
	address := func() string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		listening = append(listening, l)
		return l.Addr().String()
	}
	for i := range members {
		client, peer := address(), address()
		peers = append(peers, fmt.Sprintf("m%d=http://%s", i, peer))
		c.members = append(c.members, &member{TB: t, client: client, args: append([]string{
			program, "--name", fmt.Sprintf("m%d", i), "--data-dir", t.TempDir(), "--log-level", "warn",
			"--listen-client-urls", "http://" + client, "--advertise-client-urls", "http://" + client,
			"--listen-peer-urls", "http://" + peer, "--initial-advertise-peer-urls", "http://" + peer,
		}, more...)})
	}
	for _, l := range listening {
		must(t, l.Close())
	}
	var clients []string
	for i, m := range c.members {
		m.args = append(m.args, "--initial-cluster", strings.Join(peers, ","))
		m.log, err = os.Create(filepath.Join(t.TempDir(), fmt.Sprintf("m%d.log", i)))
		must(t, err)
		m.begin()
		t.Cleanup(m.kill)
		clients = append(clients, m.client)
	}
	c.raw, err = clientv3.New(clientv3.Config{Endpoints: clients, Logger: zap.NewNop()})
	must(t, err)
	t.Cleanup(func() { must(t, c.raw.Close()) })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := c.raw.Get(ctx, "x"); err != nil {
		text, _ := os.ReadFile(c.members[0].log.Name())
		t.Fatalf("the cluster does not answer: %v\n%s", err, text)
	}
	return c
}

func (m *member) begin() {
	m.Helper()
	m.cmd = exec.Command(m.args[0], m.args[1:]...)
	m.cmd.Stderr = m.log
	must(m, m.cmd.Start())
}

func (m *member) kill() {
	_ = m.cmd.Process.Kill()
	_ = m.cmd.Wait() // killed
}

func (m *member) signal(s syscall.Signal) {
	m.Helper()
	must(m, m.cmd.Process.Signal(s))
}

// address returns the address of a registry in the cluster.
func (c *cluster) address(prefix string) string {
	var hosts []string
	for _, m := range c.members {
		hosts = append(hosts, m.client)
	}
	return "etcd://" + strings.Join(hosts, ",") + "/" + prefix
}

// prefix returns a new prefix.
func (c *cluster) prefix() string { return fmt.Sprintf("perdure/job-%d", c.prefixes.Add(1)) }

func (c *cluster) open(t testing.TB, prefix string) *Registry {
	t.Helper()
	r, err := Open(t.Context(), c.address(prefix))
	must(t, err)
	t.Cleanup(func() { _ = r.Close() }) // the cluster may be unavailable
	return r
}

// expire ends the lease of a registry.
func (c *cluster) expire(ctx context.Context, prefix string) error {
	found, err := c.raw.Get(ctx, prefix+"/"+holderKey)
	if err == nil && len(found.Kvs) > 0 {
		_, err = c.raw.Revoke(ctx, clientv3.LeaseID(found.Kvs[0].Lease))
	}
	return err
}

// leader returns the leader.
func (c *cluster) leader() *member {
	c.Helper()
	for _, m := range c.members {
		ctx, cancel := context.WithTimeout(c.Context(), time.Second)
		s, err := c.raw.Status(ctx, m.client)
		cancel()
		if err == nil && s.Leader == s.Header.MemberId {
			return m
		}
	}
	return c.members[0]
}

// after sleeps, because the tests depend on real time.
func after(d time.Duration) { <-time.After(d) }

// TestServerConformance runs the conformance suite with a real etcd server.
func TestServerConformance(t *testing.T) {
	c := start(t, 1)
	s := registrytest.Implementation{Name: "server", New: func(t testing.TB) (registrytest.Clients, func()) {
		prefix := c.prefix()
		return func(t testing.TB) registry.Registry { return c.open(t, prefix) },
			func() { must(t, c.expire(context.Background(), prefix)) }
	}}
	registrytest.Run(t, s)
	registrytest.Linearizable(t, s)
}

// TestServerLarge saves documents that need several transactions, with the server's default limits.
func TestServerLarge(t *testing.T) {
	c := start(t, 1)
	r := c.open(t, c.prefix())
	l := acquire(t, r)
	rng := rand.New(rand.NewPCG(*seedFlag, 5))
	at := uint64(0)
	for _, size := range []int{20 << 20, 5, 3 << 20, 0, 8 << 20} {
		doc := document(rng, size)
		at = save(t, l, doc, at)
		wantDoc(t, r, doc, at)
	}
	for range 40 { // each Save deletes some unused chunks
		at = save(t, l, []byte("small"), at)
	}
	found, err := c.raw.Get(t.Context(), r.prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	must(t, err)
	if found.Count != 3 {
		t.Errorf("got %d keys, want head, holder and one chunk", found.Count)
	}
}

// TestServerFull checks that a full etcd is treated like a full disk: saved documents stay, and the same Save succeeds
// when there is space again.
func TestServerFull(t *testing.T) {
	c := start(t, 1, "--quota-backend-bytes", fmt.Sprint(16<<20))
	r := c.open(t, c.prefix())
	l := acquire(t, r)
	rng := rand.New(rand.NewPCG(*seedFlag, 6))
	var at uint64
	var doc, next []byte
	var err error
	for err == nil {
		next = document(rng, 1<<20)
		var revision uint64
		if revision, err = l.Save(t.Context(), next, at); err == nil {
			doc, at = next, revision
		}
	}
	if wantError(t, "Save", err, syscall.ENOSPC); !disk.IsFull(err) {
		t.Errorf("%v does not count as a full disk", err)
	}
	wantDoc(t, r, doc, at)
	_, err = c.raw.Compact(t.Context(), int64(at), clientv3.WithCompactPhysical())
	must(t, err)
	_, err = c.raw.Defragment(t.Context(), c.members[0].client)
	must(t, err)
	_, err = c.raw.AlarmDisarm(t.Context(), &clientv3.AlarmMember{})
	must(t, err)
	wantDoc(t, r, next, save(t, l, next, at))
}

const holdEnv = "PERDURE_TEST_HOLDS"

// TestHolds is not a test but a helper process, which acquires the lease of the given registry, saves, reports it, and
// waits for the end of the lease.
func TestHolds(t *testing.T) {
	address := os.Getenv(holdEnv)
	if address == "" {
		t.Skip("helper process of TestServerTakeover")
	}
	r, err := Open(t.Context(), address)
	must(t, err)
	l, err := registry.AcquireWait(t.Context(), r, registry.Self(), nil)
	must(t, err)
	_, at, err := r.Load(t.Context())
	must(t, err)
	save(t, l, fmt.Appendf(nil, "%d", os.Getpid()), at)
	fmt.Println("holds")
	<-l.Done()
	fmt.Println("has lost it")
}

// TestServerTakeover checks, ten times, that a standby gets the lease within 3 s of the holder's death.
func TestServerTakeover(t *testing.T) {
	c := start(t, 3)
	prefix := c.prefix()
	standby := c.open(t, prefix)
	program, err := os.Executable()
	must(t, err)
	var took []time.Duration
	for i := range 10 {
		holder := exec.Command(program, "-test.run", "^TestHolds$")
		holder.Env = append(os.Environ(), holdEnv+"="+c.address(prefix))
		out, err := holder.StdoutPipe()
		must(t, err)
		must(t, holder.Start())
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "holds\n" {
			t.Fatalf("unexpected output %q, error %v", line, err)
		}
		after(time.Duration(i) * 90 * time.Millisecond) // somewhere between two renewals
		began := time.Now()
		must(t, holder.Process.Kill())
		l, err := registry.AcquireWait(t.Context(), standby, registry.Self(), nil)
		must(t, err)
		took = append(took, time.Since(began))
		doc, at, err := standby.Load(t.Context())
		if err != nil || string(doc) != fmt.Sprint(holder.Process.Pid) {
			t.Errorf("loaded %q, error %v", doc, err)
		}
		save(t, l, []byte("standby"), at)
		must(t, l.Release())
		_ = holder.Wait() // killed
	}
	slices.Sort(took)
	t.Logf("a standby took over after %v at best, %v in the median, %v at worst", took[0].Round(time.Millisecond),
		((took[4] + took[5]) / 2).Round(time.Millisecond), took[9].Round(time.Millisecond))
	if took[9] > 3*time.Second {
		t.Errorf("the slowest takeover took %v, more than 3 s", took[9])
	}
}

// TestServerAway kills all of etcd, or a majority, and restarts it after a minute. The coordinator must still have the
// lease, and the same Save must succeed.
func TestServerAway(t *testing.T) {
	for _, a := range []struct {
		name          string
		members, away int
		while         time.Duration
	}{{"alone", 1, 1, time.Minute}, {"two of three", 3, 2, time.Minute}, {"three of three", 3, 3, 10 * time.Second}} {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			c := start(t, a.members)
			r := c.open(t, c.prefix())
			l := acquire(t, r)
			first := save(t, l, []byte("one"), 0)
			gone := c.members[a.members-a.away:]
			for _, m := range gone {
				m.kill()
			}
			began := time.Now()
			for time.Since(began) < a.while {
				if _, err := l.Save(t.Context(), []byte("two"), first); !errors.Is(err, registry.ErrUnavailable) {
					t.Fatalf("Save while etcd is unavailable: %v", err)
				}
			}
			for _, m := range gone {
				m.begin()
			}
			back := time.Now()
			second, err := l.Save(t.Context(), []byte("two"), first)
			for errors.Is(err, registry.ErrUnavailable) && time.Since(back) < time.Minute {
				second, err = l.Save(t.Context(), []byte("two"), first)
			}
			must(t, err)
			t.Logf("unavailable for %v, saved %v after the restart", time.Since(began).Round(time.Second),
				time.Since(back).Round(time.Millisecond))
			after(3 * time.Second) // longer than the lifetime of an unrenewed lease
			if l.ended() {
				t.Error("the lease has ended")
			}
			wantDoc(t, r, []byte("two"), second)
		})
	}
}

// BenchmarkServerSave saves a document of 1 MB with small changes.
func BenchmarkServerSave(b *testing.B) {
	for _, members := range []int{1, 3} {
		b.Run(fmt.Sprintf("%d members", members), func(b *testing.B) {
			c := start(b, members)
			l := acquire(b, c.open(b, c.prefix()))
			rng := rand.New(rand.NewPCG(1, 1))
			doc := document(rng, 1<<20)
			at := save(b, l, doc, 0)
			var took []time.Duration
			for b.Loop() {
				doc = bytes.Clone(doc)
				copy(doc[rng.IntN(len(doc)-8):], fmt.Sprintf("%08d", rng.IntN(1e8)))
				began := time.Now()
				at = save(b, l, doc, at)
				took = append(took, time.Since(began))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "ms/median")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "ms/p99")
		})
	}
}

package membership

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/mutation"
	"github.com/perdure/perdure/internal/core/protocol"
)

// BenchmarkAllAtOnce measures the start of a job to which all workers connect at the same time. Each shard reports for
// each slot that it fences earlier processes and has carried out the decision. B/fence is the memory that the core
// keeps for these reports while the last shard has not sent its own.
func BenchmarkAllAtOnce(b *testing.B) {
	const servers, shards = 200, 1000
	for _, workers := range []int{300, 1000, 3000, 10000} {
		b.Run(fmt.Sprintf("workers=%d/servers=%d/shards=%d", workers, servers, shards), func(b *testing.B) {
			var took time.Duration
			var kept uint64
			n := 0
			for ; b.Loop(); n++ {
				t, k := allAtOnce(b, perdure.JobSpec{Servers: servers, Slots: workers, Shards: shards, Clocks: 10})
				took, kept = took+t, k
			}
			fences := float64(workers * shards)
			b.ReportMetric(took.Seconds()*1e3/float64(n), "core-ms")
			b.ReportMetric(float64(took.Nanoseconds())/float64(n)/fences, "core-ns/fence")
			b.ReportMetric(float64(kept)/1e6, "kept-MB")
			b.ReportMetric(float64(kept)/fences, "B/fence")
		})
	}
}

// cpu returns the CPU time of this process so far.
func cpu(b *testing.B) time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t); err != nil {
		b.Fatal(err)
	}
	return time.Duration(t.Nano())
}

// allAtOnce starts a job. It returns the CPU time and the memory of the core.
func allAtOnce(b *testing.B, job perdure.JobSpec) (took time.Duration, kept uint64) {
	job.Consistency = perdure.Consistency{Kind: perdure.BSP}
	job.Recovery = perdure.Recovery{Kind: perdure.RecoverNone}
	c := New(NewJobRecord(job, 1, 0, nil), 15, mutation.Set{})
	for i := range job.Servers {
		c.Join(Server, i, Applicant{Process: fmt.Sprintf("s%d", i), PID: i + 1})
	}
	for i := range job.Slots {
		c.Join(Worker, i, Applicant{Process: fmt.Sprintf("w%d", i), PID: i + 1})
	}
	c.Ready()
	speaks := make([]uint64, job.Servers)
	says := func(server int) {
		d := protocol.ServerDelta{Revision: c.record.View.Revision}
		for s := range c.job.replicas.Shards(server) {
			st := protocol.ShardDelta{ShardStatus: protocol.ShardStatus{
				Shard: perdure.ShardID(s), Generation: 1, Epoch: c.record.View.Shards[s].Epoch, Ready: true,
			}}
			for i := range c.record.View.Slots {
				sl := &c.record.View.Slots[i]
				st.Fences = append(st.Fences,
					protocol.Fence{Slot: perdure.Slot(i), Incarnation: sl.Incarnation, Carried: sl.Decided})
			}
			d.Shards = append(d.Shards, st)
		}
		speaks[server]++
		d.Number = speaks[server]
		start := cpu(b)
		c.HandleServerDelta(server, c.record.Servers[server].Process, &d)
		c.Ready()
		took += cpu(b) - start
	}
	memory := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := memory()
	for round := range 2 { // all are fenced, then the decisions are carried out
		for i := range job.Servers {
			if says(i); round == 1 && i == job.Servers-2 {
				kept = memory() - before
			}
		}
	}
	for i := range c.record.View.Slots {
		if !c.record.View.Slots[i].Settled {
			b.Fatalf("slot %d is not settled", i)
		}
	}
	return took, kept
}

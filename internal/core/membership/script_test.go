package membership

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
)

// TestScripts runs the scripts of testdata/scripts. Each command prints its answer, the events that it caused and, if
// the view changed, the view.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		var c *cluster
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "new" {
				c = scriptCluster(t, d)
				return c.describe()
			}
			revision := c.saved.View.Revision
			scriptCommand(t, d, c)
			out := c.told.String()
			c.told.Reset()
			if c.saved.View.Revision != revision || d.Cmd == "show" {
				out += c.describe()
			}
			if c.wrong != nil {
				d.Fatalf(t, "%v", c.wrong)
			}
			return out
		})
	})
}

// scriptCluster creates the cluster that the command "new [slots=] [servers=] [shards=] [model=] [recovery=] [clocks=]
// [patience=] [zones=] [noreplace] [atcuts] [sharing] [mtbf=] [save=]" describes; the last two are in seconds.
func scriptCluster(t *testing.T, d *datadriven.TestData) *cluster {
	job := perdure.JobSpec{Slots: 2, Servers: 2, Shards: 2}
	model, recovery, clocks, patience := "bsp", "checkpoint:10", 0, 3
	d.MaybeScanArgs(t, "slots", &job.Slots)
	d.MaybeScanArgs(t, "servers", &job.Servers)
	d.MaybeScanArgs(t, "shards", &job.Shards)
	d.MaybeScanArgs(t, "model", &model)
	d.MaybeScanArgs(t, "recovery", &recovery)
	d.MaybeScanArgs(t, "clocks", &clocks)
	d.MaybeScanArgs(t, "patience", &patience)
	job.Clocks = perdure.Clock(clocks)
	var err error
	if job.Consistency, err = perdure.ParseConsistency(model); err == nil {
		job.Recovery, err = perdure.ParseRecovery(recovery)
	}
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	job.NoReplace = d.HasArg("noreplace")
	suspend := 0
	d.MaybeScanArgs(t, "suspend", &suspend)
	job.SuspendMs = int64(suspend) * 100
	late := 0
	d.MaybeScanArgs(t, "takeover", &late)
	job.TakeOverMs = int64(late) * 100
	mtbf, save := 0, 0
	d.MaybeScanArgs(t, "mtbf", &mtbf)
	d.MaybeScanArgs(t, "save", &save)
	job.MTBF = float64(mtbf)
	c := newCluster(job, int64(patience))
	c.saveSeconds = float64(save)
	c.atCuts = d.HasArg("atcuts")
	if d.HasArg("sharing") {
		c.sharing = newSharing()
	}
	d.MaybeScanArgs(t, "zones", &c.zones)
	return c
}

// places returns the server indices and slots that "server=0", "worker=1" or nothing (all) select.
func places(t *testing.T, d *datadriven.TestData, c *cluster) (kinds []Kind, indices []int) {
	for _, k := range []Kind{Server, Worker} {
		if arg, ok := d.Arg(string(k)); ok {
			var index int
			arg.Scan(t, 0, &index)
			return []Kind{k}, []int{index}
		}
	}
	c.each(func(k Kind, index int, _ *fakeProcess) { kinds, indices = append(kinds, k), append(indices, index) })
	return kinds, indices
}

// orders are the arguments of a command.
type orders struct {
	kind   Kind
	place  int
	n, at  int
	index  int
	how    string
	shards []int
}

func scriptCommand(t *testing.T, d *datadriven.TestData, c *cluster) {
	kinds, indices := places(t, d, c)
	o := orders{kind: kinds[0], place: indices[0], n: 1, index: -1, how: "gone"}
	d.MaybeScanArgs(t, "n", &o.n)
	d.MaybeScanArgs(t, "how", &o.how)
	d.MaybeScanArgs(t, "at", &o.at)
	d.MaybeScanArgs(t, "index", &o.index)
	if arg, ok := d.Arg("shards"); ok {
		for i := range arg.Vals {
			var s int
			arg.Scan(t, i, &s)
			o.shards = append(o.shards, s)
		}
	}
	switch d.Cmd {
	case "start":
		for j := range kinds {
			c.start(kinds[j], indices[j])
		}
	case "rejoin":
		for j := range kinds {
			p := c.process(kinds[j], indices[j])
			if p.silent = false; p.up && !p.connected { // a frozen process thaws
				inc, v := c.join(kinds[j], indices[j])
				fmt.Fprintf(&c.told, "%s:%d incarnation %d: %s\n", kinds[j], indices[j], inc, v)
			}
		}
	case "table":
		scriptTable(t, d, c)
	default:
		if !c.processCommand(d.Cmd, o) && !c.jobCommand(d.Cmd, o) {
			d.Fatalf(t, "unknown command %q", d.Cmd)
		}
	}
}

// processCommand executes a command that concerns one process.
func (c *cluster) processCommand(cmd string, o orders) bool {
	switch cmd {
	case "request": // an unrelated process asks for a slot or index
		got, inc, v := c.core.Join(Kind(o.how), o.index,
			Applicant{Process: "stranger", Addr: "nowhere", PID: 999, Grow: o.n > 1})
		fmt.Fprintf(&c.told, "%s:%d incarnation %d: %s\n", o.how, got, inc, v)
		c.flush()
	case "kill":
		c.kill(o.kind, o.place, o.how)
	case "request-any": // a server asks for any index
		fmt.Fprintf(&c.told, "%s\n", c.more())
	case "drain":
		c.servers[o.place].draining = true
		c.report(Server, o.place)
	case "follow":
		c.follow(o.kind, o.place)
	case "report":
		c.report(o.kind, o.place)
	case "stale": // the last messages of replaced processes arrive late
		c.ghost(o.kind, o.place)
	case "work":
		c.work(o.place)
	case "send": // a worker's updates and ticks, to some shards
		for _, s := range o.shards {
			c.send(o.place, s)
		}
	default:
		return false
	}
	return true
}

// jobCommand executes a command that concerns the whole job.
func (c *cluster) jobCommand(cmd string, o orders) bool {
	switch cmd {
	case "settle": // all follow and report until nothing changes any more
		for before := uint64(0); before != c.saved.View.Revision; {
			before = c.saved.View.Revision
			c.each(func(k Kind, index int, _ *fakeProcess) { c.follow(k, index) })
			c.each(func(k Kind, index int, _ *fakeProcess) { c.report(k, index) })
		}
	case "clocks": // all workers finish n clocks, if they may
		c.clocks(o.n)
	case "tick":
		for range o.n {
			c.core.Tick()
			c.flush()
		}
	case "published":
		c.answer(o.how != "failed")
	case "restart":
		c.restart()
	case "lose":
		c.losing = true
	case "drop":
		for _, s := range o.shards {
			c.excused[s] = true
			c.core.Drop([]perdure.ShardID{perdure.ShardID(s)})
		}
		c.flush()
	case "scale":
		ch, err := c.core.Record().Scaled(o.n, perdure.Clock(o.at))
		if err == nil {
			err = c.core.Scale(ch)
		}
		c.say(err)
	case "leave":
		c.say(c.core.Scale(Change{Leave: []perdure.Slot{perdure.Slot(o.index)}, At: perdure.Clock(o.at)}))
	case "end":
		c.core.EndAfter(perdure.Clock(o.at), o.how == "tentative")
		c.flush()
	case "continue":
		c.core.RevokeEnd(perdure.Clock(o.at))
		c.flush()
	case "close":
		c.core.RequestFinalCheckpoint()
		c.flush()
	case "finish":
		c.core.Finish()
		c.flush()
	case "show":
		if (recovery.Of(c.job.Recovery).Traits().MayLoseUpdates() || c.core.Complete()) && c.core.Serving() {
			c.checkLoss()
		}
		fmt.Fprintf(&c.told, "serving %v, complete %v, MinClock %d\n", c.core.Serving(), c.core.Complete(),
			c.core.MinClock())
		c.each(func(k Kind, index int, _ *fakeProcess) {
			fmt.Fprintf(&c.told, "%s:%d %s at clock %d\n", k, index, c.core.MemberStatus(k, index).State,
				c.core.MemberStatus(k, index).Clock)
		})
	default:
		return false
	}
	return true
}

// say prints an error.
func (c *cluster) say(err error) {
	if err != nil {
		fmt.Fprintln(&c.told, err)
	}
	c.flush()
}

// clocks lets all workers finish n clocks, if possible, and sends all updates to all shards.
func (c *cluster) clocks(n int) {
	steps := 1
	if c.job.Consistency.TwoStep() {
		steps = 2
	}
	for range n * steps {
		for i := range c.workers {
			c.work(i)
		}
		for range 2 { // twice, to receive the effects of the other workers' updates
			for i := range c.workers {
				for s := range c.job.Shards {
					c.send(i, s)
				}
			}
		}
	}
}

func scriptTable(t *testing.T, d *datadriven.TestData, c *cluster) {
	name, rows, model := "t", 10, "bsp"
	d.MaybeScanArgs(t, "name", &name)
	d.MaybeScanArgs(t, "rows", &rows)
	d.MaybeScanArgs(t, "model", &model)
	m, err := perdure.ParseConsistency(model)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	err = c.core.AddTable(perdure.TableSpec{
		Name: name, Rows: int64(rows), Dim: 1,
		Rule: perdure.Rule{Kind: perdure.RuleAdd}, Consistency: m,
		Whole: d.HasArg("whole"),
	})
	if err != nil {
		fmt.Fprintln(&c.told, err)
	}
	c.flush()
}

// describe prints the saved view.
func (c *cluster) describe() string {
	var out strings.Builder
	v := &c.saved.View
	fmt.Fprintf(&out, "revision %d: generation %d cut %d durable %d end %d", v.Revision, v.Generation, v.Cut,
		v.Durable, v.End)
	if v.Tentative {
		out.WriteString(" tentative")
	}
	if v.Named > v.Durable {
		fmt.Fprintf(&out, " named %d", v.Named)
	}
	if v.Pause {
		out.WriteString(" pause")
	}
	if v.Done {
		out.WriteString(" done")
	}
	if v.Roster > 0 {
		fmt.Fprintf(&out, " roster %d, known %d", v.Roster, c.saved.KnownRoster)
	}
	if c.saved.UpdatesLost+c.saved.ClocksRedone > 0 {
		fmt.Fprintf(&out, ", %d updates lost, %d clocks redone", c.saved.UpdatesLost, c.saved.ClocksRedone)
	}
	out.WriteString("\n")
	if c.saved.Failed != "" {
		fmt.Fprintf(&out, "  failed: %s\n", c.saved.Failed)
	}
	for i, s := range v.Shards {
		fmt.Fprintf(&out, "  shard %d:", i)
		if s.Server < 0 {
			out.WriteString(" no holder\n")
			continue
		}
		fmt.Fprintf(&out, " server:%d.%d %s epoch %d", s.Server, s.Incarnation, s.Addr, s.Epoch)
		for _, h := range s.Followers {
			fmt.Fprintf(&out, ", server:%d.%d", h.Server, h.Incarnation)
		}
		if j := s.Joining; j != nil {
			fmt.Fprintf(&out, ", server:%d.%d joins", j.Server, j.Incarnation)
		}
		if s.Lost {
			fmt.Fprintf(&out, " lost, base %v", s.Base)
		}
		if s.Restored {
			fmt.Fprint(&out, " restored")
		}
		if s.Yields {
			fmt.Fprint(&out, " yields")
		}
		out.WriteString("\n")
	}
	for i := range v.Slots {
		c.describeSlot(&out, i)
	}
	for _, t := range v.Tables {
		if t.Whole {
			fmt.Fprintf(&out, "  table %s: all on shard %d\n", t.Name, t.Shard)
		}
	}
	return out.String()
}

// describeSlot prints a slot of the saved view.
func (c *cluster) describeSlot(out *strings.Builder, i int) {
	v, s := &c.saved.View, c.saved.View.Slots[i]
	state := "fencing"
	switch {
	case s.Incarnation == 0:
		state = "never taken"
	case s.Settled:
		state = fmt.Sprintf("settled at clock %d", s.Start)
	case s.Decided:
		state = fmt.Sprintf("decided for clock %d", s.Start)
	}
	if s.From > 0 {
		state += fmt.Sprintf(", from clock %d", s.From)
	}
	if s.Until > 0 {
		state += fmt.Sprintf(", until clock %d", s.Until)
	}
	if s.Left {
		state += ", left"
	}
	if c.saved.Slots[i].Suspended {
		state += ", suspended"
	}
	if s.Source > 0 {
		state += fmt.Sprintf(", with the shared state of worker:%d", s.Source-1)
	}
	switch n := c.saved.Slots[i].UnretainedBelow; {
	case n == unknown:
		state += ", unkept"
	case n > v.Durable:
		state += fmt.Sprintf(", unkept below clock %d", n)
	}
	fmt.Fprintf(out, "  slot %d: worker:%d.%d %s, %s\n", i, i, s.Incarnation, c.saved.Slots[i].Process, state)
}

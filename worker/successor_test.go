package worker_test

import (
	"testing"
	"time"

	"github.com/perdure/perdure"
)

// What a slot's dead process had ticked is applied after its successor has read the
// rows, which nobody else changes: the successor is pushed them, since it does not
// show what another process did.
func TestSuccessorIsPushedOldUpdates(t *testing.T) {
	for _, model := range []string{"e=essp:1,b=bsp", "e=vap:100,b=bsp"} {
		inCluster(t, model, "none", 2, 0, func(c *cluster) {
			named := func(name string) func(*perdure.TableSpec) {
				return func(s *perdure.TableSpec) { s.Name, s.Consistency = name, perdure.Consistency{} }
			}
			first, other := c.dial("worker:0", 0), c.dial("worker:1", 1)
			table := c.table(first, named("e"))
			c.table(first, named("b"))
			c.table(other, named("e"))
			if err := table.IncRows([]perdure.RowID{3}, all(1, 1)); err != nil {
				t.Fatal(err)
			}
			c.clock(first, 1) // ticked; slot 1 has not ended the clock yet
			c.net.Kill("worker:0")
			first.Close()
			c.pass(time.Second)
			next := c.dial("worker:2", 0)
			table = c.table(next, named("e"))
			if now := next.Now(); now != 1 {
				t.Fatalf("%s: the next process begins at clock %d", model, now)
			}
			before, _ := c.read(table, []perdure.RowID{3})
			c.clock(other, 1)
			c.pass(time.Second)
			if v, _ := c.read(table, []perdure.RowID{3}); before != 0 || v != 1 {
				t.Fatalf("%s: the row is %v, then %v; want 0, then 1", model, before, v)
			}
		})
	}
}

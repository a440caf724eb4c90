package worker_test

import (
	"testing"
	"time"

	"github.com/perdure/perdure"
)

// TestSuccessorReadsOldUpdates checks a replacement process that receives rows before its predecessor's ticked updates
// are applied. Only this slot changes these rows. The replacement's first read must wait and include the predecessor's
// updates.
func TestSuccessorReadsOldUpdates(t *testing.T) {
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
			c.clock(first, 1) // ticked; slot 1 has not ended the clock
			c.Net.Kill("worker:0")
			first.Close()
			c.pass(time.Second)
			next := c.dial("worker:2", 0)
			table = c.table(next, named("e"))
			if now := next.Now(); now != 1 {
				t.Fatalf("%s: the next process begins at clock %d", model, now)
			}
			read := make(chan float32, 1)
			go func() {
				v, _ := c.read(table, []perdure.RowID{3})
				read <- v
			}()
			c.pass(time.Second)
			select {
			case v := <-read:
				t.Fatalf("%s: the row is read as %v before what the slot did is applied", model, v)
			default:
			}
			c.clock(other, 1)
			if v := <-read; v != 1 {
				t.Fatalf("%s: the row is %v, want 1", model, v)
			}
		})
	}
}

package terminal

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/rundir"
)

// TestOneLine checks that a run's end is one line with the cost of failures, if any, and the planned faults that did
// not happen.
func TestOneLine(t *testing.T) {
	accuracy, none, two := 0.75, int64(0), int64(2)
	s := rundir.Summary{Clocks: 10, WallSeconds: 1.25, TestAccuracy: &accuracy}
	show := func(missed ...supervisor.Fault) string {
		var out bytes.Buffer
		LineView{Out: &out}.End(&s, "runs/a", missed)
		return out.String()
	}
	if got := show(); got != "done: test accuracy 0.7500 after 10 clocks in 1.2 s, runs/a\n" {
		t.Errorf("%q", got)
	}
	s.Failures, s.UpdatesLost, s.ClocksRedone = []rundir.Failure{{Kind: "kill"}, {Kind: "kill"}}, &none, &two
	s.TestAccuracy, s.TestRMSE = nil, &accuracy
	f, err := supervisor.ParseFault("kill:server:0@3600s")
	if err != nil {
		t.Fatal(err)
	}
	want := "done: test rmse 0.7500 after 10 clocks in 1.2 s, 2 kills, 0 updates lost, 2 clocks redone, " +
		"did not happen: kill:server:0@3600s, runs/a\n"
	if got := show(f); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	s.Saving = &protocol.Saving{Rows: &protocol.RowSaving{PartlyLost: 27}}
	if got := show(); !strings.Contains(got, "0 updates lost, 27 lost in part, 2 clocks redone") {
		t.Errorf("%q", got)
	}
	s = rundir.Summary{Clocks: 10, WallSeconds: 1.25, TestLoss: &accuracy} // as for lda
	if got := show(); got != "done: test loss 0.7500 after 10 clocks in 1.2 s, runs/a\n" {
		t.Errorf("%q", got)
	}
}

// TestDocument checks that the result is one document, and that faults that did not happen are reported separately.
func TestDocument(t *testing.T) {
	var out bytes.Buffer
	warned := ""
	f, err := supervisor.ParseFault("kill:server:0@3600s")
	if err != nil {
		t.Fatal(err)
	}
	v := JSONView{Out: &out, Warn: func(line string) { warned += line }}
	v.End(&rundir.Summary{Clocks: 10}, "runs/a", []supervisor.Fault{f})
	var s struct{ Clocks int }
	d := json.NewDecoder(&out)
	if err := d.Decode(&s); err != nil || s.Clocks != 10 || d.More() {
		t.Errorf("%v, %d clocks", err, s.Clocks)
	}
	if !strings.Contains(warned, "did not happen: kill:server:0@3600s") {
		t.Errorf("warned of %q", warned)
	}
}

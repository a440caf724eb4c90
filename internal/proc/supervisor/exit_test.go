package supervisor

import (
	"testing"

	"github.com/perdure/perdure/internal/data/wire"
)

// TestExit checks the consequences of an exit.
func TestExit(t *testing.T) {
	server := func(code int) Exit { return Exit{Role: wire.RoleServer, PID: 7, Code: code} }
	worker := func(code int) Exit { return Exit{Role: wire.RoleWorker, PID: 7, Code: code} }
	log := Exit{Role: RoleLog, PID: 7, Code: -1, Signal: "SIGKILL"}
	type want struct {
		of      string // r: recorded, c: reported to the coordinator, f: as a failure, d: delayed
		restart restart
	}
	for name, c := range map[string]struct {
		exit    Exit
		context exitContext
		want    want
	}{
		"a killed server":            {server(-1), exitContext{}, want{"rc", restartAfter}},
		"a planned kill":             {server(-1), exitContext{planned: true}, want{"rc", restartAfter}},
		"a fenced server":            {server(exitFenced), exitContext{}, want{"rc", restartAfter}},
		"a server ended by a signal": {server(exitSignal), exitContext{}, want{"rc", restartAfter}},
		"a drained server":           {server(ExitDrained), exitContext{}, want{"c", restartOff}},
		"no replacement":             {server(-1), exitContext{noReplace: true}, want{"rc", restartOff}},
		"a server's error":           {server(1), exitContext{}, want{"rc", restartFail}},
		"an error without replacement": {
			server(1), exitContext{noReplace: true}, want{"rc", restartFail},
		},
		"a server that cannot start":    {Exit{Role: wire.RoleServer}, exitContext{}, want{"rc", restartFail}},
		"after the job's end":           {server(1), exitContext{jobDone: true}, want{"c", restartNever}},
		"while the supervisor stops":    {server(-1), exitContext{stopping: true}, want{"rc", restartNever}},
		"the log":                       {log, exitContext{}, want{"r", restartAfter}},
		"a worker's error":              {worker(1), exitContext{}, want{"rc", restartFail}},
		"a slot that has left":          {worker(0), exitContext{slotLeft: true}, want{"d", restartNever}},
		"a slot that will leave":        {worker(0), exitContext{leaving: true}, want{"cd", restartAfter}},
		"killed before its slot leaves": {worker(-1), exitContext{leaving: true}, want{"rc", restartAfter}},
		"killed after its slot left":    {worker(-1), exitContext{slotLeft: true}, want{"rc", restartAfter}},
		"a program's error":             {worker(1), exitContext{own: true}, want{"rcfd", restartAfter}},
		"a program's error, planned":    {worker(1), exitContext{own: true, planned: true}, want{"rc", restartAfter}},
		"a program that ends too early": {worker(0), exitContext{own: true}, want{"rcfd", restartAfter}},
		"a program at the job's end": {
			worker(0), exitContext{own: true, finished: true}, want{"d", restartAfter},
		},
		"a worker at the job's end": {worker(0), exitContext{finished: true}, want{"rc", restartAfter}},
		"a program that cannot start": {
			Exit{Role: wire.RoleWorker}, exitContext{own: true}, want{"rc", restartFail},
		},
	} {
		a := c.context.decide(&c.exit)
		got := want{restart: a.restart}
		for letter, is := range []bool{a.record, a.report != nil, a.report != nil && a.report.Failed, a.delay} {
			if is {
				got.of += "rcfd"[letter : letter+1]
			}
		}
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

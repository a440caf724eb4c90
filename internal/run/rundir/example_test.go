package rundir_test

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/perdure/perdure/internal/run/rundir"
)

func Example() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)

	run, err := rundir.Create(filepath.Join(dir, "first"))
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := run.Event(rundir.Event{
		Seconds: 1.5, Clock: 10, Kind: "exit", Target: "server:0",
		Text: "killed by SIGKILL",
	}); err != nil {
		fmt.Println(err)
	}
	if err := run.Close(); err != nil {
		fmt.Println(err)
	}
	events, err := os.ReadFile(filepath.Join(run.Path(), "events.jsonl"))
	fmt.Print(string(events))
	fmt.Println(err)
	// Output:
	// {"seconds":1.5,"clock":10,"kind":"exit","target":"server:0","text":"killed by SIGKILL","details":null}
	// <nil>
}

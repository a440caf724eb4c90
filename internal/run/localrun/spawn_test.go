package localrun

import (
	"errors"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/supervisor"
)

// TestAwaitPrograms checks that users are notified once about programs that do not exit soon, and that a program that
// is killed, or does not exit in time, is an error.
func TestAwaitPrograms(t *testing.T) {
	g, err := supervisor.NewGroup(supervisor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := g.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	notices := 0
	if err := awaitPrograms(t.Context(), g, time.Hour, time.Hour, func() { notices++ }); err != nil || notices > 0 {
		t.Fatalf("without programs: %v, %d notices", err, notices)
	}
	err = g.Start(supervisor.Spec{Role: wire.RoleWorker, Command: []string{"tail", "-f", "/dev/null"}})
	if err != nil {
		t.Fatal(err)
	}
	err = awaitPrograms(t.Context(), g, time.Nanosecond, time.Nanosecond, nil)
	if !errors.Is(err, ErrFailedProgram) {
		t.Fatalf("a program that does not exit: %v, want ErrFailedProgram", err)
	}
	err = awaitPrograms(t.Context(), g, time.Hour, time.Nanosecond, func() {
		notices++
		if err := g.Kill(wire.RoleWorker, 0); err != nil {
			t.Error(err)
		}
	})
	if !errors.Is(err, ErrFailedProgram) || notices != 1 {
		t.Fatalf("a killed program: %v, %d notices; want ErrFailedProgram and one notice", err, notices)
	}
	err = g.Start(supervisor.Spec{Role: wire.RoleWorker, Index: 1, Command: []string{"false"}})
	if err != nil {
		t.Fatal(err)
	}
	if err = awaitPrograms(t.Context(), g, time.Hour, time.Hour, nil); !errors.Is(err, ErrFailedProgram) {
		t.Fatalf("a program with exit status 1: %v, want ErrFailedProgram", err)
	}
}

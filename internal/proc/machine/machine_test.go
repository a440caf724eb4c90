package machine

import (
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
)

// TestGCPercent checks that a small live heap allows a fixed amount of garbage, and a large one an eighth on top.
func TestGCPercent(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		least, live uint64
		want        int
	}{
		{64 * mib, 0, 1612}, // treated as 4 MiB live
		{64 * mib, 4 * mib, 1612},
		{64 * mib, 64 * mib, 112},
		{8 * mib, 64 * mib, 25},
		{64 * mib, 64 << 30, 12},
	} {
		if got := gcPercent(c.least, c.live); got != c.want {
			t.Errorf("%d MiB live, %d MiB of garbage allowed: got %d%%, want %d%%", c.live/mib, c.least/mib, got,
				c.want)
		}
	}
}

// asProcess is the environment variable that makes this test binary limit itself and print the settings in effect.
const asProcess = "PERDURE_TEST_MACHINE"

func TestMain(m *testing.M) {
	if os.Getenv(asProcess) == "" {
		os.Exit(m.Run())
	}
	LimitGarbage(1)
	LimitCores(1 << 20) // one core each among a million processes
	percent := debug.SetGCPercent(100)
	os.Stdout.WriteString(strings.Join([]string{word(percent == 100), word(runtime.GOMAXPROCS(0) == 1)}, " "))
}

func word(usual bool) string { return map[bool]string{true: "yes", false: "no"}[usual] }

// TestEnvironment checks that GOGC and GOMAXPROCS override the computed limits.
func TestEnvironment(t *testing.T) {
	for want, env := range map[string][]string{
		"no yes":  {"GOGC=", "GOMAXPROCS="},
		"yes yes": {"GOGC=100", "GOMAXPROCS=1"},
		"yes no":  {"GOGC=100", "GOMAXPROCS=2"},
	} {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(append(os.Environ(), asProcess+"=1"), env...)
		out, err := cmd.Output()
		if err != nil || string(out) != want {
			t.Errorf("with %q: default GC percentage and one core: %s, want %s; %v", env, out, want, err)
		}
	}
}

package settings

import (
	"testing"

	"github.com/perdure/perdure"
)

// TestFirstDifference checks that the first setting that differs is named with both values, before the seal that
// follows from it, and that values of one start and empty lists do not count.
func TestFirstDifference(t *testing.T) {
	made := func(workers int) Run {
		job, err := Shape{
			Workers: workers, Servers: 2, Shards: 2, Consistency: "bsp", Recovery: "none", Clocks: 9,
		}.Job(OwnWorkload)
		if err != nil {
			t.Fatal(err)
		}
		if job.Seal, err = perdure.NewSeal(map[string]any{"job": map[string]any{"slots": workers}}); err != nil {
			t.Fatal(err)
		}
		return Run{Job: job, CacheMB: 1, RetainMB: 1}
	}
	same := made(3)
	same.Version, same.Faults, same.Job.AwaitExport = "other", []string{}, true
	zoned := made(3)
	zoned.Zones = []string{"a"}
	for want, asked := range map[string]Run{
		"": same, "job.slots is 3 there, but 4 is requested": made(4),
		`zones is not set there, but ["a"] is requested`: zoned,
	} {
		if got, err := FirstDifference(made(3), asked); err != nil || got != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
}

package coordinator

import (
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/data/wire"
)

// TestCheckView checks that only a view newer than the record is refused.
func TestCheckView(t *testing.T) {
	v := initialView{revision: 40}
	for revision, older := range map[uint64]bool{0: false, 39: false, 40: false, 41: true, 1 << 60: true} {
		err := v.checkView(&wire.Hello{Role: wire.RoleServer, Index: 3, Revision: revision})
		if (err != nil) != older || older &&
			(!strings.Contains(err.Error(), "server:3 uses revision") || strings.Contains(err.Error(), "\n")) {
			t.Errorf("revision %d: %v", revision, err)
		}
	}
}

// TestCheckStored checks which checkpoints prove that a record is an older copy.
func TestCheckStored(t *testing.T) {
	unplaced := membership.NewJobRecord(perdure.JobSpec{ID: "j", Slots: 1, Servers: 1, Shards: 1}, 2, 20, nil)
	unplaced.Running.Number = 7
	placed := unplaced.Clone()
	placed.View.Shards[0].Server = 0
	for what, c := range map[string]struct {
		record *membership.JobRecord
		stored storedCheckpoints
		want   string // "": the record may be the newest
	}{
		"no checkpoint":                     {&placed, storedCheckpoints{0, 0, 20, true, 0}, ""},
		"the same":                          {&placed, storedCheckpoints{1, 20, 20, false, 7}, ""},
		"published, not recorded yet":       {&placed, storedCheckpoints{2, 30, 20, false, 0}, ""},
		"older, of the previous generation": {&placed, storedCheckpoints{1, 10, 20, true, 0}, ""},
		"the record has advanced meanwhile": {&placed, storedCheckpoints{2, 30, 10, true, 0}, ""},
		"pruned":                            {&placed, storedCheckpoints{2, 30, 20, true, 0}, "lacks that of clock 20"},
		"later generation":                  {&placed, storedCheckpoints{3, 10, 20, false, 0}, "generation 3"},
		"later rows":                        {&placed, storedCheckpoints{0, 0, 20, false, 8}, "running checkpoint 8"},
		"no record":                         {&unplaced, storedCheckpoints{3, 30, 20, false, 0}, "has not started"},
		"resumed job at its start":          {&unplaced, storedCheckpoints{2, 20, 20, false, 7}, ""},
	} {
		err := c.stored.check(c.record)
		if c.want == "" && err != nil || c.want != "" && (err == nil ||
			!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%s: %v; want %q", what, err, c.want)
		}
	}
}

package settings

import (
	"errors"
	"strings"
	"testing"

	"github.com/perdure/perdure"
)

// TestTakeStore checks that each run has a store location of its own and remembers the location that it resumes from.
func TestTakeStore(t *testing.T) {
	const there = "s3://bucket/there"
	for _, c := range []struct{ was, given, want, err string }{
		{"", "", "", ""},
		{"", "s3://bucket/here/", "s3://bucket/here", ""},
		{there, "file:///x/../y", "file:///y", ""},
		{there, "", "", "the run of DIR/run.json has its checkpoints in " + there},
		{"", "here", "", "file:///DIR"},
		{"", "s3://user:word@bucket/x", "", "must not contain secrets"},
	} {
		s, a := Run{Checkpoints: Checkpoints{Store: c.was}}, Flags{Store: c.given, Given: map[string]bool{}}
		if c.given != "" {
			a.Given["store"] = true
		}
		err := a.applyStore(&s, "DIR/run.json")
		if c.err != "" {
			if !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), c.err) ||
				strings.Contains(err.Error(), "word") {
				t.Errorf("%+v: %v", c, err)
			}
			continue
		}
		if err != nil || s.Checkpoints.Store != c.want || s.Checkpoints.Earlier != c.was || s.validateStore() != nil {
			t.Errorf("%+v: %+v, %v, %v", c, s.Checkpoints, err, s.validateStore())
		}
	}
	for _, text := range []string{"x", "s3://bucket/x/", "s3://bucket/x?endpoint=h"} {
		if s := (Run{Checkpoints: Checkpoints{Store: text}}); s.validateStore() == nil {
			t.Errorf("run.json with store %s is accepted ", text)
		}
	}
}

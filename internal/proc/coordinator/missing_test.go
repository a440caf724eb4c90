package coordinator

import (
	"fmt"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/core/membership"
)

// TestMissing checks that the user is notified of missing processes after a while, with those that are missing nearly
// as long in the same message, and again when the set changes, but not too often.
func TestMissing(t *testing.T) {
	type at struct {
		seconds int
		workers string // missing workers
		want    string // workers in the notification
	}
	for name, c := range map[string][]at{
		"at first":             {{0, "01", ""}, {7, "01", ""}, {8, "01", "01"}, {9, "01", ""}, {90, "01", ""}},
		"one comes":            {{0, "01", ""}, {8, "01", "01"}, {9, "1", ""}, {16, "1", "1"}, {17, "1", ""}},
		"they die together":    {{0, "0", ""}, {1, "01", ""}, {8, "01", "01"}},
		"one dies later":       {{0, "0", ""}, {5, "01", ""}, {8, "01", "0"}, {13, "01", ""}, {16, "01", "01"}},
		"it is replaced":       {{0, "0", ""}, {7, "", ""}, {8, "0", ""}, {15, "0", ""}, {16, "0", "0"}},
		"all come, one leaves": {{0, "01", ""}, {8, "01", "01"}, {9, "", ""}, {10, "0", ""}, {18, "0", "0"}},
	} {
		m, start := newMissingMembers(), time.Unix(1000, 0)
		for _, c := range c {
			var places []memberID
			for _, digit := range c.workers {
				places = append(places, memberID{membership.Worker, int(digit - '0')})
			}
			got := ""
			for _, s := range m.dueForNotice(start.Add(time.Duration(c.seconds)*time.Second), places) {
				got += fmt.Sprint(s.index)
			}
			if got != c.want {
				t.Errorf("%s: after %d s the notification names %q, want %q", name, c.seconds, got, c.want)
			}
		}
	}
}

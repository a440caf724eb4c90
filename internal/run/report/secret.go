package report

import (
	"encoding/json"
	"regexp"
	"strings"

	"github.com/perdure/perdure/internal/data/updatelog"
)

// credentials are what an address has in front of its host.
var credentials = regexp.MustCompile(`([a-z][a-z0-9+.-]*://)[^/@"\s]+@`)

// withoutSecrets is a text of a run's settings as it may be handed on: addresses are without names and
// passwords, as those of a log can have them.
func (t *trial) withoutSecrets(text string) string {
	addresses := []string{t.Settings.Job.Log}
	if t.Settings.Log != nil {
		addresses = append(addresses, t.Settings.Log.NATS)
	}
	for _, is := range addresses {
		shown := updatelog.WithoutSecrets(is)
		if is == "" || shown == is {
			continue
		}
		text = strings.ReplaceAll(text, is, shown)
		if a, err := json.Marshal(is); err == nil { // as it is written in run.json
			if b, err := json.Marshal(shown); err == nil {
				text = strings.ReplaceAll(text, string(a), string(b))
			}
		}
	}
	return credentials.ReplaceAllString(text, "$1")
}

package report

import (
	"encoding/json"
	"regexp"
	"strings"

	"github.com/perdure/perdure/internal/data/updatelog"
)

// credentials matches the part of an address before its host that may contain credentials.
var credentials = regexp.MustCompile(`([a-z][a-z0-9+.-]*://)[^/@"\s]+@`)

// withoutSecrets removes names and passwords from the addresses in a text of a run's settings, so that the text can be
// shared.
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
		if a, err := json.Marshal(is); err == nil { // as written in run.json
			if b, err := json.Marshal(shown); err == nil {
				text = strings.ReplaceAll(text, string(a), string(b))
			}
		}
	}
	return credentials.ReplaceAllString(text, "$1")
}

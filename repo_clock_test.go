package perdure_test

import (
	"fmt"
	"go/ast"
	"maps"
	"path"
	"slices"
	"strings"
)

// wallReaders are the methods and fields that read the wall clock of a time.Time, or a time that another process has
// written. Measuring a duration needs none of them: the difference between two times of one process uses the monotonic
// clock, which does not jump.
var wallReaders = []string{"Unix", "UnixNano", "UnixMilli", "UnixMicro", "ModTime", "NotAfter", "NotBefore"}

// wallClocks lists the files that read the wall clock, with the purpose. None of them uses it to decide which process
// is unreachable, which process has a lease, or when a job ends (docs/design/hosts.md, Clocks that jump).
var wallClocks = map[string]string{
	"internal/proc/keys/authority/authority.go": "from when and until when certificates are good",
	"internal/proc/keys/ring.go":                "until when a certificate is good, and whether a file has changed",
	"internal/proc/keys/tls.go":                 "whether a certificate is good",
	"internal/proc/keys/authority/token.go":     "whether a token is good",

	"internal/proc/coordinator/coordinator.go": "when an event was, for the record",
	"internal/proc/supervisor/inject.go":       "when a failure was noticed and over, for the record",
	"internal/proc/supervisor/job.go":          "when an event was, for the record",
	"internal/proc/supervisor/log.go":          "when an event was, for the record",
	"internal/proc/supervisor/probe.go":        "a moment that has passed surely",
	"internal/proc/transport/memconn.go":       "a place in a round of instants, in tests",

	"internal/run/dashboard/dashboard.go":      "whether a directory belongs to another run",
	"internal/run/dashboard/sessions.go":       "until when a browser is admitted",
	"internal/run/study/failurecost/repeat.go": "a name that no other folder has",
	"internal/run/locate/control.go":           "which run is the newest, where nobody names one",
	"internal/run/rundir/history.go":           "when a run began, for people",
	"internal/run/runs/export.go":              "when a run began, for other programs",
	"internal/run/study/run_record.go":         "whether a file has changed, and when a run ended, for people",
}

// checkWallClocks rejects reads of the wall clock in other files.
func checkWallClocks(files []source) (found []string) {
	used := map[string]bool{}
	for _, s := range files {
		dir := path.Dir(s.path)
		if s.file == nil || s.isTest() || s.isGenerated() || !strings.HasPrefix(dir, "internal/") && dir != "worker" ||
			strings.HasPrefix(dir, "internal/run/bench") || strings.HasPrefix(dir, "internal/sim") {
			continue
		}
		for n := range ast.Preorder(s.file) {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok || !slices.Contains(wallReaders, sel.Sel.Name) {
				continue
			}
			if used[s.path] = true; wallClocks[s.path] == "" {
				found = append(found, fmt.Sprintf("%s:%d: %s reads the wall clock, which may jump; measure with "+
					"moments of time.Now, or say in wallClocks what for", s.path, s.line(n.Pos()), sel.Sel.Name))
			}
		}
	}
	for _, file := range slices.Sorted(maps.Keys(wallClocks)) {
		if len(files) > 1 && !used[file] {
			found = append(found, fmt.Sprintf("%s: it reads no wall clock; take it out of wallClocks", file))
		}
	}
	return found
}

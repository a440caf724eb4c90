package protocol

import "strings"

// WaitTracker tracks whether an event was recorded about a process that waits for the update log or the job's store.
type WaitTracker struct {
	since    int64  // the tick since which a process has been waiting; 0: none is
	reported string // the last recorded wait: "log" or "store"; "": none
}

// Observe records at a tick why a process waits ("": none does), and returns the event to record, or empty strings. It
// reports a wait only after patience ticks.
func (w *WaitTracker) Observe(tick, patience int64, why string) (kind, target, text string) {
	sent := w.reported
	switch {
	case why == "":
		*w = WaitTracker{}
	case w.since == 0:
		w.since = tick
		return "", "", ""
	case sent != "" || tick-w.since < patience:
		return "", "", ""
	}
	text, stores := strings.CutPrefix(why, StoreWaitPrefix)
	switch {
	case stores:
		w.reported = "store"
		return "trouble", w.reported, "a worker waits and will continue automatically: " + text
	case why != "":
		w.reported = "log"
		return "trouble", w.reported, "updates wait and will continue automatically: " + why
	case sent == "log":
		return "serving", sent, "updates are written to the log again"
	case sent == "store":
		return "serving", sent, "no worker waits for the store any longer"
	}
	return "", "", ""
}

package words

import "strings"

// LogWait knows whether people were told that somebody waits for the update log, or the job's store.
type LogWait struct {
	since int64  // the tick from which on somebody has waited; 0: nobody does
	told  string // people were told that somebody waits for it: log or store; "": they were not
}

// Note notes at a tick why somebody waits, "" if nobody does, and returns what people are to be told of that, as an
// event is told, or "". Who waits for less than some ticks, the patience, is not told of.
func (w *LogWait) Note(tick, patience int64, why string) (kind, target, text string) {
	told := w.told
	switch {
	case why == "":
		*w = LogWait{}
	case w.since == 0:
		w.since = tick
		return "", "", ""
	case told != "" || tick-w.since < patience:
		return "", "", ""
	}
	text, stores := strings.CutPrefix(why, StoreWaits)
	switch {
	case stores:
		w.told = "store"
		return "trouble", w.told, "a worker waits, and goes on by itself when it can: " + text
	case why != "":
		w.told = "log"
		return "trouble", w.told, "updates wait, and go on by themselves when they can: " + why
	case told == "log":
		return "serving", told, "updates go to the log again"
	case told == "store":
		return "serving", told, "no worker waits for the store any more"
	}
	return "", "", ""
}

package updatelog

import (
	"fmt"
	"log/slog"
	"sync"
)

// watched gives on what the NATS server reports, and keeps the last thing that
// went wrong.
type watched struct {
	log *slog.Logger // nil: nobody listens

	mu    sync.Mutex // guards what follows
	wrong string
	fatal bool
}

func (w *watched) last() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.wrong == "" {
		return "it does not say why"
	}
	return w.wrong
}

func (w *watched) failed(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wrong = text
}

// Noticef leaves out what a server says of its start and its clients.
func (w *watched) Noticef(string, ...any) {}

// Debugf leaves out everything.
func (w *watched) Debugf(string, ...any) {}

// Tracef leaves out everything.
func (w *watched) Tracef(string, ...any) {}

// Warnf implements server.Logger.
func (w *watched) Warnf(format string, args ...any) {
	if w.log != nil {
		w.log.Warn(fmt.Sprintf(format, args...))
	}
}

// Errorf implements server.Logger.
func (w *watched) Errorf(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	w.failed(text)
	if w.log != nil {
		w.log.Error(text)
	}
}

// Fatalf implements server.Logger: the server gives up. What NATS has for this ends the
// process.
func (w *watched) Fatalf(format string, args ...any) {
	w.Errorf(format, args...)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fatal = true
}

func (w *watched) gaveUp() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.fatal
}

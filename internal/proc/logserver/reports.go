package logserver

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
)

// reports are what a NATS server that runs in this process says of itself: they are passed on, without what concerns
// nobody, and the last thing that went wrong is kept. They implement the server's Logger, and are safe for concurrent
// use.
type reports struct {
	Log         *slog.Logger // nil: reports are dropped
	Connections *slog.Logger // for reports about single connections; nil: these are dropped

	mu    sync.Mutex // guards what follows
	wrong string
	fatal bool
}

// Last is the last thing that went wrong.
func (w *reports) Last() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.wrong == "" {
		return "it does not say why"
	}
	return w.wrong
}

func (w *reports) failed(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wrong = text
}

// Noticef leaves out what a server says of its start and its clients.
func (w *reports) Noticef(string, ...any) {}

// Debugf leaves out everything.
func (w *reports) Debugf(string, ...any) {}

// Tracef leaves out everything.
func (w *reports) Tracef(string, ...any) {}

// Warnf implements server.Logger.
func (w *reports) Warnf(format string, args ...any) {
	if w.Log != nil && !strings.Contains(format, "TLS Handshake First") { // all of ours use it
		w.Log.Warn(fmt.Sprintf(format, args...))
	}
}

// ofConnection is what the server writes into what it says of one connection.
const ofConnection = " - cid:"

// Errorf implements server.Logger. What is wrong with a connection is its peer's mistake, and says nothing of the log.
func (w *reports) Errorf(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if strings.Contains(text, ofConnection) {
		if w.Connections != nil {
			w.Connections.Warn("a connection to the log failed", "err", text)
		}
		return
	}
	w.failed(text)
	if w.Log != nil {
		w.Log.Error(text)
	}
}

// Fatalf implements server.Logger: the server gives up. What NATS has for this ends the
// process.
func (w *reports) Fatalf(format string, args ...any) {
	w.Errorf(format, args...)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fatal = true
}

// GaveUp reports whether the server has given up.
func (w *reports) GaveUp() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.fatal
}

package logserver

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
)

// natsLogger implements the Logger interface of an embedded NATS server. It forwards the relevant messages and keeps
// the last error. It is safe for concurrent use.
type natsLogger struct {
	Log         *slog.Logger // nil: messages are dropped
	Connections *slog.Logger // for messages about single connections; nil: they are dropped

	mu        sync.Mutex // guards wrong and fatal
	lastError string
	fatal     bool
}

// LastError returns the last error.
func (w *natsLogger) LastError() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lastError == "" {
		return "no reason given"
	}
	return w.lastError
}

func (w *natsLogger) failed(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lastError = text
}

// Noticef drops messages about startup and clients.
func (w *natsLogger) Noticef(string, ...any) {}

// Debugf drops all messages.
func (w *natsLogger) Debugf(string, ...any) {}

// Tracef drops all messages.
func (w *natsLogger) Tracef(string, ...any) {}

// Warnf implements server.Logger.
func (w *natsLogger) Warnf(format string, args ...any) {
	if w.Log != nil && !strings.Contains(format, "TLS Handshake First") { // all clients of Perdure use it
		w.Log.Warn(fmt.Sprintf(format, args...))
	}
}

// ofConnection appears in the server's messages about a single connection.
const ofConnection = " - cid:"

// Errorf implements server.Logger. Errors of a single connection are the peer's fault and say nothing about the log.
func (w *natsLogger) Errorf(format string, args ...any) {
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

// Fatalf implements server.Logger. The server calls it when it gives up. NATS's own logger would exit the process.
func (w *natsLogger) Fatalf(format string, args ...any) {
	w.Errorf(format, args...)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fatal = true
}

// GaveUp reports whether the server has given up.
func (w *natsLogger) GaveUp() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.fatal
}

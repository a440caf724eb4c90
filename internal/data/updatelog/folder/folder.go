// Package folder knows what lies in the folder of an update log that a NATS server keeps: which
// files there are, whether they are files, what their records say without the server, and how
// all of it is copied.
//
// It exists because a server is too forgiving. As it starts it cuts off what it finds damaged,
// and says nothing; it waits for ever on a named pipe. What is lost can be told only by looking
// before it starts, and after.
//
// All functions only read the log's folder. They are safe for concurrent use.
package folder

import "errors"

// What a log's folder has.
const (
	URL     = "url"                // how to reach the server, its secret included
	Lock    = "lock"               // held while it runs
	Data    = "jetstream"          // what the NATS server keeps
	Folders = Data + "/$G/streams" // a folder for each stream
)

// Errors, which package updatelog gives to its callers under the same names.
var (
	ErrRefused = errors.New("updatelog: refused")
	ErrDamaged = errors.New("updatelog: damaged")
)

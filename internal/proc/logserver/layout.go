package logserver

// The NATS server does not report damage. On startup it silently truncates damaged files, and it blocks forever on a
// named pipe. So the directory must be examined before and after the server starts.

// The contents of a log's directory.
const (
	lockFile   = "lock"                  // locked while the log is served
	dataDir    = "jetstream"             // the data of the NATS server
	streamsDir = dataDir + "/$G/streams" // one directory per stream
	metaFile   = "meta.inf"              // a stream's settings
	sumFile    = "meta.sum"              // checksum of metaFile, written after it
)

package logserver

// The server is too forgiving: as it starts it cuts off what it finds damaged, and says nothing; it waits for ever on
// a named pipe. What is lost can be told only by looking into the folder before it starts, and after.

// What a log's folder has.
const (
	lockFile      = "lock"                     // held while it runs
	dataFolder    = "jetstream"                // what the NATS server keeps
	streamsFolder = dataFolder + "/$G/streams" // a folder for each stream
)

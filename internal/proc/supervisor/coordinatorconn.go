package supervisor

import (
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// maxUnsent limits the messages kept while the coordinator is unavailable.
const maxUnsent = 4096

// coordinatorConn is the connection to the coordinator. Messages sent while it is down are kept, and sent in order
// after the reconnect.
type coordinatorConn struct {
	conn   transport.Conn // nil: disconnected
	unsent []wire.Frame
}

// up sets the connection and sends the kept messages.
func (l *coordinatorConn) up(c transport.Conn) {
	l.conn = c
	unsent := l.unsent
	l.unsent = nil
	for _, f := range unsent {
		l.send(f)
	}
}

// down records that a connection has ended. A later one may already be in use.
func (l *coordinatorConn) down(c transport.Conn) {
	if l.conn == c {
		l.conn = nil
	}
}

// send sends a frame to the coordinator, or keeps it until there is a connection.
func (l *coordinatorConn) send(f wire.Frame) {
	if l.conn != nil && l.conn.Send(f) == nil {
		return
	}
	if len(l.unsent) < maxUnsent {
		l.unsent = append(l.unsent, f)
	}
}

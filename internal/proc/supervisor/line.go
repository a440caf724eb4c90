package supervisor

import (
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// maxUnsent bounds what is kept for a coordinator that is away.
const maxUnsent = 4096

// line is the way to the coordinator. What is said while it is away is kept, and sent once
// it is back, in order.
type line struct {
	conn   transport.Conn // nil: it is away
	unsent []wire.Frame
}

// up connects the line, and sends what was kept.
func (l *line) up(c transport.Conn) {
	l.conn = c
	unsent := l.unsent
	l.unsent = nil
	for _, f := range unsent {
		l.send(f)
	}
}

// down notes that a connection has ended; there may be a later one.
func (l *line) down(c transport.Conn) {
	if l.conn == c {
		l.conn = nil
	}
}

// send sends a frame to the coordinator, or keeps it until there is one.
func (l *line) send(f wire.Frame) {
	if l.conn != nil && l.conn.Send(f) == nil {
		return
	}
	if len(l.unsent) < maxUnsent {
		l.unsent = append(l.unsent, f)
	}
}

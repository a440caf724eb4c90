// Package seen is how a served update log does, for whoever looks: the loop that keeps it answers itself.
package seen

import (
	"context"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// State is how a log does.
type State struct {
	Waits                           string // why updates wait; "": they do not
	Streams, Connections            int
	Records, Stored, Received, Sent uint64 // the last three in bytes, and the last two since the server began
}

// Of is how a server does, as far as it knows itself.
func Of(n *server.Server) State {
	s := State{Connections: n.NumClients()}
	if v, err := n.Varz(&server.VarzOptions{}); err == nil {
		s.Received, s.Sent = uint64(max(v.InBytes, 0)), uint64(max(v.OutBytes, 0))
	}
	if j, err := n.Jsz(nil); err == nil {
		s.Streams, s.Records, s.Stored = j.Streams, j.Messages, j.Bytes
	}
	return s
}

// Asks are what the loop is asked.
type Asks chan chan<- State

// Look asks the loop. It waits until the loop rests, or ctx ends.
func (a Asks) Look(ctx context.Context) (State, error) {
	answer := make(chan State, 1)
	select {
	case a <- answer:
		return <-answer, nil
	case <-ctx.Done():
		return State{}, ctx.Err()
	}
}

// Rest lets some time pass for the loop, which answers meanwhile. It returns why the loop is to end.
func (a Asks) Rest(ctx context.Context, d time.Duration, state func() State) error {
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case answer := <-a:
			answer <- state()
		}
	}
}

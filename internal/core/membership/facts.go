package membership

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/facts"
	"github.com/perdure/perdure/internal/core/spans"
)

// What is recorded has a room of its own; who speaks with a Core need not know of it.
type (
	// Facts are what must survive the coordinator.
	Facts = facts.Facts
	// Document makes the facts' JSON.
	Document = facts.Document
	// Place is a server's number or a worker's slot, and the process that has it.
	Place = facts.Place
	// Kind says whether a place is a server's or a worker's.
	Kind = facts.Kind
	// Closing is what is known of the last checkpoint of a job that is to end early.
	Closing = facts.Closing
	// Change is a change of who takes part in the job.
	Change = spans.Change
)

// The kinds of places.
const (
	Server = facts.Server
	Worker = facts.Worker
)

// Begin returns the facts of a job that nobody has joined yet: see facts.Begin.
func Begin(job perdure.JobSpec, generation perdure.Generation, cut perdure.Clock, tables []perdure.TableSpec) Facts {
	return facts.Begin(job, generation, cut, tables)
}

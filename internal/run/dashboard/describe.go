package dashboard

import (
	"cmp"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/settings"
)

// Description describes the job to browsers.
type Description struct {
	ID          string        `json:"id"`
	Workload    string        `json:"workload"`
	Consistency string        `json:"consistency"`
	Recovery    string        `json:"recovery"`
	Promise     string        `json:"promise"` // of the recovery strategy, in one sentence
	Workers     int           `json:"workers"` // at the start
	Servers     int           `json:"servers"`
	Shards      int           `json:"shards"`
	Clocks      perdure.Clock `json:"clocks"` // 0: no limit
	Seed        uint64        `json:"seed"`
	Faults      []string      `json:"faults"` // planned at the start, in the form of their events
	Version     string        `json:"version"`
	Ended       bool          `json:"ended"`   // the run had ended before it was opened
	Role        keys.Role     `json:"role"`    // of the client
	Refuses     string        `json:"refuses"` // why no action is possible; "": actions are possible
	Captions    []Caption     `json:"captions"`
}

// describe returns the description of a run, without the client's part.
func describe(s *settings.Run, captions []Caption) Description {
	job := &s.Job
	var faults []string
	for _, text := range s.Faults {
		if f, err := supervisor.ParseFault(text); err == nil { // an edited file may contain anything
			faults = append(faults, f.String())
		}
	}
	return Description{
		ID: job.ID, Workload: job.Workload, Consistency: job.Models(), Recovery: job.Recovery.String(),
		Promise: recovery.Promise(job.Recovery), Workers: s.InitialWorkers(), Servers: job.Servers,
		Shards: job.Shards, Clocks: job.Clocks, Seed: job.Seed, Version: s.Version,
		Faults: faults, Captions: captions,
	}
}

// forRole returns the description for a client.
func (d Description) forRole(role keys.Role) Description {
	d.Role = role
	if role != keys.Operator {
		d.Refuses = cmp.Or(d.Refuses, "viewers may not act; ask an operator")
	}
	return d
}

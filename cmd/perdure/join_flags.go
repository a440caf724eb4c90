package main

import (
	"github.com/perdure/perdure/internal/run/reach"
)

// joinFlags are how a server or a worker finds its job: its parent says all of it,
// and a person says --join.
type joinFlags struct {
	Join string `help:"Join the running job at this address, which perdure status shows; the control API's, which the run's folder has in its file control, does too." placeholder:"HOST:PORT"`
	secretFlag
	Run         string `help:"The run's folder, or a copy of its run.json in one (default where the job says that it is)." placeholder:"DIR" type:"path"`
	Coordinator string `hidden:"" help:"The coordinator's address, of a process that the run's parent starts."`
}

// job is where the flags say that the job is.
func (f *joinFlags) job() reach.Job {
	return reach.Job{Join: f.Join, SecretFile: f.SecretFile, Run: f.Run, Coordinator: f.Coordinator}
}

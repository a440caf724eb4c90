package main

import (
	"github.com/perdure/perdure/internal/run/reach"
)

// joinFlags are how a server or a worker finds its job: its parent says all of it,
// and a person says --join.
type joinFlags struct {
	Join string `help:"@join_join" placeholder:"HOST:PORT"`
	secretFlag
	Run         string `help:"@join_run" placeholder:"DIR" type:"path"`
	Coordinator string `hidden:"" help:"@join_coordinator"`
}

// job is where the flags say that the job is.
func (f *joinFlags) job() reach.Job {
	return reach.Job{Join: f.Join, SecretFile: f.SecretFile, KeysDir: f.Keys, Run: f.Run, Coordinator: f.Coordinator}
}

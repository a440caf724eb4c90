package main

// secretFlag is where a process that joins a run, or calls its control API, finds its
// secret.
type secretFlag struct {
	SecretFile string `name:"secret-file" env:"PERDURE_SECRET_FILE" help:"The file with the run's secret (default the file secret in the run's folder; a server needs that folder's secret.servers beside it)." placeholder:"FILE" type:"path"`
}

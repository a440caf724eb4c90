package main

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/settings"
)

// logFlags are about the update log of a job under stateless.
type logFlags struct {
	LogSync    string `name:"log-sync" help:"stateless: when an update counts as in the log: interval (the system has it, which syncs it every few seconds: it survives any process's death, but not the machine's) or always (it is on the disk) (default interval)." placeholder:"WHEN"`
	LogMB      int    `name:"log-mb" help:"stateless: what the log takes on the disk at most, in MiB, over all shards; who would append more waits (default 4096, or 32 for each shard; if the disk has less, three quarters of that)." placeholder:"N"`
	SnapshotMB int    `name:"snapshot-mb" help:"stateless: write a snapshot of the shards, and cut the log, after so many MiB of updates (default 256)." placeholder:"N"`
	NATS       string `name:"nats" help:"stateless: keep the log on that NATS cluster with JetStream, not in a process of this job's, for example nats://log.example:4222, or on one that perdure log serves (default none)." placeholder:"URL"`
	NATSCreds  string `name:"nats-creds" help:"Credentials for --nats: a file as nsc makes it." placeholder:"FILE" type:"path"`
	NATSCA     string `name:"nats-ca" help:"The certificate authority that vouches for --nats." placeholder:"FILE" type:"path"`
	NATSCert   string `name:"nats-cert" help:"This job's own certificate for --nats." placeholder:"FILE" type:"path"`
	NATSKey    string `name:"nats-key" help:"The key of --nats-cert." placeholder:"FILE" type:"path"`

	NATSReplicas int `name:"nats-replicas" help:"On how many servers of the cluster at --nats each update is kept, 1 to 5 (default 1)." placeholder:"N"`
}

// log turns the flags into settings; nil for a job that has no log.
func (f *jobFlags) log(job *perdure.JobSpec) (*settings.Log, error) {
	return settings.NewLog(settings.LogAsked{
		Sync: f.LogSync, MB: f.LogMB, SnapshotMB: f.SnapshotMB, NATS: f.NATS, Creds: f.NATSCreds, CA: f.NATSCA,
		Cert: f.NATSCert, Key: f.NATSKey, Replicas: f.NATSReplicas, Given: f.given,
	}, job)
}

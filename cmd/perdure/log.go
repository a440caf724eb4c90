package main

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/settings"
)

// logFlags are about the update log of a job under stateless.
type logFlags struct {
	LogSync    string `name:"log-sync" help:"@log_log_sync" placeholder:"WHEN"`
	LogMB      int    `name:"log-mb" help:"@log_log_mb" placeholder:"N"`
	SnapshotMB int    `name:"snapshot-mb" help:"@log_snapshot_mb" placeholder:"N"`
	NATS       string `name:"nats" help:"@log_nats" placeholder:"URL"`
	NATSCreds  string `name:"nats-creds" help:"@log_natscreds" placeholder:"FILE" type:"path"`
	NATSCA     string `name:"nats-ca" help:"@log_natsca" placeholder:"FILE" type:"path"`
	NATSCert   string `name:"nats-cert" help:"@log_natscert" placeholder:"FILE" type:"path"`
	NATSKey    string `name:"nats-key" help:"The key of --nats-cert." placeholder:"FILE" type:"path"`

	NATSReplicas int `name:"nats-replicas" help:"@log_natsreplicas" placeholder:"N"`
}

// log turns the flags into settings; nil for a job that has no log.
func (f *jobFlags) log(job *perdure.JobSpec) (*settings.Log, error) {
	return settings.NewLog(settings.LogAsked{
		Sync: f.LogSync, MB: f.LogMB, SnapshotMB: f.SnapshotMB, NATS: f.NATS, Creds: f.NATSCreds, CA: f.NATSCA,
		Cert: f.NATSCert, Key: f.NATSKey, Replicas: f.NATSReplicas, Given: f.given,
	}, job)
}

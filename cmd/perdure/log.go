package main

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

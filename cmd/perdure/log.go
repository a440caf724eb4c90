package main

// logFlags are about the update log of a job under stateless.
type logFlags struct {
	LogSync    string `name:"log-sync" group:"log" placeholder:"WHEN"`
	LogMB      int    `name:"log-mb" group:"log" placeholder:"N"`
	SnapshotMB int    `name:"snapshot-mb" group:"log" placeholder:"N"`
	NATS       string `name:"nats" group:"log" placeholder:"URL"`
	NATSCreds  string `name:"nats-creds" group:"log" placeholder:"FILE" type:"path"`
	NATSCA     string `name:"nats-ca" group:"log" placeholder:"FILE" type:"path"`
	NATSCert   string `name:"nats-cert" group:"log" placeholder:"FILE" type:"path"`
	NATSKey    string `name:"nats-key" group:"log" placeholder:"FILE" type:"path"`

	NATSReplicas int `name:"nats-replicas" group:"log" placeholder:"N"`
}

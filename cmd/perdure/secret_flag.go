package main

// secretFlag tells a process that joins a run or calls its control API where to find the keys and the secret.
type secretFlag struct {
	Keys       string `env:"PERDURE_KEYS" help:"@keys" placeholder:"DIR" type:"path"`
	SecretFile string `name:"secret-file" env:"PERDURE_SECRET_FILE" help:"@secret" placeholder:"FILE" type:"path"`
}

package worker

import (
	"crypto/rand"
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/transport"
)

// credentials are what a client shows to be let in.
type credentials struct {
	secret perdure.Secret // the run's; "": nobody asks
	nonce  perdure.Secret // drawn by this client: nobody else can say that it is this process
	ticket perdure.Secret // of the coordinator, for servers: it speaks for its slot; guarded by Client.mu
}

// credentials finds what the configuration asks for.
func (cfg *Config) credentials() (c credentials, err error) {
	if cfg.Slot < perdure.NoSlot {
		return c, fmt.Errorf("%w: worker: slot %d; choose one from 0, or perdure.NoSlot for any that is free", perdure.ErrUsage, cfg.Slot)
	}
	if c.secret = cfg.Secret; cfg.SecretFile != "" {
		if c.secret, err = transport.ReadSecret(cfg.SecretFile); err != nil {
			return c, fmt.Errorf("worker: %w", err)
		}
	}
	if c.secret != "" {
		c.nonce = perdure.Secret(rand.Text())
	}
	return c, nil
}

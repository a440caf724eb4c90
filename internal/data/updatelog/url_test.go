package updatelog

import "testing"

func TestWithoutSecrets(t *testing.T) {
	for address, want := range map[string]string{
		"":                                      "",
		"nats://log.example:4222":               "nats://log.example:4222",
		"nats://token@log.example":              "nats://log.example",
		"tls://me:pass@log.example:1":           "tls://log.example:1",
		"nats://a:1@x:1,nats://b:2@y:2,tls://z": "nats://x:1,nats://y:2,tls://z",
		"nats://x,nats://me:pass@y":             "nats://x,nats://y",
		"x:1,y:2":                               "x:1,y:2",
		"me:pass@log.example":                   "log.example", // without a scheme
		"nats://me:p@ss@log.example":            "nats://log.example",
		"nats://me:pa,ss@log.example":           "nats://log.example",
		"nonsense@":                             "",
	} {
		if got := WithoutSecrets(address); got != want {
			t.Errorf("WithoutSecrets(%q) = %q, want %q", address, got, want)
		}
	}
}

package worker

import (
	"errors"
	"strings"
	"testing"

	"github.com/perdure/perdure"
)

func TestFromEnv(t *testing.T) {
	for _, c := range []struct {
		coordinator, slot string // slot "-": not set
		want              perdure.Slot
		wrong             string
	}{
		{"h:1", "-", perdure.NoSlot, ""},
		{"h:1", "3", 3, ""},
		{"h:1", "0", perdure.SlotZero, ""},
		{"", "3", 0, EnvCoordinator},
		{"h:1", "-1", 0, EnvSlot},
		{"h:1", "", 0, EnvSlot},
		{"h:1", "99999999999", 0, EnvSlot},
	} {
		t.Run(c.coordinator+" "+c.slot, func(t *testing.T) {
			t.Setenv(EnvCoordinator, c.coordinator)
			t.Setenv(EnvSecretFile, "s")
			if c.slot != "-" {
				t.Setenv(EnvSlot, c.slot)
			}
			cfg, err := Config{CacheBytes: 7}.FromEnv()
			if c.wrong != "" {
				if !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), c.wrong) {
					t.Errorf("%+v, %v", cfg, err)
				}
				return
			}
			if err != nil || cfg.Slot != c.want || cfg.Coordinator != "h:1" || cfg.SecretFile != "s" ||
				cfg.CacheBytes != 7 {
				t.Errorf("%+v, %v", cfg, err)
			}
		})
	}
}

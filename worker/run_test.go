package worker

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
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

// TestFromEnvOfHost checks that a program of a host waits for a free slot, but not one that has a slot.
func TestFromEnvOfHost(t *testing.T) {
	t.Setenv(EnvCoordinator, "h:1")
	t.Setenv(wire.HostVariable, "host")
	for _, c := range []struct {
		slot        bool
		given, want time.Duration
	}{{false, 0, math.MaxInt64}, {false, time.Second, time.Second}, {true, 0, 0}} {
		if c.slot {
			t.Setenv(EnvSlot, "1")
		}
		if cfg, err := (Config{JoinTimeout: c.given}).FromEnv(); err != nil || cfg.JoinTimeout != c.want {
			t.Errorf("%+v: JoinTimeout %v, %v", c, cfg.JoinTimeout, err)
		}
	}
}

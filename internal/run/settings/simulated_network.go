package settings

import (
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/transport"
)

const (
	// maxDelay bounds delay plus spread. The reply to a hello and the first status after it must arrive well within 1.5
	// s: a process that is silent longer becomes a suspect.
	maxDelay = 500 * time.Millisecond
	// minBandwidth is the rate that views and statuses need, so that health messages are not delayed by each other.
	minBandwidth = 100_000
	maxBandwidth = 1_000_000_000_000
)

// SimulatedNetwork describes the simulated network between the job's processes.
type SimulatedNetwork struct {
	Delay     string `json:"delay,omitempty" group:"faults" placeholder:"TIME[±TIME]"` // "5ms±2ms"
	Bandwidth string `json:"bandwidth,omitempty" group:"faults" placeholder:"BYTES"`   // "100MB", per second
}

// Link returns the link model for the requested distance, without a seed, or an error that names the wrong flag.
func (d SimulatedNetwork) Link() (m transport.LinkModel, err error) {
	if d.Delay != "" {
		if m.Delay, m.Spread, err = parseDelay(d.Delay); err != nil {
			return m, err
		}
	}
	if d.Bandwidth != "" {
		m.BytesPerSecond, err = parseBandwidth(d.Bandwidth)
	}
	return m, err
}

// parseDelay reads "5ms", "5ms±2ms" or "5ms+-2ms".
func parseDelay(text string) (delay, spread time.Duration, err error) {
	mean, around, spreads := strings.Cut(strings.Replace(text, "+-", "±", 1), "±")
	delay, err = time.ParseDuration(mean)
	if err == nil && spreads {
		spread, err = time.ParseDuration(around)
	}
	switch {
	case err != nil || delay < 0 || spread < 0:
		return 0, 0, perdure.Usagef("invalid --delay %q: write a time, for example 5ms or 5ms±2ms", text)
	case spread > delay:
		return 0, 0, perdure.Usagef("invalid --delay %q: a message cannot arrive before it is sent; choose a spread "+
			"of at most %v", text, delay)
	case delay > maxDelay-spread:
		return 0, 0, perdure.Usagef("invalid --delay %q: choose at most %v, spread included", text, maxDelay)
	}
	return delay, spread, nil
}

// byteUnits lists units in the order in which they are tried: units that end in another unit come first.
var byteUnits = []struct {
	name  string
	bytes float64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"B", 1}}

// parseBandwidth reads "100MB".
func parseBandwidth(text string) (bytesPerSecond int64, err error) {
	for _, u := range byteUnits {
		number, is := strings.CutSuffix(text, u.name)
		if !is {
			continue
		}
		n, err := strconv.ParseFloat(number, 64)
		if err != nil || n != n {
			break
		}
		if n *= u.bytes; n < minBandwidth || n > maxBandwidth {
			return 0, perdure.Usagef("invalid --bandwidth %q: choose 100KB to 1000GB (per second)", text)
		}
		return int64(n), nil
	}
	return 0, perdure.Usagef("invalid --bandwidth %q: write bytes per second, for example 100MB or 12.5MiB", text)
}

// SeedOf returns the random seed for one of the job's processes.
func (s *Run) SeedOf(role wire.Role, index int) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %s %d", s.Job.Seed, role, index) // a hash cannot fail
	return h.Sum64()
}

// Network returns the network of one of the job's processes. ring is nil for a job without keys.
func (s *Run) Network(role wire.Role, index int, ring *keys.Ring) (*transport.FaultLayer, error) {
	m, err := s.Link()
	if err != nil {
		return nil, err
	}
	m.Seed = s.SeedOf(role, index)
	l := transport.NewFaultLayer(transport.TCP{Keys: ring})
	l.SetLink(m)
	return l, nil
}

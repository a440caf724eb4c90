package runs

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/settings"
)

const prices = `
source: a shop
date: 2026-01-19
machines:
  small: {on-demand: 0.36, spot: 0.036, month: 73, vcpus: 2}
  large: {on-demand: 3.6, vcpus: 8}
  free: {vcpus: 1}
roles: {coordinator: small, server: small, worker: small}
storage: {gb-month: 0.73}
requests: {put: 0.005}
`

func pricesOf(t *testing.T, text string) *Prices {
	t.Helper()
	v, err := settings.ParseDocument("prices.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	l, err := parsePrices(v)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

var usedOf = billUsage{
	Seconds: 1000, Bytes: 3.6e9, Puts: 10,
	Roles: map[string]roleUsage{
		"coordinator": {Machines: 1, CPU: 100},
		"server":      {Machines: 2, Absent: 500, CPU: 300},
		"worker":      {Machines: 4, Waiting: 1000, CPU: 8000},
	},
}

func near(a *float64, b float64) bool { return a != nil && math.Abs(*a-b) < 1e-12 }

// TestBill compares with values computed by hand: 0.0001 dollars per machine second on demand, a tenth of that for
// spot, and 73 dollars per month, which is 0.1 per hour.
func TestBill(t *testing.T) {
	b := pricesOf(t, prices).Bill(usedOf)
	// 3.6 GB for 1000 s of 730 h at 0.73 dollars cost 0.001 dollars, and 10 requests 0.05.
	if math.Abs(b.Storage-.001) > 1e-12 || math.Abs(b.Puts-.05) > 1e-12 || len(b.Lines) != 3 {
		t.Errorf("%+v", b)
	}
	// 1000 + 1500 + 4000 machine seconds; all 7000 for monthly prices.
	if !near(b.OnDemand, .65+.051) || !near(b.Spot, .065+.051) || !near(b.Month, .1*7000/3600+.051) {
		t.Errorf("%g on demand, %g spot, %g by the month", *b.OnDemand, *b.Spot, *b.Month)
	}
	server, worker := b.Lines[1], b.Lines[2]
	if server.Seconds != 1500 || !near(&server.Idle, .9) || server.Waiting != 0 || !near(server.OnDemand, .15) {
		t.Errorf("server %+v", server)
	}
	if worker.Idle != 0 || worker.Waiting != .25 || worker.Machines != 4 {
		t.Errorf("worker %+v", worker)
	}
}

// TestDollarsText checks that small amounts have significant digits.
func TestDollarsText(t *testing.T) {
	for v, want := range map[float64]string{
		0: "$0.00", 1e-9: "<$0.000001", .00123456: "$0.00123", .5: "$0.500", 1234.5: "$1234.50",
	} {
		if got := DollarsText(&v); got != want {
			t.Errorf("%g is %s, want %s", v, got, want)
		}
	}
	if got := DollarsText(nil); got != "-" {
		t.Error(got)
	}
	var out strings.Builder
	if err := pricesOf(t, prices).Bill(usedOf).Print(&out, "", "a shop"); err != nil ||
		!strings.Contains(out.String(), "2 small   1500.0 s  90 %  0 %      $0.150     $0.0150   $0.0556\n") ||
		!strings.Contains(out.String(), "$0.701 on demand, $0.116 spot, $0.245 by the month (prices of a shop)") {
		t.Errorf("%v\n%s", err, &out)
	}
}

// TestBillLacking checks that missing prices make a cost unknown.
func TestBillLacking(t *testing.T) {
	l := pricesOf(t, strings.Replace(prices, "worker: small", "worker: large", 1))
	b := l.Bill(usedOf)
	if b.Spot != nil || b.Month != nil || !near(b.OnDemand, .25+4+.051) {
		t.Errorf("%+v", b)
	}
}

func isUsage(t *testing.T, err error, want string) {
	t.Helper()
	if !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), want) ||
		strings.Contains(err.Error(), "\n") {
		t.Errorf("%v; want one line of usage with %q", err, want)
	}
}

// TestPricesMistakes checks that errors name the line.
func TestPricesMistakes(t *testing.T) {
	for change, want := range map[string]string{
		"worker: small|worker: smal":      "prices.yaml:8: machine type smal (used for worker) has no price in",
		"worker: small|worker: free":      "machine type free (used for worker) has no price",
		", worker: small|":                "roles has no machine type for worker",
		"worker: small|wrker: small":      `unknown key "wrker"; did you mean worker?`,
		"on-demand: 3.6|on-demand: -3":    "machines.large.on-demand is -3; a price must be 0 or more",
		"on-demand: 3.6|on-demand: cheap": `is the text "cheap"; write a number`,
		"spot: 0.036|spt: 3":              `unknown key "spt"; did you mean spot?`,
		"gb-month: 0.73|gb: 1":            `unknown key "gb"`,
	} {
		old, with, _ := strings.Cut(change, "|")
		v, err := settings.ParseDocument("prices.yaml", []byte(strings.Replace(prices, old, with, 1)))
		if err != nil {
			t.Fatal(err)
		}
		_, err = parsePrices(v)
		isUsage(t, err, want)
	}
	if l := pricesOf(t, prices); l.Source != "a shop, 2026-01-19" {
		t.Error(l.Source)
	}
}

package runs

import (
	"maps"
	"slices"

	"github.com/perdure/perdure/internal/run/settings"
)

// A run's bill is a function of its usage (machines, storage, requests) and a list of prices. Each server, each worker
// and the coordinator counts as one machine of the kind that the list assigns to its role. A list is safe for
// concurrent use.

// billedRoles are the roles with machines, in the order of a bill.
var billedRoles = []string{"coordinator", "server", "worker"}

// hoursInMonth is the number of hours in a month for monthly prices: 365 days of 24 hours, divided by 12.
const hoursInMonth = 730

// Price is the price of a kind of machine; nil: not in the list.
type Price struct {
	OnDemand *float64 // dollars per hour while it runs
	Spot     *float64 // dollars per hour for a machine that may be taken away
	Month    *float64 // dollars per month, used or not
	VCPUs    float64  // 0: unknown
}

// Prices are the prices of machines, storage and requests.
type Prices struct {
	Source    string // origin and date of the prices
	Kinds     map[string]Price
	RoleKinds map[string]string // kind of each role's machines

	GBMonth float64 // dollars per month for 10⁹ bytes
	Put     float64 // dollars per write request
}

// Keys of a price list.
var (
	listKeys    = []string{"source", "date", "machines", "roles", "storage", "requests"}
	machineKeys = []string{"on-demand", "spot", "month", "vcpus"}
)

// ReadPrices reads a list of prices.
func ReadPrices(path string) (*Prices, error) {
	v, err := settings.ReadDocument(path)
	if err != nil {
		return nil, err
	}
	return parsePrices(v)
}

func parsePrices(v settings.Node) (*Prices, error) {
	l := &Prices{Kinds: map[string]Price{}, RoleKinds: map[string]string{}}
	entries, err := v.Map(listKeys...)
	if err != nil {
		return nil, err
	}
	var roles []settings.Entry
	date := ""
	for _, e := range entries {
		switch e.Key {
		case "source":
			l.Source, err = e.Value.Text()
		case "date":
			date, err = e.Value.Text()
		case "machines":
			err = l.readKinds(e.Value)
		case "roles":
			roles, err = e.Value.Map(billedRoles...)
		case "storage":
			l.GBMonth, err = onlyPrice(e.Value, "gb-month")
		case "requests":
			l.Put, err = onlyPrice(e.Value, "put")
		}
		if err != nil {
			return nil, err
		}
	}
	if date != "" {
		l.Source += ", " + date
	}
	for _, e := range roles {
		kind, err := e.Value.Text()
		if err != nil {
			return nil, err
		}
		if _, known := l.Kinds[kind]; !known {
			return nil, e.Value.Errorf("machine type %[2]s (used for %[1]s) has no price in machines%[3]s", e.Key, kind,
				settings.Suggest(kind, slices.Sorted(maps.Keys(l.Kinds))))
		}
		if p := l.Kinds[kind]; p.OnDemand == nil && p.Spot == nil && p.Month == nil {
			return nil, e.Value.Errorf("machine type %[2]s (used for %[1]s) has no price; add its on-demand, spot or "+
				"month price",
				e.Key, kind)
		}
		l.RoleKinds[e.Key] = kind
	}
	for _, role := range billedRoles {
		if l.RoleKinds[role] == "" {
			return nil, v.Errorf("roles has no machine type for %s; write roles: {%s: KIND}, with a type from "+
				"machines", role, role)
		}
	}
	return l, nil
}

func (l *Prices) readKinds(v settings.Node) error {
	kinds, err := v.Map()
	if err != nil {
		return err
	}
	for _, kind := range kinds {
		entries, err := kind.Value.Map(machineKeys...)
		if err != nil {
			return err
		}
		p := Price{}
		for _, e := range entries {
			x, err := price(e.Value)
			if err != nil {
				return err
			}
			switch e.Key {
			case "on-demand":
				p.OnDemand = &x
			case "spot":
				p.Spot = &x
			case "month":
				p.Month = &x
			case "vcpus":
				p.VCPUs = x
			}
		}
		l.Kinds[kind.Key] = p
	}
	return nil
}

// onlyPrice reads a map with one price.
func onlyPrice(v settings.Node, key string) (x float64, err error) {
	entries, err := v.Map(key)
	if err != nil || len(entries) == 0 {
		return 0, err
	}
	return price(entries[0].Value)
}

func price(v settings.Node) (float64, error) {
	x, err := v.Float()
	if err == nil && x < 0 {
		err = v.Errorf("%s is %v; a price must be 0 or more", v.Path(), x)
	}
	return x, err
}

// billUsage is the usage of a run.
type billUsage struct {
	Seconds float64
	Roles   map[string]roleUsage
	Bytes   float64 // kept in storage during the run
	Puts    float64 // write requests
}

// roleUsage is the usage of a role's machines.
type roleUsage struct {
	Machines int
	Absent   float64 // total seconds in which machines were taken away
	CPU      float64 // CPU seconds
	Waiting  float64 // total seconds in which machines waited for others
}

// Dollars is the cost under three kinds of prices; nil: the list lacks a required price.
type Dollars struct {
	OnDemand *float64 `json:"on_demand"`
	Spot     *float64 `json:"spot"`
	Month    *float64 `json:"month"` // share of the monthly price, which also includes unavailable machines
}

// billLine is a role's part of a bill.
type billLine struct {
	Role     string  `json:"role"`
	Kind     string  `json:"kind"`
	Machines int     `json:"machines"`
	Seconds  float64 `json:"machine_seconds"` // total time in which the machines were available
	Idle     float64 `json:"idle"`            // unused fraction of their CPU time; 0: unknown
	Waiting  float64 `json:"waiting"`         // fraction of their time in which they waited for others
	Dollars
}

// Bill is the cost of a run.
type Bill struct {
	Lines   []billLine `json:"roles"`
	Storage float64    `json:"storage"`  // dollars
	Puts    float64    `json:"requests"` // dollars
	Dollars            // total
}

// Bill returns the bill for a usage.
func (l *Prices) Bill(u billUsage) *Bill {
	b := &Bill{
		Storage: u.Bytes / 1e9 * u.Seconds / (hoursInMonth * 3600) * l.GBMonth,
		Puts:    u.Puts * l.Put,
	}
	fixed := b.Storage + b.Puts
	b.Dollars = Dollars{new(fixed), new(fixed), new(fixed)}
	for _, role := range billedRoles {
		used, there := u.Roles[role]
		if !there || used.Machines == 0 {
			continue
		}
		p := l.Kinds[l.RoleKinds[role]]
		all := u.Seconds * float64(used.Machines)
		line := billLine{
			Role: role, Kind: l.RoleKinds[role], Machines: used.Machines, Seconds: max(0, all-used.Absent),
		}
		if line.Seconds > 0 {
			line.Waiting = min(1, used.Waiting/line.Seconds)
			if p.VCPUs > 0 {
				line.Idle = max(0, 1-used.CPU/(line.Seconds*p.VCPUs))
			}
		}
		line.Dollars = Dollars{
			OnDemand: times(p.OnDemand, line.Seconds/3600), Spot: times(p.Spot, line.Seconds/3600),
			Month: times(p.Month, all/3600/hoursInMonth),
		}
		b.OnDemand, b.Spot = plus(b.OnDemand, line.OnDemand), plus(b.Spot, line.Spot)
		b.Month = plus(b.Month, line.Month)
		b.Lines = append(b.Lines, line)
	}
	return b
}

func times(price *float64, n float64) *float64 {
	if price == nil {
		return nil
	}
	return new(*price * n)
}

// plus adds two amounts, or returns nil if one is unknown.
func plus(a, b *float64) *float64 {
	if a == nil || b == nil {
		return nil
	}
	return new(*a + *b)
}

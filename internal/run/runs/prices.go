package runs

import (
	"maps"
	"slices"

	"github.com/perdure/perdure/internal/run/settings"
)

// A run's bill is a function of its usage (machines, storage, requests) and of a list of prices. Each server, each
// worker and the coordinator is a machine of its own, of the kind that the list gives its role. Any number of
// goroutines may use one list.

// billedRoles are those that have machines, in the order of a bill.
var billedRoles = []string{"coordinator", "server", "worker"}

// hoursInMonth is how many hours a month has where one is paid by the month: 365 days of 24 hours, by 12.
const hoursInMonth = 730

// Price is what a machine of some kind costs; nil: the list does not say.
type Price struct {
	OnDemand *float64 // dollars an hour, while it is there
	Spot     *float64 // likewise, of one that may be taken away
	Month    *float64 // dollars a month, used or not
	VCPUs    float64  // 0: not known
}

// Prices are what machines, storage and requests cost.
type Prices struct {
	Source string // where the prices are from, and of which day
	Kinds  map[string]Price
	Of     map[string]string // the kind of each role's machines

	GBMonth float64 // dollars for 10⁹ bytes kept for a month
	Put     float64 // dollars for a request that writes
}

// Keys of a list.
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
	l := &Prices{Kinds: map[string]Price{}, Of: map[string]string{}}
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
			err = l.takeKinds(e.Value)
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
			return nil, e.Value.Errorf("a %s is a machine %s, and machines has no price of it%s", e.Key, kind,
				settings.Suggest(kind, slices.Sorted(maps.Keys(l.Kinds))))
		}
		if p := l.Kinds[kind]; p.OnDemand == nil && p.Spot == nil && p.Month == nil {
			return nil, e.Value.Errorf("a %s is a machine %s, which has no price; write its on-demand, spot or month",
				e.Key, kind)
		}
		l.Of[e.Key] = kind
	}
	for _, role := range billedRoles {
		if l.Of[role] == "" {
			return nil, v.Errorf("roles does not say which machine a %s is; write roles: {%s: KIND}, with a kind that "+
				"machines has", role, role)
		}
	}
	return l, nil
}

func (l *Prices) takeKinds(v settings.Node) error {
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

// onlyPrice reads a map of one price.
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
		err = v.Errorf("%s is %v; a price is 0 or more", v.Path(), x)
	}
	return x, err
}

// billUsage is what a run used.
type billUsage struct {
	Seconds float64
	Roles   map[string]roleUsage
	Bytes   float64 // kept on storage while it ran
	Puts    float64 // requests that wrote
}

// roleUsage is what the machines of a role were used for.
type roleUsage struct {
	Machines int
	Absent   float64 // seconds in which one of them was taken away, all together
	CPU      float64 // processor seconds
	Waiting  float64 // seconds in which one waited for others, all together
}

// Dollars is what something cost, three ways; nil: the list lacks a price that is needed.
type Dollars struct {
	OnDemand *float64 `json:"on_demand"`
	Spot     *float64 `json:"spot"`
	Month    *float64 `json:"month"` // the part of the month's price: machines that are away are paid, too
}

// billLine is a role's part of a bill.
type billLine struct {
	Role     string  `json:"role"`
	Kind     string  `json:"kind"`
	Machines int     `json:"machines"`
	Seconds  float64 `json:"machine_seconds"` // in which they were there
	Idle     float64 `json:"idle"`            // part of their processors' time that nothing used; 0: not known
	Waiting  float64 `json:"waiting"`         // part of their time in which they waited for others
	Dollars
}

// Bill is what a run cost.
type Bill struct {
	Lines   []billLine `json:"roles"`
	Storage float64    `json:"storage"`  // dollars
	Puts    float64    `json:"requests"` // dollars
	Dollars            // of all
}

// Bill makes the bill of what was used.
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
		p := l.Kinds[l.Of[role]]
		all := u.Seconds * float64(used.Machines)
		line := billLine{
			Role: role, Kind: l.Of[role], Machines: used.Machines, Seconds: max(0, all-used.Absent),
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

// plus adds what is known; of anything that is not, the sum is not known.
func plus(a, b *float64) *float64 {
	if a == nil || b == nil {
		return nil
	}
	return new(*a + *b)
}

package study

import (
	"path/filepath"
	"strings"

	"github.com/perdure/perdure/internal/data/disk"

	"github.com/perdure/perdure/internal/run/plain"
	"github.com/perdure/perdure/internal/run/settings"
)

// takePlans reads how machines fail: a list of faults, what is drawn, or a record that is replayed.
func (r *reader) takePlans(v settings.Node) error {
	entries, err := v.Map()
	if err != nil {
		return err
	}
	for _, e := range entries {
		p := Plan{Name: e.Key}
		if folderName(p.Name) != p.Name {
			return e.Value.Errorf("%s names a folder: write it in letters, digits, - and _", p.Name)
		}
		switch v := e.Value; {
		case v.IsMap():
			err = takePlan(v, &p.faultPlan)
		default:
			p.Given, err = faults(v)
		}
		if err != nil {
			return err
		}
		r.Plans = put(r.Plans, p, func(a, b Plan) bool { return a.Name == b.Name })
	}
	return nil
}

// faults reads a list of faults; "none" is none.
func faults(v settings.Node) (given []string, err error) {
	given, err = v.Texts()
	if err != nil || len(given) == 1 && given[0] == "none" {
		return nil, err
	}
	for _, text := range given {
		if _, err := (&faultPlan{Given: []string{text}}).Of(faultJob{}); err != nil {
			return nil, v.Errorf("%s", plain.Text(err))
		}
	}
	return given, nil
}

// Keys of plans.
var (
	sharedKeys = []string{"faults", "who", "how"}
	drawKeys   = append([]string{"draw", "mean", "scale", "shape", "mean-clocks", "of", "away", "until"}, sharedKeys...)
	replayKeys = append([]string{"replay", "from", "length", "into", "boot"}, sharedKeys...)
)

func takePlan(v settings.Node, p *faultPlan) error {
	entries, err := v.Map()
	if err != nil {
		return err
	}
	has := func(key string) bool {
		for _, e := range entries {
			if e.Key == key {
				return true
			}
		}
		return false
	}
	switch {
	case len(entries) == 0:
		return nil
	case has("draw"):
		return takeDraw(v, p)
	case has("replay"):
		return takeReplay(v, p)
	}
	all := append(append([]string{}, drawKeys...), replayKeys...)
	if _, err := v.Map(all...); err != nil {
		return err
	}
	return v.Errorf("%s says neither draw: exponential, weibull or geometric, nor replay: FILE; faults that are given "+
		"are a list, as in [kill:server:0@10s]", v.Path())
}

func takeDraw(v settings.Node, p *faultPlan) error {
	entries, err := v.Map(drawKeys...)
	if err != nil {
		return err
	}
	d := &faultDraw{}
	p.Draw = d
	for _, e := range entries {
		v := e.Value
		var text string
		switch e.Key {
		case "faults":
			p.Given, err = faults(v)
		case "draw":
			text, err = v.Text()
			d.Law = failureLaw(text)
		case "mean":
			d.Mean, err = duration(v)
		case "scale":
			d.Scale, err = duration(v)
		case "shape":
			d.Shape, err = v.Float()
		case "mean-clocks":
			d.MeanClocks, err = v.Float()
		case "of":
			d.OfJob, err = oneOf(v, "job", "machine")
		case "who":
			text, err = v.Text()
			d.Who = machineGroup(text)
		case "how":
			d.How, err = v.Text()
		case "away":
			d.Away, err = duration(v)
		case "until":
			d.Until, err = duration(v)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func takeReplay(v settings.Node, p *faultPlan) error {
	entries, err := v.Map(replayKeys...)
	if err != nil {
		return err
	}
	r := &faultReplay{}
	p.Replay = r
	for _, e := range entries {
		v := e.Value
		var text string
		switch e.Key {
		case "faults":
			p.Given, err = faults(v)
		case "replay":
			r.Record, err = record(v)
			text, _ = v.Text()
			r.Name = filepath.Base(text)
		case "from":
			r.From, err = duration(v)
		case "length":
			r.Length, err = duration(v)
		case "into":
			r.Into, err = duration(v)
		case "boot":
			r.Boot, err = duration(v)
		case "who":
			text, err = v.Text()
			r.Who = machineGroup(text)
		case "how":
			r.How, err = v.Text()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// mostRecord bounds a record of machines, in bytes.
const mostRecord = 256 << 20

// record reads a record of machines.
func record(v settings.Node) (*machineRecord, error) {
	path, err := beside(v)
	if err != nil {
		return nil, err
	}
	b, err := disk.ReadRegular(path, mostRecord)
	if err != nil {
		return nil, v.Errorf("%s cannot be read: %w", path, plain.Cause(err))
	}
	r, err := readMachineRecord(b)
	if err != nil {
		return nil, v.Errorf("%s: %s", path, strings.ReplaceAll(plain.Text(err), "\n", "; "))
	}
	return r, nil
}

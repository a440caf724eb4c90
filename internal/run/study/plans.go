package study

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/settings"
)

// takePlans reads the failure plans. Each is a list of faults, a distribution, or a record to replay.
func (r *reader) takePlans(v settings.Node) error {
	entries, err := v.Map()
	if err != nil {
		return err
	}
	for _, e := range entries {
		p := Plan{Name: e.Key}
		if folderName(p.Name) != p.Name {
			return e.Value.Errorf("plan %s must be a valid directory name: use letters, digits, - and _", p.Name)
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
		r.Plans = replace(r.Plans, p, func(a, b Plan) bool { return a.Name == b.Name })
	}
	return nil
}

// faults reads a list of faults. "none" stands for an empty list.
func faults(v settings.Node) (given []string, err error) {
	given, err = v.Texts()
	if err != nil || len(given) == 1 && given[0] == "none" {
		return nil, err
	}
	for _, text := range given {
		if _, err := (&faultPlan{Given: []string{text}}).Of(faultJob{}); err != nil {
			return nil, v.Errorf("%s", humanize.ErrorText(err))
		}
	}
	return given, nil
}

// takePlan reads a map: a distribution or a record to replay, with optional further faults.
func takePlan(v settings.Node, p *faultPlan) error {
	entries, err := v.Map()
	if err != nil || len(entries) == 0 {
		return err
	}
	has := func(key string) bool {
		return slices.ContainsFunc(entries, func(e settings.Entry) bool { return e.Key == key })
	}
	text, given := settings.Node.Text, into(&p.Given, faults)
	switch {
	case has("draw"):
		d := &faultDraw{}
		p.Draw = d
		_, err = fields{
			"faults": given, "draw": into(&d.Law, text), "who": into(&d.Who, text), "how": into(&d.How, text),
			"mean": into(&d.Mean, duration), "scale": into(&d.Scale, duration),
			"shape": into(&d.Shape, settings.Node.Float),
			"away":  into(&d.Away, duration), "until": into(&d.Until, duration),
			"of": into(&d.OfJob, oneOf("job", "machine")),
		}.read(v)
		return err
	case has("replay"):
		r := &faultReplay{}
		p.Replay = r
		_, err = fields{
			"faults": given, "who": into(&r.Who, text), "how": into(&r.How, text), "replay": r.readTrace,
			"from": into(&r.From, duration), "length": into(&r.Length, duration), "into": into(&r.Into, duration),
			"boot": into(&r.Boot, duration),
		}.read(v)
		return err
	}
	return v.Errorf("%s has neither draw: exponential or weibull, nor replay: FILE; to set faults "+
		"directly, use a list such as [kill:server:0@10s]", v.Path())
}

// maxTraceBytes limits the size of a record of machines, in bytes.
const maxTraceBytes = 256 << 20

// readTrace reads the trace to replay.
func (r *faultReplay) readTrace(v settings.Node) error {
	path, err := relativeFile(v)
	if err != nil {
		return err
	}
	b, err := disk.ReadRegular(path, maxTraceBytes)
	if err != nil {
		return v.Errorf("cannot read %s: %w", path, humanize.Cause(err))
	}
	if r.Trace, err = readMachineTrace(b); err != nil {
		return v.Errorf("%s: %s", path, strings.ReplaceAll(humanize.ErrorText(err), "\n", "; "))
	}
	r.Name = filepath.Base(path)
	return nil
}

package perdure_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
)

func TestOnOutage(t *testing.T) {
	for text, want := range map[string]perdure.OnOutage{
		"wait":          {},
		"continue":      {Continue: true, Clocks: perdure.DefaultOutageClocks},
		"continue:1":    {Continue: true, Clocks: 1},
		"continue:5000": {Continue: true, Clocks: 5000},
	} {
		got, err := perdure.ParseOnOutage(text)
		if err != nil || got != want {
			t.Errorf("%s is read as %+v, %v", text, got, err)
		}
		if again, err := perdure.ParseOnOutage(got.String()); err != nil || again != want {
			t.Errorf("%s is written %s, which is read as %+v, %v", text, got, again, err)
		}
	}
	for _, text := range []string{
		"", "wait:1", "continue:", "continue:0", "continue:-1", "continue:x", "go on",
		"continue:99999999999",
	} {
		if got, err := perdure.ParseOnOutage(text); !errors.Is(err, perdure.ErrUsage) {
			t.Errorf("%q is read as %+v, %v", text, got, err)
		}
	}
}

// What cannot go on in an outage is refused, with the reason.
func TestMayContinue(t *testing.T) {
	for _, c := range []struct{ model, recovery, rows, scale, refused string }{
		{"asp", "chain:2", "", "", ""},
		{"ssp:3", "chain:2,checkpoint:5", "apply", "inverse", ""},
		{"asp", "stateless", "apply", "average", ""},
		{"vap:1", "chain:2,async", "frozen", "paper", ""},
		{"bsp", "chain:2", "", "", "with recovery resend or stateless"},
		{"asp,w=bsp", "chain:2", "", "", "all shards have staged"},
		{"asp", "resend:5", "", "", ""},
		{"asp", "stateless", "", "", ""},
		{"asp", "checkpoint:5", "", "", "roll back"},
		{"asp", "none", "", "", "recovery resend, stateless or chain:N"},
		{"asp", "chain:2", "warm", "", "frozen or apply"},
		{"asp", "chain:2", "", "tenth", "none, inverse, paper or average"},
	} {
		job := perdure.JobSpec{
			ID: "test", Slots: 2, Servers: 2, Shards: 2, OnOutage: perdure.OnOutage{Continue: true, Clocks: 1},
			OutageRows: perdure.OutageRows(c.rows), StaleScale: perdure.StaleScale(c.scale),
		}
		var err error
		if job.Consistency, job.TableConsistency, err = perdure.ParseModels(c.model,
			perdure.Consistency{}); err != nil {
			t.Fatal(err)
		}
		if job.Recovery, err = perdure.ParseRecovery(c.recovery); err != nil {
			t.Fatal(err)
		}
		err = recovery.Check(&job)
		if (err == nil) != (c.refused == "") ||
			err != nil && (!errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), c.refused)) {
			t.Errorf("%+v: %v", c, err)
		}
		b, err := json.Marshal(job)
		var again perdure.JobSpec
		if err != nil || json.Unmarshal(b, &again) != nil || again.OnOutage != job.OnOutage {
			t.Errorf("%s is read as %+v", b, again.OnOutage)
		}
	}
}

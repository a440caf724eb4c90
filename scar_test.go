package perdure_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/perdure/perdure"
)

// TestParseScar: what is written in several ways is read as one, and is written in one way.
func TestParseScar(t *testing.T) {
	for in, want := range map[string]string{
		"scar":                    "scar:auto,1/8,priority",
		"scar:20":                 "scar:20,1/8,priority",
		"scar:auto,0.125":         "scar:auto,1/8,priority",
		"scar:20,1/8,round":       "scar:20,1/8,round",
		"scar:20,1,random":        "scar:20,1,random",
		"scar:3,0.3,used":         "scar:3,0.3,used",
		"scar:7,2/3":              "scar:7,0.6666666666666666,priority",
		"scar:20,1/1000,priority": "scar:20,1/1000,priority",
	} {
		r, err := perdure.ParseRecovery(in)
		if err != nil || r.String() != want {
			t.Errorf("%q is read as %v (%v), want %s", in, r, err, want)
		}
		if again, err := perdure.ParseRecovery(want); err != nil || again != r {
			t.Errorf("%q is read as %+v (%v), want %+v", want, again, err, r)
		}
	}
	for _, bad := range []string{
		"scar:", "scar:0", "scar:-1", "scar:20,0", "scar:20,1.01", "scar:20,-1/8", "scar:20,1/0", "scar:20,NaN",
		"scar:20,,priority", "scar:20,1/8,newest", "scar:20,1/8,priority,async", "scar,async", "scar:20,1/8,", "scary",
		"scar:20,1/8/2", "scar:20,0/0", "scar:20,Inf/Inf",
	} {
		if r, err := perdure.ParseRecovery(bad); !errors.Is(err, perdure.ErrUsage) {
			t.Errorf("%q is read as %v (%v)", bad, r, err)
		}
	}
}

// Rows of ftrl do not tell how far they are from what was saved: priority alone asks for that.
func TestRecoverySuits(t *testing.T) {
	for by, refused := range map[string]bool{
		"scar": true, "scar:20,1/8,priority": true, "scar:20,1/8,used": false, "scar:20,1/8,round": false,
		"scar:20,1/8,random": false, "resend:20": false, "none": false,
	} {
		r, err := perdure.ParseRecovery(by)
		if err != nil {
			t.Fatal(err)
		}
		for _, rule := range []perdure.RuleKind{
			perdure.RuleAdd, perdure.RuleSet, perdure.RuleSGD, perdure.RuleMomentum, perdure.RuleNesterov,
			perdure.RuleAdagrad,
			perdure.RuleRowwiseAdagrad, perdure.RuleAdam, perdure.RuleFTRL,
		} {
			err := r.ValidateTable(perdure.TableSpec{Name: "w", Rule: perdure.Rule{Kind: rule}})
			want := refused && rule == perdure.RuleFTRL
			if (err != nil) != want || want && (!errors.Is(err, perdure.ErrUsage) ||
				!strings.Contains(err.Error(), "rule ftrl")) {
				t.Errorf("%s, rule %s: %v", by, rule, err)
			}
		}
	}
}

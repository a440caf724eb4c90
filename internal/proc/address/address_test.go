package address

import (
	"errors"
	"strings"
	"testing"

	"github.com/perdure/perdure"
)

// TestCheck: what cannot be dialled is refused, in a line that says how it is written.
func TestCheck(t *testing.T) {
	for _, good := range []string{
		"127.0.0.1:7000", "[::1]:7000", "a.example.org:1", "a:1, b:2,[fd00::5]:65535", "[fe80::1%eth0]:7",
	} {
		if err := Check("--join", good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for bad, says := range map[string]string{
		"": `"" is no address`, "a": `"a" is no address`, "a:": "no address", ":7000": "no address",
		"::1": "no address", "::1:7000": "no address", "a:0": "no address", "a:65536": "no address",
		"a:http": "no address",
		"a:1,":   "no address", "a:1;b:2": "no address", "0.0.0.0:7": "every address", "[::]:7": "every address",
		"a:1,0.0.0.0:7": "every address",
	} {
		err := Check("--join", bad)
		if !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), says) ||
			!strings.Contains(err.Error(), "--join "+bad) {
			t.Errorf("%s: %v; want %s", bad, err, says)
		}
	}
}

// TestPublished: others are told an address that they can dial.
func TestPublished(t *testing.T) {
	for _, c := range []struct{ at, advertise, want string }{
		{"10.0.0.5:7000", "", "10.0.0.5:7000"},
		{"[::1]:7000", "", "[::1]:7000"},
		{"[::]:7000", "10.0.0.5", "10.0.0.5:7000"},
		{"0.0.0.0:7000", "a.example.org:0", "a.example.org:7000"},
		{"0.0.0.0:7000", "a.example.org:9", "a.example.org:9"},
		{"[::]:7000", "::1", "[::1]:7000"},
		{"[::]:7000", "[::1]", "[::1]:7000"},
		{"[::]:7000", "[::1]:8", "[::1]:8"},
		{"0.0.0.0:7000", "", ""},
		{"[::]:7000", "", ""},
		{":7000", "", ""},
		{"0.0.0.0:7000", "0.0.0.0", ""},
		{"0.0.0.0:7000", "[::]:5", ""},
		{"0.0.0.0:7000", "a:b", ""},
		{"0.0.0.0:7000", "a:1,b:1", ""},
		{"7000", "", ""},
	} {
		got, err := Published(c.at, c.at, c.advertise)
		if got != c.want && err == nil || (err == nil) != (c.want != "") ||
			err != nil && !errors.Is(err, perdure.ErrUsage) {
			t.Errorf("%s as %q: %q, %v; want %q", c.at, c.advertise, got, err, c.want)
		}
	}
	for at, want := range map[string]string{
		"0.0.0.0:7": "127.0.0.1:7", "[::]:7": "[::1]:7", ":7": "127.0.0.1:7", "10.0.0.5:7": "10.0.0.5:7",
		"[::1]:7": "[::1]:7",
	} {
		if got := Dialled(at); got != want {
			t.Errorf("who listens at %s is reached at %s, want %s", at, got, want)
		}
	}
	if got := Leading("127.0.0.1:7"); got != "127.0.0.1" {
		t.Errorf("connections to this machine go out at %q", got)
	}
}

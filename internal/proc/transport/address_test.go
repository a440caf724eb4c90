package transport

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
)

// TestCheck checks that invalid addresses are rejected with a hint how to write them.
func TestCheck(t *testing.T) {
	for _, good := range []string{
		"127.0.0.1:7000", "[::1]:7000", "a.example.org:1", "a:1, b:2,[fd00::5]:65535", "[fe80::1%eth0]:7",
	} {
		if err := CheckAddress("--join", good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for bad, says := range map[string]string{
		"": `invalid address ""`, "a": `invalid address "a"`, "a:": "invalid address", ":7000": "invalid address",
		"::1": "invalid address", "::1:7000": "invalid address", "a:0": "invalid address", "a:65536": "invalid address",
		"a:http": "invalid address",
		"a:1,":   "invalid address", "a:1;b:2": "invalid address",
		"0.0.0.0:7": "every address", "[::]:7": "every address",
		"a:1,0.0.0.0:7": "every address",
	} {
		err := CheckAddress("--join", bad)
		if !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), says) ||
			!strings.Contains(err.Error(), "--join "+bad) {
			t.Errorf("%s: %v; want %s", bad, err, says)
		}
	}
}

// TestPublished checks that the advertised address can be dialled by other machines.
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
		got, err := PublishedAddress(c.at, c.at, c.advertise)
		if got != c.want && err == nil || (err == nil) != (c.want != "") ||
			err != nil && !errors.Is(err, perdure.ErrUsage) {
			t.Errorf("%s as %q: %q, %v; want %q", c.at, c.advertise, got, err, c.want)
		}
	}
	for at, want := range map[string]string{
		"0.0.0.0:7": "127.0.0.1:7", "[::]:7": "[::1]:7", ":7": "127.0.0.1:7", "10.0.0.5:7": "10.0.0.5:7",
		"[::1]:7": "[::1]:7",
	} {
		if got := DialAddress(at); got != want {
			t.Errorf("a listener at %s is dialled at %s, want %s", at, got, want)
		}
	}
	if got := SourceAddress("127.0.0.1:7"); got != "127.0.0.1" {
		t.Errorf("the source address for this machine is %q", got)
	}
}

// TestFile checks that addresses in a file are read on every call. A missing file yields no address and is rejected by
// CheckAddress.
func TestFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "addresses")
	if err := CheckAddress("--join", "@"+name); !errors.Is(err, perdure.ErrUsage) ||
		!strings.Contains(err.Error(), "cannot read") || strings.Contains(err.Error(), "\n") {
		t.Errorf("a missing file: %v", err)
	}
	if got := ParseAddresses("@" + name); !slices.Equal(got, []string{""}) {
		t.Errorf("Addresses returned %q", got)
	}
	for text, want := range map[string][]string{
		"a:1\n": {"a:1"}, "a:1, b:2": {"a:1", "b:2"}, "\n[fd00::5]:7,b:2\n\n": {"[fd00::5]:7", "b:2"}, "": {""},
		"@other": {"@other"},
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := ParseAddresses("@" + name); !slices.Equal(got, want) {
			t.Errorf("%q contains %q", text, got)
		}
		if err := CheckAddress("--join", "@"+name); (err == nil) != strings.Contains(text, ":") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if err := os.WriteFile(name, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := ParseAddresses("@" + name); len(got) != 1 || len(got[0]) > maxFile {
		t.Errorf("read %d addresses from a large file", len(got))
	}
}

// TestUnder checks that a listener on all addresses is advertised with an address at which others reach the machine.
func TestUnder(t *testing.T) {
	for _, c := range []struct{ at, other, want string }{
		{"0.0.0.0:9464", "10.0.0.6:7100", "10.0.0.6:9464"},
		{"[::]:9464", "a.example.org", "a.example.org:9464"},
		{"[::]:9464", "[fd00::6]", "[fd00::6]:9464"},
		{"0.0.0.0:9464", "", "0.0.0.0:9464"},
		{"10.0.0.7:9464", "10.0.0.6:7100", "10.0.0.7:9464"},
		{"127.0.0.1:9464", "10.0.0.6:7100", "127.0.0.1:9464"},
	} {
		if got := ReachableAddress(c.at, c.other); got != c.want {
			t.Errorf("%s under %q is %s; want %s", c.at, c.other, got, c.want)
		}
	}
}

package transport

import (
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
)

// An address is HOST:PORT; an IPv6 host stands in brackets. Where people write addresses there may be several, with
// commas between them, of which one answers.

// mostFile bounds what is read of a file of addresses.
const mostFile = 1 << 12

// Addresses are the addresses that a text names: of a peer that listens at one of them. There is one at
// least, which is "" in an empty text. A text @FILE names those in a file, which is read anew each time: whoever
// writes it may know better by then.
func Addresses(text string) []string {
	if name, is := strings.CutPrefix(text, "@"); is {
		text, _ = read(name) // nobody can dial ""; it is tried again
	}
	all := strings.Split(text, ",")
	for i := range all {
		all[i] = strings.TrimSpace(all[i])
	}
	return all
}

// read returns what a file of addresses has.
func read(name string) (string, error) {
	f, err := disk.OpenRegular(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, mostFile))
	return strings.TrimSpace(string(b)), err
}

// CheckAddress refuses a text that does not name addresses that one can dial; flag is what people
// know it by.
func CheckAddress(flag, text string) error {
	if name, is := strings.CutPrefix(text, "@"); is {
		if _, err := read(name); err != nil {
			return fmt.Errorf("%w: %s %s: the file of addresses cannot be read: %w", perdure.ErrUsage, flag, text, err)
		}
	}
	for _, addr := range Addresses(text) {
		host, port, err := net.SplitHostPort(addr)
		number, bad := strconv.ParseUint(port, 10, 16)
		switch ip := net.ParseIP(host); {
		case err != nil || host == "" || bad != nil || number == 0:
			return fmt.Errorf("%w: %s %s: %q is no address; write HOST:PORT, for example 10.0.0.5:7000 or "+
				"[fd00::5]:7000, and several with commas between them", perdure.ErrUsage, flag, text, addr)
		case ip != nil && ip.IsUnspecified():
			return fmt.Errorf("%w: %s %s: %s stands for every address of a machine; write the one under which it is "+
				"reached", perdure.ErrUsage, flag, text, host)
		}
	}
	return nil
}

// PublishedAddress is the address that others are told of a process that listens at an address (listen is what
// it was asked to, at where it does): advertise, with the port of at where that has none or 0;
// "": at. One that nobody elsewhere can dial is refused.
func PublishedAddress(listen, at, advertise string) (string, error) {
	host, port, err := net.SplitHostPort(at)
	if err != nil {
		return "", fmt.Errorf("%w: --listen %s: write HOST:PORT, for example 10.0.0.5:7000 or [fd00::5]:7000",
			perdure.ErrUsage, listen)
	}
	if advertise == "" {
		if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
			return "", fmt.Errorf("%w: --listen %s is every address of this machine, and others must be told one; add "+
				"--advertise HOST:PORT with the one under which they reach it", perdure.ErrUsage, listen)
		}
		return at, nil
	}
	told, toldPort, err := net.SplitHostPort(advertise)
	if err != nil { // it has no port
		told, toldPort = strings.Trim(advertise, "[]"), port
	}
	if toldPort == "0" {
		toldPort = port
	}
	if strings.Contains(advertise, ",") {
		return "", fmt.Errorf("%w: --advertise %s: a process has one address; write HOST:PORT", perdure.ErrUsage,
			advertise)
	}
	all := net.JoinHostPort(told, toldPort)
	return all, CheckAddress("--advertise", all)
}

// DialledAddresses is the address at which this machine itself reaches who listens at an address, which
// may stand for all.
func DialledAddresses(at string) string {
	host, port, err := net.SplitHostPort(at)
	ip := net.ParseIP(host)
	switch {
	case err != nil || host != "" && (ip == nil || !ip.IsUnspecified()):
		return at
	case ip != nil && ip.To4() == nil:
		return net.JoinHostPort(net.IPv6loopback.String(), port)
	}
	return net.JoinHostPort("127.0.0.1", port)
}

// AddressUnder is an address for others of a process that listens at at: its host is that of another address under
// which they reach this machine, where at stands for all. It is at itself where that is not known.
func AddressUnder(at, other string) string {
	host, port, err := net.SplitHostPort(at)
	if ip := net.ParseIP(host); err != nil || ip == nil || !ip.IsUnspecified() {
		return at
	}
	told, _, err := net.SplitHostPort(other)
	if err != nil { // it has no port
		told = strings.Trim(other, "[]")
	}
	if told == "" {
		return at
	}
	return net.JoinHostPort(told, port)
}

// LeadingAddress is the address of this machine from which connections to another address go out: others who
// reach that one reach this machine there, too. "" where that is not known.
func LeadingAddress(to string) string {
	c, err := net.Dial("udp", to) // which sends nothing
	if err != nil {
		return ""
	}
	defer c.Close()
	host, _, _ := net.SplitHostPort(c.LocalAddr().String())
	return host
}

// IsLoopback reports whether an address is one that only this machine reaches.
func IsLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	return err == nil && ip != nil && ip.IsLoopback()
}
